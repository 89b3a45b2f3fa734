"""Simulated studies: are error rates, power and intervals as stated? `python tests/scripts/simulate_statistics.py`

The table is printed and written to studies/results/statistics.csv. Each study has the paired differences of one
method or of four, with a standard deviation of 1. The four methods of a study are compared with the same runs of the
baseline, so that their differences are correlated, as in a real study. All studies of a line are computed at once; the
first ones are judged by `judge_family` too, which must agree.
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
from attendrop.lab.statistics.sequential import SequentialDesign
from attendrop.lab.statistics.verdict import Question, judge_family

RESULTS = Path(__file__).parents[2] / "studies" / "results" / "statistics.csv"
SEEDS = (5, 10, 20)
METHODS = (1, 4)
ALPHA = 0.05
DESIGN = SequentialDesign(max_seeds=40)
EFFECT = 0.5  # the planted effect of studies that go on until they are decided, in standard deviations
CHECKED = 3  # studies of each line that `judge_family` judges too
Array = np.ndarray[Any, np.dtype[Any]]
Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


class Row(NamedTuple):
    """One line of the table. `error` is the standard error of the simulation; `mean_seeds`, how many seeds were run."""

    quantity: str
    seeds: str
    methods: int
    differences: str
    studies: int
    stated: float
    measured: float
    error: float
    mean_seeds: float


# ---- differences ----------------------------------------------------------------------------------------------


class Differences(NamedTuple):
    """How differences are drawn (studies × methods × seeds), and the step in which they move."""

    draw: Draw
    step: float = 0.0


def of_runs(draw: Draw, step: float = 0.0) -> Differences:
    """Differences between runs of the methods and runs of the same baseline; `draw` gives runs with deviation 1."""
    deviation = math.sqrt(1 + step**2 / 6)  # of the rounded differences

    def differences(generator: np.random.Generator, size: tuple[int, ...]) -> Array:
        studies, methods, seeds = size
        runs = draw(generator, (studies, methods + 1, seeds)) / math.sqrt(2)
        runs = np.round(runs / step) * step if step else runs
        return (runs[:, 1:] - runs[:, :1]) / deviation

    return Differences(differences, step / deviation)


def normal(generator: np.random.Generator, size: tuple[int, ...]) -> Array:
    return generator.normal(size=size)


def skewed(shape: float) -> Draw:
    """Values with a long lower tail: a gamma distribution with skewness -2 / √shape."""
    return lambda generator, size: (shape - generator.gamma(shape, size=size)) / math.sqrt(shape)


def with_collapses(generator: np.random.Generator, size: tuple[int, ...]) -> Array:
    """Differences of which one in ten is far below: the method fails to train in one seed of ten."""
    values = generator.normal(size=size) - 8 * ((generator.random(size) < 0.1) - 0.1)
    return values / math.sqrt(1 + 64 * 0.09)


# A method without effect gives runs with the distribution of the baseline's, so that the differences are symmetric.
DIFFERENCES = {
    "normal": of_runs(normal),
    "skewed runs": of_runs(skewed(2)),
    "heavy-tailed runs": of_runs(lambda generator, size: generator.standard_t(3, size) / math.sqrt(3)),
    "in steps of 0.24": of_runs(normal, 0.24),  # accuracy on 277 examples, deviation of the differences 1.5 points
    "in steps of 1": of_runs(normal, 1.0),
}
# The differences themselves are skewed: the method changes more than the mean.
HARD = {
    "skewness -0.5": Differences(skewed(16)),
    "skewness -1": Differences(skewed(4)),
    "skewness -2": Differences(skewed(1)),
    "one in ten collapses": Differences(with_collapses),
}


# ---- studies --------------------------------------------------------------------------------------------------


class Figures(NamedTuple):
    """Mean, standard error and p of the t test of many studies."""

    means: Array
    errors: Array
    p: Array


def figures_of(differences: Array, step: float) -> Figures:
    n = differences.shape[-1]
    means = differences.mean(-1)
    errors = np.maximum(differences.std(-1, ddof=1), step / 2) / math.sqrt(n)
    return Figures(means, errors, 2 * special.stdtr(n - 1, -np.abs(means) / errors))


def running_figures(differences: Array, step: float, counts: Array) -> Figures:
    """The same after each of `counts` seeds, in a new last axis."""
    means = np.cumsum(differences, -1)[..., counts - 1] / counts
    squares = np.cumsum(differences**2, -1)[..., counts - 1] / counts
    variances = np.maximum(squares - means**2, 0) * counts / (counts - 1)
    errors = np.maximum(np.sqrt(variances), step / 2) / np.sqrt(counts)
    return Figures(means, errors, 2 * special.stdtr(counts - 1, -np.abs(means) / np.maximum(errors, 1e-300)))


def until_decided(differences: Array, step: float, delta: float, design: SequentialDesign) -> tuple[Array, Array]:
    """Verdict ("helps", "hurts", "no difference", "undecided") and number of seeds of each method in each study.

    There is a look after each seed, and each method stops when it is decided.
    """
    _, methods, most = differences.shape
    counts = np.arange(design.first, most + 1)
    levels = np.array([design.level(int(n), ALPHA / methods) for n in counts])
    figures = running_figures(differences, step, counts)
    reach = special.stdtrit(counts - 1, 1 - levels / 2) * figures.errors
    is_within = np.abs(figures.means) + reach < delta
    is_decided = is_within | (figures.p <= levels)
    first = np.where(is_decided.any(-1), is_decided.argmax(-1), len(counts) - 1)[..., None]
    within, mean, decided = (np.take_along_axis(of, first, -1)[..., 0] for of in (is_within, figures.means, is_decided))
    verdicts = np.where(within, "no difference", np.where(mean > 0, "helps", "hurts"))
    return np.where(decided, verdicts, "undecided"), counts[first[..., 0]]


def verdicts_of(study: Array, step: float, delta: float, design: SequentialDesign | None = None) -> list[str]:
    """The verdicts of `judge_family` on one study (methods × seeds)."""
    methods = {f"method {place}": dict(enumerate(of.tolist())) for place, of in enumerate(study)}
    baseline = dict.fromkeys(range(study.shape[-1]), 0.0)
    return [of.verdict for of in judge_family(methods, baseline, Question(delta), step, design).values()]


# ---- the table ------------------------------------------------------------------------------------------------


class Simulation:
    """Runs the studies of each line of the table, with a generator of its own."""

    def __init__(self, studies: int, seed: int = 0) -> None:
        self.studies, self.seed = studies, seed

    def draw(self, name: str, methods: int, seeds: int) -> tuple[Array, float]:
        kind = (DIFFERENCES | HARD)[name]
        generator = np.random.default_rng([self.seed, methods, seeds, *name.encode()])
        return kind.draw(generator, (self.studies, methods, seeds)), kind.step

    def row(
        self, quantity: str, seeds: int | str, methods: int, name: str, stated: float, hits: Array, used: Any
    ) -> Row:
        share = float(np.mean(hits))
        error = math.sqrt(max(share * (1 - share), stated * (1 - stated)) / len(hits))
        return Row(quantity, str(seeds), methods, name, len(hits), stated, share, error, float(np.mean(used)))

    def false_alarms(self, name: str, methods: int, seeds: int) -> Row:
        """How often a study with no effect says "helps" or "hurts" of any method."""
        differences, step = self.draw(name, methods, seeds)
        # By Holm's correction there is an alarm if the smallest p is at most alpha over the number of methods.
        hits = figures_of(differences, step).p.min(-1) <= ALPHA / methods
        for study, hit in zip(differences[:CHECKED], hits, strict=False):
            assert any(verdict in ("helps", "hurts") for verdict in verdicts_of(study, step, 0.0)) == hit
        return self.row("false alarms", seeds, methods, name, ALPHA, hits, seeds)

    def coverage(self, name: str, seeds: int) -> Row:
        """How often the interval contains the true difference."""
        figures = figures_of(*self.draw(name, 1, seeds))
        hits = np.abs(figures.means) <= special.stdtrit(seeds - 1, 1 - ALPHA / 2) * figures.errors
        return self.row("coverage", seeds, 1, name, 1 - ALPHA, hits, seeds)

    def coverage_of_bca(self, name: str, seeds: int) -> Row:
        """The same for the BCa bootstrap interval, which is not used, for comparison."""
        differences = self.draw(name, 1, seeds)[0][:1000, 0]
        generator, hits = np.random.default_rng(0), []
        for part in np.array_split(differences, max(1, len(differences) // 100)):
            low, high = stats.bootstrap((part,), np.mean, axis=-1, n_resamples=999, rng=generator).confidence_interval
            hits += [(low <= 0) & (high >= 0)]
        return self.row("coverage of BCa", seeds, 1, name, 1 - ALPHA, np.concatenate(hits), seeds)

    def power(self, name: str, seeds: int) -> Row:
        """How often an effect is found that is stated to be found with a power of 80 %."""
        differences, step = self.draw(name, 1, seeds)
        differences = differences + minimum_detectable_effect(1.0, seeds)
        figures = figures_of(differences, step)
        hits = ((figures.p <= ALPHA) & (figures.means > 0))[:, 0]
        for study, hit in zip(differences[:CHECKED], hits, strict=False):
            assert (verdicts_of(study, step, 0.0) == ["helps"]) == hit
        return self.row("power", seeds, 1, name, 0.8, hits, seeds)

    def equivalence(self, name: str, seeds: int, delta: float = 1.0) -> Row:
        """How often a difference of delta passes for none."""
        differences, step = self.draw(name, 1, seeds)
        figures = figures_of(differences + delta, step)
        reach = special.stdtrit(seeds - 1, 1 - ALPHA / 2) * figures.errors
        hits = (np.abs(figures.means) + reach < delta)[:, 0]
        for study, hit in zip(differences[:CHECKED], hits, strict=False):
            assert (verdicts_of(study + delta, step, delta) == ["no difference"]) == hit
        return self.row('false "no difference"', seeds, 1, name, ALPHA / 2, hits, seeds)

    def until_decided(self, name: str, methods: int, effect: float = 0.0, delta: float = 0.0) -> Row:
        """False alarms; with an effect, how often it is found; with a delta as large, how often it passes for none."""
        differences, step = self.draw(name, methods, DESIGN.max_seeds)
        differences = differences + effect
        verdicts, used = until_decided(differences, step, delta, DESIGN)
        for study, verdict, seeds in zip(differences[:CHECKED], verdicts, used, strict=False):
            for n in set(seeds.tolist()):
                at_stop = np.array(verdicts_of(study[:, :n], step, delta, DESIGN))
                before = np.array(verdicts_of(study[:, : n - 1], step, delta, DESIGN))
                stops = seeds == n
                assert at_stop[stops].tolist() == verdict[stops].tolist()
                assert n == DESIGN.first or set(before[stops]) == {"undecided"}
        label = f"until decided, at most {DESIGN.max_seeds}"
        if not effect:
            alarms = np.isin(verdicts, ["helps", "hurts"]).any(-1)
            return self.row("false alarms", label, methods, name, ALPHA, alarms, used)
        if delta:
            wrong = (verdicts == "no difference").any(-1)
            return self.row('false "no difference"', label, methods, name, ALPHA / 2, wrong, used)
        stated = DESIGN.power_at_least(effect, 1.0, ALPHA / methods)
        return self.row("power", label, methods, name, stated, (verdicts == "helps").ravel(), used)

    def table(self) -> Iterator[Row]:
        """All lines."""
        for name in DIFFERENCES:
            for seeds in SEEDS:
                for methods in METHODS:
                    yield self.false_alarms(name, methods, seeds)
                yield self.coverage(name, seeds)
                yield self.power(name, seeds)
                yield self.equivalence(name, seeds)
            for methods in METHODS:
                yield self.until_decided(name, methods)
            yield self.until_decided(name, 1, EFFECT)
            yield self.until_decided(name, 1, EFFECT, delta=EFFECT)
        for name in HARD:
            for seeds in SEEDS:
                yield self.coverage(name, seeds)
        for name in ("normal", "skewed runs", "skewness -2"):
            for seeds in SEEDS:
                yield self.coverage_of_bca(name, seeds)


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
            f"{row.quantity:22} {row.seeds:26} {row.methods} method(s)  {row.differences:20} stated {row.stated:6.1%}  "
            f"measured {row.measured:6.1%} ± {row.error:.1%}  {row.mean_seeds:4.1f} seeds",
            flush=True,
        )
    write(rows, options.output)
    print(f"{time.perf_counter() - started:.0f} s")


if __name__ == "__main__":
    main()
