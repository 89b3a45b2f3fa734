"""Simulated studies: are error rates, power and intervals as stated? `python tests/scripts/simulate_statistics.py`

The table is printed and written to studies/results/statistics.csv, with the rules of the first edition (Student's t
over seeds alone) and of the second (`attendrop.lab.statistics.rules`). Each study has the runs of a baseline and of one
method or of four, whose paired differences have a standard deviation of 1. All studies of a line are computed at once,
by other code than that of the package; the first ones are judged by `judge_family` too, which must agree.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

from attendrop.lab.statistics.paired import minimum_detectable_effect
from attendrop.lab.statistics.rules import items_of
from attendrop.lab.statistics.sequential import SequentialDesign
from attendrop.lab.statistics.verdict import Question, Rules, judge_family

RESULTS = Path(__file__).parents[2] / "studies" / "results" / "statistics.csv"
SEEDS = (5, 8, 10, 20)
METHODS = (1, 4)
ALPHA = 0.05
RULES: tuple[Rules, ...] = ("first", "second")
DESIGNS: dict[Rules, SequentialDesign] = {
    "first": SequentialDesign(40, first=5, exponent=2.0),
    "second": SequentialDesign(40),
}
UNTIL_DECIDED = "until decided, at most 40"
EFFECT = 0.5  # the planted effect of studies that go on until they are decided, in standard deviations
CHECKED = 3  # studies of each line that `judge_family` judges too
POINT = 3.0  # a point of accuracy in the shapes that collapse, where other differences deviate by a third of a point
Array = np.ndarray[Any, np.dtype[Any]]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]
LogDensity = Callable[[Array], Array]
MOST_ALARMS = 0.055  # that a procedure may have where differences are skewed
LENGTHS = 400  # of the integrals of `best_power`


class Row(NamedTuple):
    """One line of the table. `error` is the standard error of the simulation; `mean_seeds`, how many seeds were run."""

    quantity: str
    seeds: str
    methods: int
    differences: str
    rules: str
    studies: int
    stated: float
    measured: float
    error: float
    mean_seeds: float


# ---- runs -----------------------------------------------------------------------------------------------------


class Shape(NamedTuple):
    """How runs are drawn (studies × (baseline and methods) × seeds), the step in which they move, and the truth.

    The true difference of each method is `truth`, before an effect is added.
    """

    draw: Draw
    step: float = 0.0
    truth: float = 0.0


def of_runs(draw: Draw, step: float = 0.0) -> Shape:
    """Runs of methods and baseline have the same distribution; `draw` gives runs with deviation 1."""
    deviation = math.sqrt(1 + step**2 / 6)  # of the rounded differences

    def runs(generator: np.random.Generator, size: tuple[int, ...]) -> Array:
        values = draw(generator, size) / math.sqrt(2)
        return (np.round(values / step) * step if step else values) / deviation

    return Shape(runs, step / deviation)


def of_differences(draw: Draw) -> Shape:
    """The differences themselves have a distribution, with deviation 1: the method changes more than the mean."""

    def runs(generator: np.random.Generator, size: tuple[int, ...]) -> Array:
        values = draw(generator, size)
        values[:, 1:] += values[:, :1]
        return values

    return Shape(runs)


def normal(generator: np.random.Generator, size: tuple[int, ...]) -> Array:
    return generator.normal(size=size)


def heteroscedastic(generator: np.random.Generator, size: tuple[int, ...]) -> Array:
    """Normal, with a deviation of its own for each seed; the largest is five times the smallest."""
    scale = generator.uniform(1, 5, (size[0], 1, size[2]))
    return generator.normal(size=size) * scale / math.sqrt((1 + 5 + 25) / 3)


def exponential(generator: np.random.Generator, size: tuple[int, ...]) -> Array:
    return generator.exponential(size=size) - 1


def lognormal(generator: np.random.Generator, size: tuple[int, ...]) -> Array:
    return (np.exp(generator.normal(size=size)) - math.exp(0.5)) / math.sqrt((math.e - 1) * math.e)


def collapsing(methods_only: bool) -> Shape:
    """One run in ten collapses by 20 points, of the methods or of all."""

    def runs(generator: np.random.Generator, size: tuple[int, ...]) -> Array:
        collapses = generator.random(size) < 0.1
        collapses[:, 0] &= not methods_only
        return generator.normal(size=size) / math.sqrt(2) - 20 * POINT * collapses

    return Shape(runs, truth=-2 * POINT if methods_only else 0.0)


SHAPES = {
    "normal": of_runs(normal),
    "heavy-tailed (t3)": of_runs(lambda generator, size: generator.standard_t(3, size) / math.sqrt(3)),
    "heteroscedastic": of_runs(heteroscedastic),
    "ties on 277": of_runs(normal, 0.24),  # accuracy on 277 examples, deviation of the differences 1.5 points
    "ties on 50": of_runs(normal, 1.33),
    "both collapse": collapsing(methods_only=False),
    "one collapses": collapsing(methods_only=True),
    "exponential": of_differences(exponential),
    "lognormal": of_differences(lognormal),
}


# ---- the rules, for many studies at once ----------------------------------------------------------------------


class Moments(NamedTuple):
    """Mean, standard error and skewness of differences, after n seeds."""

    means: Array
    errors: Array
    skews: Array
    n: Any


def moments_of(differences: Array, step: float) -> Moments:
    n = differences.shape[-1]
    means = differences.mean(-1)
    centred = differences - means[..., None]
    return _moments(means, (centred**2).mean(-1), (centred**3).mean(-1), n, step)


def running_moments(differences: Array, step: float, counts: Array) -> Moments:
    """The same after each of `counts` seeds, in a new last axis."""
    means, squares, cubes = (np.cumsum(differences**k, -1)[..., counts - 1] / counts for k in (1, 2, 3))
    variances = np.maximum(squares - means**2, 0)
    return _moments(means, variances, cubes - 3 * means * squares + 2 * means**3, counts, step)


def _moments(means: Array, variances: Array, thirds: Array, n: Any, step: float) -> Moments:
    variances = np.where(variances > 1e-20, variances, 0.0)
    with np.errstate(all="ignore"):
        skews = np.where(variances > 0, thirds / variances**1.5, 0.0)
    errors = np.maximum(np.sqrt(variances * n / (n - 1)), step / 2) / np.sqrt(n)
    return Moments(means, errors, skews, n)


def bounds(of: Moments, level: Any, rules: Rules, always: bool = False) -> tuple[Array, Array]:
    """The interval of confidence 1 - `level`."""
    n, t = of.n, special.stdtrit(of.n - 1, 1 - np.asarray(level) / 2)
    low, high = -t + 0 * of.means, t + 0 * of.means
    if rules == "second":
        least = np.minimum(2, 25 / n) * np.sqrt(6 * (n - 2) / ((n + 1) * (n + 3)))
        skew = of.skews / np.sqrt(n) * (2 if always else 1.5 * (np.abs(of.skews) > least))
        with np.errstate(all="ignore"):
            corrected = [3 / skew * (np.cbrt(1 + skew * (end - skew / 6)) - 1) for end in (low, high)]
        low = np.where(skew == 0, low, np.minimum(low, corrected[0]))
        high = np.where(skew == 0, high, np.maximum(high, corrected[1]))
    return of.means - high * of.errors, of.means - low * of.errors


def collapses_of(runs: Array, step: float) -> tuple[Array, Array]:
    """How many runs of each method, and of the baseline, are far below their median."""
    medians = np.median(runs, -1, keepdims=True)
    spreads = np.median(np.abs(runs - medians), -1)
    limits = 10 * np.maximum(np.maximum(spreads, spreads[:, :1]), step)
    counts = ((medians - runs > limits[..., None]) & (limits[..., None] > 0)).sum(-1)
    return counts[:, 1:], counts[:, :1]


def withheld(counts: tuple[Array, Array], n: int) -> tuple[Array, Array]:
    """Whether "no difference" and "helps" are withheld because of runs that may collapse."""
    known = np.array([special.betaincinv(k + 1, n - k, 0.95) if k < n else 1.0 for k in range(n + 1)])
    too_many = known > 0.1
    of_method, of_baseline = counts
    return too_many[of_method] | too_many[of_baseline], too_many[of_method] & (of_method > of_baseline)


def verdicts_at(runs: Array, step: float, delta: float, level: float, rules: Rules) -> Array:
    """The verdicts on each method in each study with a fixed number of seeds."""
    low, high = bounds(moments_of(runs[:, 1:] - runs[:, :1], step), level, rules)
    none, no_help = np.zeros_like(low, bool), np.zeros_like(low, bool)
    if rules == "second":
        none, no_help = withheld(collapses_of(runs, step), runs.shape[-1])
    verdicts = np.where(low > 0, np.where(no_help, "undecided", "helps"), np.where(high < 0, "hurts", "undecided"))
    return np.where((low > -delta) & (high < delta), np.where(none, "undecided", "no difference"), verdicts)


def until_decided(runs: Array, step: float, delta: float, rules: Rules) -> tuple[Array, Array, Array]:
    """Verdict, number of seeds and mean of each method in each study. There is a look after each seed."""
    design, methods = DESIGNS[rules], runs.shape[1] - 1
    counts = np.arange(design.first, runs.shape[-1] + 1)
    levels = np.array([design.level(int(n), ALPHA / methods) for n in counts])
    moments = running_moments(runs[:, 1:] - runs[:, :1], step, counts)
    low, high = bounds(moments, levels, rules, always=True)
    none, no_help = np.zeros_like(low, bool), np.zeros_like(low, bool)
    if rules == "second":
        for place, n in enumerate(counts):
            none[..., place], no_help[..., place] = withheld(collapses_of(runs[..., :n], step), int(n))
    is_within = (low > -delta) & (high < delta)
    is_decided = np.where(is_within, ~none, (high < 0) | ((low > 0) & ~no_help))
    first = np.where(is_decided.any(-1), is_decided.argmax(-1), len(counts) - 1)[..., None]
    within, mean, decided = (np.take_along_axis(of, first, -1)[..., 0] for of in (is_within, moments.means, is_decided))
    verdicts = np.where(within, "no difference", np.where(mean > 0, "helps", "hurts"))
    return np.where(decided, verdicts, "undecided"), counts[first[..., 0]], mean


def judged(runs: Array, step: float, delta: float, rules: Rules, design: SequentialDesign | None = None) -> list[str]:
    """The verdicts of `judge_family` on one study (baseline and methods × seeds)."""
    baseline, *methods = (dict(enumerate(of.tolist())) for of in runs)
    named = {f"method {place}": of for place, of in enumerate(methods)}
    question = Question(delta, rules=rules)
    return [of.verdict for of in judge_family(named, baseline, question, step, design).values()]  # type: ignore[arg-type]


# ---- the table ------------------------------------------------------------------------------------------------


class Simulation:
    """Runs the studies of each line of the table, with a generator of its own."""

    def __init__(self, studies: int, seed: int = 0) -> None:
        self.studies, self.seed = studies, seed

    def draw(self, name: str, methods: int, seeds: int, studies: int | None = None) -> tuple[Array, Shape]:
        generator = np.random.default_rng([self.seed, methods, seeds, *name.encode()])
        shape = SHAPES[name]
        return shape.draw(generator, (studies or self.studies, methods + 1, seeds)), shape

    def row(
        self, quantity: str, seeds: int | str, methods: int, name: str, rules: str, stated: float, hits: Any, used: Any
    ) -> Row:
        share = float(np.mean(hits))
        error = math.sqrt(max(share * (1 - share), stated * (1 - stated)) / np.shape(hits)[0])
        return Row(quantity, str(seeds), methods, name, rules, len(hits), stated, share, error, float(np.mean(used)))

    def _check(self, runs: Array, verdicts: Array, step: float, delta: float, rules: Rules) -> None:
        for study, expected in zip(runs[:CHECKED], verdicts, strict=False):
            assert judged(study, step, delta, rules) == expected.tolist()

    def false_alarms(self, name: str, methods: int, seeds: int, rules: Rules = "second") -> Row:
        """How often a study says "helps" or "hurts" of any method that does not."""
        runs, shape = self.draw(name, methods, seeds)
        # By Holm's correction there is an alarm if the smallest p is at most alpha over the number of methods.
        verdicts = verdicts_at(runs, shape.step, 0.0, ALPHA / methods, rules)
        if methods == 1:
            self._check(runs, verdicts, shape.step, 0.0, rules)
        hits = np.isin(verdicts, _false(shape)).any(-1)
        return self.row("false alarms", seeds, methods, name, rules, ALPHA, hits, seeds)

    def coverage(self, name: str, seeds: int, rules: Rules = "second") -> Row:
        """How often the interval contains the true difference."""
        runs, shape = self.draw(name, 1, seeds)
        low, high = bounds(moments_of(runs[:, 1] - runs[:, 0], shape.step), ALPHA, rules)
        hits = (low <= shape.truth) & (shape.truth <= high)
        return self.row("coverage", seeds, 1, name, rules, 1 - ALPHA, hits, seeds)

    def coverage_of_bca(self, name: str, seeds: int) -> Row:
        """The same for the BCa bootstrap interval, which is not used, for comparison."""
        runs, _ = self.draw(name, 1, seeds, 1000)
        generator, hits = np.random.default_rng(0), []
        for part in np.array_split(runs[:, 1] - runs[:, 0], 10):
            low, high = stats.bootstrap((part,), np.mean, axis=-1, n_resamples=999, rng=generator).confidence_interval
            hits += [(low <= 0) & (high >= 0)]
        return self.row("coverage of BCa", seeds, 1, name, "", 1 - ALPHA, np.concatenate(hits), seeds)

    def power(self, name: str, seeds: int, rules: Rules = "second") -> Row:
        """How often an effect is found that Student's t finds with a power of 80 % where differences are normal."""
        runs, shape = self.draw(name, 1, seeds)
        runs[:, 1:] += minimum_detectable_effect(1.0, seeds)
        verdicts = verdicts_at(runs, shape.step, 0.0, ALPHA, rules)
        self._check(runs, verdicts, shape.step, 0.0, rules)
        return self.row("power", seeds, 1, name, rules, 0.8, verdicts[:, 0] == "helps", seeds)

    def equivalence(self, name: str, seeds: int, rules: Rules = "second") -> Row:
        """How often a difference of delta, or a collapse that the seeds do not show, passes for none."""
        runs, shape = self.draw(name, 1, seeds)
        delta = POINT if shape.truth else 1.0
        runs[:, 1:] += 0.0 if shape.truth else delta
        verdicts = verdicts_at(runs, shape.step, delta, ALPHA, rules)
        self._check(runs, verdicts, shape.step, delta, rules)
        hits = verdicts[:, 0] == "no difference"
        return self.row('false "no difference"', seeds, 1, name, rules, ALPHA / 2, hits, seeds)

    def equivalence_power(self, name: str, seeds: int, rules: Rules = "second") -> Row:
        """How often a method without effect gets "no difference", with a delta of one deviation."""
        runs, shape = self.draw(name, 1, seeds)
        hits = verdicts_at(runs, shape.step, 1.0, ALPHA, rules)[:, 0] == "no difference"
        return self.row('right "no difference"', seeds, 1, name, rules, 0.8, hits, seeds)

    def until_decided(
        self, name: str, methods: int, effect: float = 0.0, delta: float = 0.0, rules: Rules = "second"
    ) -> Row:
        """False alarms; with an effect, how often it is found; with a delta as well, how often it passes for none."""
        shape, verdicts, used, _ = self._until_decided(name, methods, effect, delta, rules)
        if delta:
            wrong = (verdicts == "no difference").any(-1)
            return self.row('false "no difference"', UNTIL_DECIDED, methods, name, rules, ALPHA / 2, wrong, used)
        if not effect:
            alarms = np.isin(verdicts, _false(shape)).any(-1)
            return self.row("false alarms", UNTIL_DECIDED, methods, name, rules, ALPHA, alarms, used)
        stated = DESIGNS[rules].power_at_least(effect, 1.0, ALPHA / methods)
        return self.row("power", UNTIL_DECIDED, methods, name, rules, stated, (verdicts == "helps").ravel(), used)

    def inflation(self, effect: float, rules: Rules = "second") -> Row:
        """The mean estimate of studies that say "helps", as a multiple of the true effect."""
        _, verdicts, used, means = self._until_decided("normal", 1, effect, 0.0, rules)
        helps = verdicts == "helps"
        ratio = means[helps] / effect
        name = f"normal, effect {effect:g}"
        error = float(ratio.std() / math.sqrt(max(1, len(ratio))))
        quantity = "estimate at the stop / effect"
        row = self.row(quantity, UNTIL_DECIDED, 1, name, rules, 1.0, helps.ravel(), used[helps])
        return row._replace(measured=float(ratio.mean()), error=error)

    def _until_decided(
        self, name: str, methods: int, effect: float, delta: float, rules: Rules
    ) -> tuple[Shape, Array, Array, Array]:
        design = DESIGNS[rules]
        runs, shape = self.draw(name, methods, design.max_seeds, max(500, self.studies // 2))
        runs[:, 1:] += effect
        verdicts, used, means = until_decided(runs, shape.step, delta, rules)
        for study, verdict, seeds in zip(runs[:CHECKED], verdicts, used, strict=False):
            for n in set(seeds.tolist()):
                at_stop = np.array(judged(study[:, :n], shape.step, delta, rules, design))
                stops = seeds == n
                assert at_stop[stops].tolist() == verdict[stops].tolist()
        return shape, verdicts, used, means

    def population(self, items: int, seeds: int, rules: Rules) -> Row:
        """False alarms about the population of test examples, of a method that differs on single examples alone."""
        generator = np.random.default_rng([self.seed, items, seeds])
        hits = []
        for _ in range(min(2000, self.studies)):
            differences = crossed(generator, items, seeds)
            of_seeds = differences.mean(1)
            if rules == "first":
                low, high = bounds(moments_of(of_seeds[None], 1 / items), ALPHA, rules)
                hits.append(bool(low[0] > 0 or high[0] < 0))
            else:
                noise = {"a": items_of(differences)}
                of = judge_family(
                    {"a": dict(enumerate(of_seeds.tolist()))}, dict.fromkeys(range(seeds), 0.0), Question(0.0),
                    1 / items, items=noise, collapsed={},
                )["a"]  # fmt: skip
                hits.append(of.verdict in ("helps", "hurts"))
        name = f"test set of {items} examples"
        return self.row("false alarms about other test sets", seeds, 1, name, rules, ALPHA, np.array(hits), seeds)

    def table(self) -> Iterator[Row]:
        """All lines."""
        for name in SHAPES:
            for rules in RULES:
                yield from self._of_shape(name, rules)
        for rules in RULES:
            for seeds in (*SEEDS, 40):
                yield self.equivalence_power("normal", seeds, rules)
            for effect in (0.25, 0.5, 0.75, 1.0, 1.5):
                yield self.inflation(effect, rules)
            for items in (50, 277):
                for seeds in (5, 10, 40):
                    yield self.population(items, seeds, rules)
        for name in SKEWED:
            for seeds in SEEDS:
                for methods in METHODS:
                    yield self.best_power(name, methods, seeds)
        for name in ("normal", *SKEWED):
            for seeds in SEEDS:
                yield self.coverage_of_bca(name, seeds)

    def _of_shape(self, name: str, rules: Rules) -> Iterator[Row]:
        collapses = "collapse" in name
        for seeds in SEEDS:
            for methods in METHODS:
                yield self.false_alarms(name, methods, seeds, rules)
            yield self.coverage(name, seeds, rules)
            yield self.equivalence(name, seeds, rules)
            if not collapses:
                yield self.power(name, seeds, rules)
        for methods in METHODS:
            yield self.until_decided(name, methods, rules=rules)
        effect, delta = (0.0, POINT) if SHAPES[name].truth else (EFFECT, EFFECT)
        yield self.until_decided(name, 1, effect, delta, rules)
        if not collapses:
            yield self.until_decided(name, 1, EFFECT, rules=rules)

    def best_power(self, name: str, methods: int, seeds: int) -> Row:
        """An upper bound for the power of any test that holds for differences of a skewed shape too.

        The effect is that of `power`, at the level of one of several methods. To hold is: at most 5.5 % of false alarms
        where differences have this shape, on either side, and 5 % where they are normal, with the same test for each
        method. By the lemma of Neyman and Pearson no test of a mixture of both has more power than the ratio of
        densities. It may not depend on the unknown scale, so that only directions count.
        """
        of_normal, of_skewed = ALPHA / methods, 1 - (1 - MOST_ALARMS) ** (1 / methods)
        effect, size = minimum_detectable_effect(1.0, seeds, alpha=of_normal), (min(20_000, self.studies), seeds)
        generator = np.random.default_rng([self.seed, methods, seeds, *name.encode()])
        skewed, log_density = SKEWED[name]
        samples = [skewed(generator, size), generator.normal(size=size), generator.normal(effect, 1, size)]
        ratios = [
            _log_ratios(sample / np.linalg.norm(sample, axis=1, keepdims=True), effect, log_density)
            for sample in samples
        ]
        best = 1.0
        for share in np.linspace(0, 1, 21):
            of = [-np.logaddexp(np.log(share + 1e-12) - a, np.log(1 - share + 1e-12) - b) for a, b in ratios]
            weights = np.repeat([share, 1 - share], len(of[0]))
            values = np.concatenate(of[:2])
            order = np.argsort(-values)
            level = share * of_skewed + (1 - share) * of_normal
            place = np.searchsorted(np.cumsum(weights[order]) / len(of[0]), level)
            best = min(best, float(np.mean(of[2] >= values[order[place]])))
        hits = np.arange(size[0]) < best * size[0]
        return self.row("most power of any test", seeds, methods, name, "", 0.8, hits, seeds)


def _false(shape: Shape) -> list[str]:
    """The verdicts that are wrong about a method without an effect, or one that collapses."""
    return ["helps"] if shape.truth else ["helps", "hurts"]


def crossed(generator: np.random.Generator, items: int, seeds: int) -> Array:
    """Differences of right answers, seeds × test examples, of a method without an effect in the population.

    Each example has a difficulty, and the method finds some easier and some harder.
    """
    difficulty = generator.normal(1.5, 3.0, items)
    change = generator.normal(0.0, 1.5, items)
    probabilities = special.expit(np.stack([difficulty - change / 2, difficulty + change / 2]))
    is_correct = generator.random((2, seeds, items)) < probabilities[:, None]
    return is_correct[1].astype(float) - is_correct[0]


def _log_ratios(directions: Array, effect: float, log_density: LogDensity) -> tuple[Array, Array]:
    """Log density of the direction of normal differences with an effect, minus that of skewed and of normal ones."""
    of_effect = _log_normal(directions, effect)
    return of_effect - _log_skewed(directions, log_density), of_effect - _log_normal(directions, 0.0)


def log_exponential(values: Array) -> Array:
    return np.where(values > -1, -values - 1, -np.inf)


def log_lognormal(values: Array) -> Array:
    inside = values * math.sqrt((math.e - 1) * math.e) + math.exp(0.5)
    with np.errstate(all="ignore"):
        logs = np.log(inside)
    constant = math.log((math.e - 1) * math.e) / 2 - math.log(2 * math.pi) / 2
    return np.where(inside > 0, constant - logs - logs**2 / 2, -np.inf)


SKEWED: dict[str, tuple[Draw, LogDensity]] = {
    "exponential": (exponential, log_exponential),
    "lognormal": (lognormal, log_lognormal),
}


def _log_skewed(directions: Array, log_density: LogDensity) -> Array:
    """Log density of the directions of skewed differences of either sign, by integration over their length."""
    n = directions.shape[1]
    steps = (np.arange(LENGTHS) + 0.5) / LENGTHS
    parts = []
    for signed in np.split(np.concatenate([directions, -directions]), 2):
        most = np.minimum(1 / np.maximum(-signed.min(1), 1e-9), 60)  # no difference is below -1
        lengths = most[:, None] * steps
        log = (n - 1) * np.log(lengths) + sum(log_density(lengths * signed[:, [place]]) for place in range(n))
        parts.append(special.logsumexp(log, axis=1) + np.log(most / LENGTHS))
    return np.logaddexp(*parts) - math.log(2)


def _log_normal(directions: Array, effect: float) -> Array:
    n = directions.shape[1]
    lengths = np.linspace(0.02, math.sqrt(n) * (effect + 3) + 4, 500)
    parts = []
    for sign in (1, -1):
        along = lengths * sign * effect * directions.sum(1)[:, None]
        log = (n - 1) * np.log(lengths) - (lengths**2 - 2 * along + n * effect**2) / 2
        parts.append(special.logsumexp(log, axis=1) + math.log(lengths[1] - lengths[0]))
    return np.logaddexp(*parts) - n / 2 * math.log(2 * math.pi) - math.log(2)


def write(rows: list[Row], path: Path) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(Row._fields)
        writer.writerows([f"{value:.4g}" if isinstance(value, float) else value for value in row] for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=40_000, help="number of studies for each line")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    started, rows = time.perf_counter(), []
    for row in Simulation(options.studies, options.seed).table():
        rows.append(row)
        print(
            f"{row.quantity:30} {row.seeds:26} {row.methods} method(s)  {row.differences:26} {row.rules:6} "
            f"stated {row.stated:6.1%}  measured {row.measured:6.1%} ± {row.error:.1%}  {row.mean_seeds:4.1f} seeds",
            flush=True,
        )
    write(rows, options.output)
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
