"""The rules of the second edition: what an interval must contain, and when a verdict is withheld.

The first edition judged by Student's t over seeds alone. It went wrong where differences are skewed, where few test
examples decide, and where runs collapse that no seed of the study showed (docs/statistics.md). Three rules mend that:

Skew        The interval is widened to that of the skew-corrected t (Johnson 1978; in the monotone form of Hall 1992).
Items       A second interval contains the noise of the test examples too, as if another test set had been drawn. The
            verdict follows from it.
Collapse    "No difference" needs a bound on the share of runs that collapse; "helps" needs it where more runs of the
            method collapsed than of the baseline.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from .paired import Floats, Interval, Pairs, Values, is_finite, standard_error

SKEW_FACTOR = 1.5  # the skewness of few values is too small on average
SKEW_FACTOR_OF_LOOKS = 2.0  # at a level far out, where studies go on until they are decided
FAR = 10.0  # times the median distance from the median: a run that is further below has collapsed
MOST_COLLAPSED = 0.1  # the largest share of runs that may collapse where "no difference" is said
_BOUND_CONFIDENCES = {45: 0.95, 80: 0.975}  # most seeds -> confidence of the bound, at every look; 0.99 beyond
_SMALLEST_LEVEL = 1e-100


# ---- the interval ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Items:
    """The noise in a difference that more seeds do not make smaller, as that of the test examples.

    Attributes:
        error: Its standard error.
        degrees: Its degrees of freedom.
        source: What it comes from.
    """

    error: float
    degrees: int
    source: str = "test examples"

    def plus(self, other: Items | None) -> Items:
        """Return the noise of both together, with degrees of freedom by Welch and Satterthwaite."""
        if other is None:
            return self
        squares = [(of.error**2, of.degrees) for of in (self, other)]
        total = sum(square for square, _ in squares)
        weights = sum(square**2 / degrees for square, degrees in squares)
        degrees = math.floor(total**2 / weights) if weights else min(self.degrees, other.degrees)
        same = self.source == other.source
        return Items(math.sqrt(total), degrees, self.source if same else f"{self.source} and {other.source}")


@dataclass(frozen=True)
class Estimate:
    """A mean difference whose intervals, at any level, decide everything.

    Attributes:
        mean: The mean difference.
        error: Its standard error over seeds.
        degrees: Degrees of freedom, one fewer than seeds.
        skew: The skewness that counts, divided by √n.
        items: The noise that more seeds do not make smaller; None = it is not known.
    """

    mean: float
    error: float
    degrees: int
    skew: float = 0.0
    items: Items | None = None

    def over_seeds(self, level: float) -> Interval:
        """Return the interval of confidence 1 - `level` for other seeds with the same test examples."""
        t = -float(special.stdtrit(self.degrees, level / 2))
        low, high = -t, t
        if self.skew:
            low, high = min(low, self._corrected(-t)), max(high, self._corrected(t))
        return self.mean - high * self.error, self.mean - low * self.error

    def _corrected(self, t: float) -> float:
        """Return the t value that the skew correction turns into `t` (the inverse of Hall's cubic)."""
        return 3 / self.skew * (float(np.cbrt(1 + self.skew * (t - self.skew / 6))) - 1)

    def interval(self, level: float) -> Interval:
        """Return the widest interval: for other seeds and, where their noise is known, other test examples.

        The squared distances from the mean add up, on each side (Zou and Donner 2008).
        """
        low, high = self.over_seeds(level)
        if self.items is None:
            return low, high
        reach = self.item_reach(level)
        return self.mean - math.hypot(self.mean - low, reach), self.mean + math.hypot(high - self.mean, reach)

    def item_reach(self, level: float) -> float:
        """Return half the width of an interval that has the noise of the test examples alone."""
        return 0.0 if self.items is None else -float(special.stdtrit(self.items.degrees, level / 2)) * self.items.error

    def p(self) -> float:
        """Two-sided p: the smallest level at which the interval leaves 0 out."""
        return _p(self)

    def p_within(self, delta: float) -> float:
        """P of the test that the true difference is within ±delta: half the smallest level whose interval is."""
        return _p_within(self, delta)


@lru_cache(maxsize=4096)  # a sequential study repeats the same looks
def _p(estimate: Estimate) -> float:
    if estimate.mean > 0:
        return _smallest_level(lambda level: estimate.interval(level)[0])
    return _smallest_level(lambda level: -estimate.interval(level)[1])


@lru_cache(maxsize=4096)
def _p_within(estimate: Estimate, delta: float) -> float:
    return _smallest_level(lambda level: delta - max(map(abs, estimate.interval(level)))) / 2 if delta else 0.5


def _smallest_level(excess: Callable[[float], float]) -> float:
    """Return the level from which on `excess`, which increases with the level, is above 0."""
    from scipy.optimize import brentq

    if excess(_SMALLEST_LEVEL) > 0:
        return 0.0
    if excess(1.0) <= 0:
        return 1.0
    return math.exp(brentq(lambda log: excess(math.exp(log)), math.log(_SMALLEST_LEVEL), 0.0, xtol=1e-9))


def estimate_of(
    pairs: Pairs, items: Items | None = None, *, is_corrected: bool = True, always: bool = False
) -> Estimate:
    """Return the estimate from paired differences.

    Args:
        pairs: At least two pairs.
        items: The noise of the test examples.
        is_corrected: Whether a skewness widens the interval; not by the rules of the first edition.
        always: Whether any skewness does, and by more, as for every look at a study that runs until it is decided.
            Otherwise it must be above `least_skew`.
    """
    n, mean = len(pairs), float(pairs.differences.mean())
    error = standard_error(pairs.differences, pairs.resolution)
    error = 0.0 if error <= 1e-12 * abs(mean) else error
    skew = skew_of(pairs.differences, always) if is_corrected and error else 0.0
    return Estimate(mean, error, n - 1, skew / math.sqrt(n), items)


def skew_of(differences: Floats, always: bool = False) -> float:
    """Return the skewness that counts in `estimate_of`."""
    n, centred = len(differences), differences - np.mean(differences)
    variance = float(np.mean(centred**2))
    if n < 3 or variance <= 1e-24 * max(1e-300, float(np.abs(differences).max())) ** 2:
        return 0.0
    skewness = float(np.mean(centred**3)) / variance**1.5
    if always:
        return SKEW_FACTOR_OF_LOOKS * skewness
    return SKEW_FACTOR * skewness if abs(skewness) > least_skew(n) else 0.0


def least_skew(n: int) -> float:
    """Return the skewness of n differences that counts: two of its standard errors, or 25/n of them from 13 on.

    With less, normal differences would lose more than 3 points of power.

    Args:
        n: At least two.
    """
    return min(2.0, 25 / n) * math.sqrt(6 * (n - 2) / ((n + 1) * (n + 3)))


def items_of(differences: Floats) -> Items | None:
    """Return the noise of the test examples, from the difference of each seed on each of them.

    Seeds and test examples are crossed: the mean over both varies with the seeds, with the examples, and with both
    together. This is the part of the examples (analysis of variance); the rest is in the differences of the seeds.

    Args:
        differences: Seeds × test examples (or groups of them), at least two of each.
    """
    seeds, count = differences.shape
    if seeds < 2 or count < 2:
        return None
    of_items = differences.mean(0)
    rest = differences - differences.mean(1, keepdims=True) - of_items + differences.mean()
    interaction = float((rest**2).sum()) / ((seeds - 1) * (count - 1))
    variance = max(0.0, float(of_items.var(ddof=1)) - interaction / seeds)
    return Items(math.sqrt(variance / count), count - 1)


# ---- collapse -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Collapses:
    """How many runs collapsed, of the seeds that a method and the baseline share.

    Attributes:
        of: The number of seeds.
        method: Collapsed runs of the method.
        baseline: Collapsed runs of the baseline.
        confidence: That of the bounds.
    """

    of: int
    method: int
    baseline: int
    confidence: float = 0.95

    @property
    def bound(self) -> float:
        """The largest share of the method's runs that may collapse, with this confidence."""
        return collapse_bound(self.method, self.of, self.confidence)

    @property
    def bound_of_baseline(self) -> float:
        """The same for the baseline."""
        return collapse_bound(self.baseline, self.of, self.confidence)

    def withholds(self, verdict: str) -> bool:
        """Return whether a verdict needs a smaller bound than these seeds give."""
        if verdict == "no difference":
            return max(self.bound, self.bound_of_baseline) > MOST_COLLAPSED
        return verdict == "helps" and self.method > self.baseline and self.bound > MOST_COLLAPSED

    def plus(self, other: Collapses | None) -> Collapses:
        """Return the count of both together."""
        if other is None:
            return self
        counts = self.of + other.of, self.method + other.method, self.baseline + other.baseline
        return Collapses(*counts, max(self.confidence, other.confidence))

    def more_seeds(self) -> int | None:
        """Return how many more seeds, without a further collapse, give the bound that "no difference" needs.

        None = so many runs collapse that no number of seeds will.
        """
        worst, more = max(self.method, self.baseline), 0
        if worst > MOST_COLLAPSED * self.of:
            return None
        while collapse_bound(worst, self.of + more, self.confidence) > MOST_COLLAPSED:
            more += 1
        return more


def collapse_bound(collapsed: int, runs: int, confidence: float = 0.95) -> float:
    """Return the upper limit for the share of runs that collapse (Clopper and Pearson 1934).

    Without a collapse in n runs it is about 3 / n with a confidence of 95 %, the rule of three.
    """
    return 1.0 if collapsed >= runs else float(special.betaincinv(collapsed + 1, runs - collapsed, confidence))


def bound_confidence(max_seeds: int | None) -> float:
    """Return the confidence of a bound on collapses with which it holds at every look with 95 %.

    Args:
        max_seeds: The largest number of seeds of a study with looks; None = there is one look.
    """
    return next((of for most, of in _BOUND_CONFIDENCES.items() if (max_seeds or 0) <= most), 0.99)


def collapsed_seeds(
    values: Values, baseline: Values, greater_is_better: bool = True, resolution: float = 0.0
) -> set[Hashable]:
    """Return the seeds in which the run of a method collapsed.

    A run has collapsed if it failed, or if it is far worse than the median of its method: more than ten times as far as
    half of the runs are (of the method or the baseline, whichever vary more). Where the most frequent answer is known,
    a run that does not beat it has collapsed too (`studies/analysis/learned.py`).

    Args:
        values: Seed -> value of the method.
        baseline: The same for the baseline.
        greater_is_better: Whether a larger value is better.
        resolution: The step in which the values move.
    """
    failed = {seed for seed, value in values.items() if not is_finite(value)}
    known, others = (np.array([v for v in of.values() if is_finite(v)], float) for of in (values, baseline))
    if not len(known):
        return failed
    limit = FAR * max(resolution, *(float(np.median(np.abs(of - np.median(of)))) for of in (known, others) if len(of)))
    middle, sign = float(np.median(known)), 1 if greater_is_better else -1
    below = {seed for seed, v in values.items() if v is not None and is_finite(v) and sign * (middle - v) > limit > 0}
    return failed | below


def count_collapses(
    values: Values,
    baseline: Values,
    collapsed: Collection[Hashable],
    of_baseline: Collection[Hashable],
    confidence: float = 0.95,
) -> Collapses:
    """Count the collapsed runs in the seeds that a method and the baseline share.

    Args:
        values: Seed -> value of the method.
        baseline: The same for the baseline.
        collapsed: The seeds in which the method collapsed.
        of_baseline: The seeds in which the baseline did.
        confidence: That of the bounds.
    """
    shared = [seed for seed in baseline if seed in values]
    return Collapses(
        len(shared), sum(seed in collapsed for seed in shared), sum(seed in of_baseline for seed in shared), confidence
    )
