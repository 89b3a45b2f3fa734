"""The difference of two methods that ran with the same seeds: its interval, tests, and power.

The standard deviation behind the interval, the t test and the test of equivalence is never taken below half a step of
the score (`resolution`). An accuracy on 50 examples moves in steps of 0.02, and five equal differences would otherwise
pass for an exactly known difference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from scipy import special

Values = Mapping[Hashable, float | None]  # seed -> value; None or a value that is not finite is a failed run
Interval = tuple[float, float]
Floats = npt.NDArray[np.float64]

POWER = 0.8
EXACT_UP_TO = 40  # pairs; the sign-flip test is a Monte Carlo test beyond
_MOST_SEEDS = 100_000


@dataclass(frozen=True)
class Pairs:
    """The seeds that two methods share.

    Attributes:
        differences: Value of the method minus value of the baseline, in the order of the baseline's seeds.
        failed: Number of seeds excluded because a run failed or gave a non-finite value.
        unpaired: Number of seeds excluded because only one of the two has run.
        resolution: The step in which the values move, 0 if they do not move in steps.
    """

    differences: Floats
    failed: int
    unpaired: int
    resolution: float

    def __len__(self) -> int:
        return len(self.differences)


def make_pairs(values: Values, baseline: Values, resolution: float | None = None) -> Pairs:
    """Pair the values of a method with those of the baseline.

    Args:
        values: Seed -> value of the method. None or a value that is not finite stands for a failed run.
        baseline: The same for the baseline.
        resolution: The step in which the values move, such as 1/277 for an accuracy on 277 examples. None = inferred
            from the values.
    """
    shared = [seed for seed in baseline if seed in values]
    whole = [seed for seed in shared if is_finite(values[seed]) and is_finite(baseline[seed])]
    one, other = (np.array([of[seed] for seed in whole], float) for of in (values, baseline))
    return Pairs(
        differences=one - other,
        failed=len(shared) - len(whole),
        unpaired=len(values) + len(baseline) - 2 * len(shared),
        resolution=find_resolution(np.concatenate([one, other])) if resolution is None else resolution,
    )


def is_finite(value: float | None) -> bool:
    """Return whether a run gave a finite value."""
    return value is not None and math.isfinite(value)


def find_resolution(values: Floats) -> float:
    """Return the step in which values move: the smallest gap between two of them if all gaps are multiples of it, or 0.

    Args:
        values: The values, of both methods.
    """
    ordered = np.sort(values)
    gaps = np.diff(ordered)
    gaps = gaps[gaps > 1e-9 * max(1e-300, np.abs(ordered).max(initial=0.0))]
    if not len(gaps):
        return 0.0
    steps = gaps / gaps.min()
    return float(gaps.min()) if np.all(np.abs(steps - np.round(steps)) < 1e-3) else 0.0


# ---- interval and tests ---------------------------------------------------------------------------------------


def deviation_of(differences: Floats, resolution: float = 0.0) -> float:
    """Return the standard deviation of the differences (with n - 1), and at least half a step.

    Args:
        differences: At least two differences.
        resolution: The step in which the values move.
    """
    return max(float(np.std(differences, ddof=1)), resolution / 2)


def t_interval(differences: Floats, confidence: float = 0.95, resolution: float = 0.0) -> Interval:
    """Return the confidence interval of the mean difference by Student's t.

    It is the interval of the verdicts: it alone of the intervals tried has its nominal coverage at 5, 10 and 20 seeds
    (docs/statistics.md).

    Args:
        differences: At least two differences.
        confidence: How often the interval contains the true difference.
        resolution: The step in which the values move.
    """
    mean, error = float(np.mean(differences)), standard_error(differences, resolution)
    reach = float(special.stdtrit(len(differences) - 1, (1 + confidence) / 2)) * error
    return mean - reach, mean + reach


def standard_error(differences: Floats, resolution: float = 0.0) -> float:
    """Return the standard error of the mean difference, see `deviation_of`."""
    return deviation_of(differences, resolution) / math.sqrt(len(differences))


def t_test(differences: Floats, against: float = 0.0, resolution: float = 0.0) -> float:
    """Two-sided p of the t test: below 1 - confidence if and only if `t_interval` excludes `against`.

    Args:
        differences: At least two differences.
        against: The mean difference that is tested.
        resolution: The step in which the values move.
    """
    return min(1.0, 2 * _tail(abs(float(np.mean(differences)) - against), differences, resolution))


def _tail(distance: float, differences: Floats, resolution: float) -> float:
    """Return the probability of a t value above `distance` in standard errors.

    Differences without deviation give 0, 1/2 or 1.
    """
    error = standard_error(differences, resolution)
    if error <= 1e-12 * abs(distance) or error == 0:
        return 0.5 * (1 - math.copysign(1.0, distance)) if distance else 0.5
    return float(special.stdtr(len(differences) - 1, -distance / error))


def equivalence_test(differences: Floats, delta: float, resolution: float = 0.0) -> float:
    """P of the two one-sided t tests (TOST): a small value shows that the true difference is within ±delta.

    Args:
        differences: At least two differences.
        delta: The smallest difference that matters.
        resolution: The step in which the values move.
    """
    return _tail(delta - abs(float(np.mean(differences))), differences, resolution)


def sign_flip_test(differences: Floats, draws: int = 100_000, seed: int = 0) -> float:
    """Two-sided p of the sign-flip test: how many of all 2^n choices of signs give a mean at least as far from 0.

    Without an effect, either sign of each difference is equally likely, whatever its distribution. The test
    is exact up to 40 pairs; the smallest p of n pairs is 2 / 2^n. With more pairs, signs are drawn.

    Args:
        differences: The differences.
        draws: Number of choices of signs that are drawn if there are more than 40 pairs.
        seed: Seed of these draws.
    """
    return _sign_flip_test(tuple(np.asarray(differences, float).tolist()), draws, seed)


@lru_cache(maxsize=4096)  # a sequential study repeats the same looks
def _sign_flip_test(differences: tuple[float, ...], draws: int, seed: int) -> float:
    size = np.abs(np.array(differences))
    size = size[size > 0]  # a sign of 0 changes nothing
    least = abs(sum(differences)) - 1e-9 * float(size.sum())  # differences in steps give equal sums, up to rounding
    if not len(size) or least <= 0:
        return 1.0
    if len(size) <= EXACT_UP_TO:
        return min(1.0, 2 * _share_of_sums(size, least))
    signs = np.random.default_rng(seed).integers(0, 2, (draws, len(size)), dtype=np.int8) * 2 - 1
    hits = int((np.abs(signs @ size) >= least).sum())
    return (hits + 1) / (draws + 1)


def _share_of_sums(size: Floats, least: float) -> float:
    """Return the share of all choices of signs whose sum is at least `least`.

    The sums of two halves are enumerated and joined.
    """
    one, other = _signed_sums(size[::2]), _signed_sums(size[1::2])
    below = np.searchsorted(other, least - one, side="left")
    return float((len(other) - below).sum()) / (len(one) * len(other))


def _signed_sums(size: Floats) -> Floats:
    """Return the sums of all choices of signs, sorted."""
    sums = np.zeros(1)
    for value in size:
        sums = np.sort(np.concatenate([sums - value, sums + value]), kind="stable")  # merges two sorted halves
    return sums


def holm(p: Sequence[float]) -> list[float]:
    """Adjust p values of several comparisons (Holm 1979): those at most alpha hold together with error alpha.

    Args:
        p: One p value for each comparison.
    """
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, place in enumerate(sorted(range(len(p)), key=lambda place: p[place])):
        largest = max(largest, min(1.0, (len(p) - rank) * p[place]))
        adjusted[place] = largest
    return adjusted


def bca_interval(values: Floats, confidence: float = 0.95, resamples: int = 2000, seed: int = 0) -> Interval:
    """Bias-corrected and accelerated (BCa) bootstrap interval of a mean, for samples of 50 and more.

    With few values it is too narrow: 95 % intervals from 5 values cover 83 % (docs/statistics.md).

    Args:
        values: The sample, such as whether each of many examples is predicted correctly.
        confidence: How often the interval contains the true mean.
        resamples: Number of bootstrap samples.
        seed: Seed of the bootstrap.
    """
    from scipy.stats import bootstrap

    values = np.asarray(values, float)
    if np.ptp(values) <= 1e-12 * np.abs(values).max():  # nothing to resample
        return float(values[0]), float(values[0])
    result = bootstrap(
        (values,), np.mean, confidence_level=confidence, n_resamples=resamples, rng=np.random.default_rng(seed),
        batch=max(1, 10_000_000 // len(values)),
    )  # fmt: skip
    return float(result.confidence_interval.low), float(result.confidence_interval.high)


def probability_of_improvement(improvements: Floats, confidence: float = 0.95) -> tuple[float, Interval]:
    """Return the probability that the method beats the baseline on a new seed, with its Wilson interval.

    Args:
        improvements: The improvement over the baseline for each seed. 0 counts as half.
        confidence: How often the interval contains the true probability.
    """
    n = len(improvements)
    share = float((np.sum(improvements > 0) + 0.5 * np.sum(improvements == 0)) / n)
    z = float(special.ndtri((1 + confidence) / 2))
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    reach = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    return share, (max(0.0, centre - reach), min(1.0, centre + reach))


# ---- power ----------------------------------------------------------------------------------------------------


def power_of(effect: float, deviation: float, pairs: int, alpha: float = 0.05) -> float:
    """Return the power of the two-sided t test, by the noncentral t distribution.

    Args:
        effect: The true mean difference.
        deviation: Standard deviation of the differences, above 0.
        pairs: Number of seeds, at least two.
        alpha: Level of the test.
    """
    shift = abs(effect) / deviation * math.sqrt(pairs)
    limit = float(special.stdtrit(pairs - 1, 1 - alpha / 2))
    return _above(limit, pairs, shift) + _above(limit, pairs, -shift)


def _above(limit: float, pairs: int, shift: float) -> float:
    """Return the probability that a noncentral t value is above `limit`: the mean of Φ(shift - limit s) over s.

    `scipy.special.nctdtr` does the same, but returns NaN for few pairs or a large shift.
    """
    roots, weights = _deviations(pairs - 1)
    return float(weights @ special.ndtr(shift - limit * roots))


@lru_cache(maxsize=1024)
def _deviations(degrees: int) -> tuple[Floats, Floats]:
    """Return standard deviations of standard normal samples, and the weights of a quadrature."""
    nodes, weights = np.polynomial.legendre.leggauss(200)
    angles = math.pi / 4 * (1 + nodes)  # more nodes at both ends of the distribution
    quantiles, weights = np.sin(angles) ** 2, weights * math.pi / 4 * np.sin(2 * angles)
    return np.sqrt(special.chdtri(degrees, 1 - quantiles) / degrees), weights


def equivalence_power_of(delta: float, deviation: float, pairs: int, alpha: float = 0.05) -> float:
    """Return the power of the equivalence test for a method without effect: a lower bound, tight at high power.

    Args:
        delta: The smallest difference that matters.
        deviation: Standard deviation of the differences, above 0.
        pairs: Number of seeds, at least two.
        alpha: Twice the level of each of the two one-sided tests.
    """
    limit = float(special.stdtrit(pairs - 1, 1 - alpha / 2))
    return max(0.0, 2 * _above(limit, pairs, delta / deviation * math.sqrt(pairs)) - 1)


def minimum_detectable_effect(deviation: float, pairs: int, power: float = POWER, alpha: float = 0.05) -> float:
    """Return the true difference that the t test detects with the given power.

    Args:
        deviation: Standard deviation of the differences.
        pairs: Number of seeds, at least two.
        power: Probability of detecting it.
        alpha: Level of the test.
    """
    if deviation == 0:
        return 0.0
    from scipy.optimize import brentq

    most = 10 * (1 + float(special.stdtrit(pairs - 1, 1 - alpha / 2)))
    size = brentq(lambda size: power_of(size, 1.0, pairs, alpha) - power, 0.0, most)
    return deviation * float(size)


def seeds_to_detect(effect: float, deviation: float, power: float = POWER, alpha: float = 0.05) -> int | None:
    """Return the number of seeds with which the t test detects a true difference with the given power.

    None = more than 100,000.

    Args:
        effect: The true mean difference.
        deviation: Standard deviation of the differences.
        power: Probability of detecting it.
        alpha: Level of the test.
    """
    if effect == 0:
        return None
    return _fewest(lambda n: power_of(effect, deviation, n, alpha) >= power) if deviation else 2


def seeds_for_equivalence(delta: float, deviation: float, power: float = POWER, alpha: float = 0.05) -> int | None:
    """Return the number of seeds with which a method without effect is shown to be within ±delta.

    None = more than 100,000.

    Args:
        delta: The smallest difference that matters.
        deviation: Standard deviation of the differences.
        power: Probability of finding it.
        alpha: Twice the level of each of the two one-sided tests.
    """
    if delta == 0:
        return None
    return _fewest(lambda n: equivalence_power_of(delta, deviation, n, alpha) >= power) if deviation else 2


def _fewest(is_enough: Callable[[int], bool]) -> int | None:
    """Return the smallest number of seeds from 2 on that is enough, by bisection."""
    high = 2
    while not is_enough(high):
        high *= 2
        if high > _MOST_SEEDS:
            return None
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high
