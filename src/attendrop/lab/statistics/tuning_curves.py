"""Tuning curves: the expected best score after k random trials, instead of the best of all trials.

The best of many trials depends as much on the number of trials as on the method (Dodge et al. 2019). The estimate is
unbiased (Tang et al. 2020). The band comes from a simultaneous confidence band of the scores' distribution that is
equally tight everywhere (Lourie, Cho and He 2024): with the given confidence the whole true curve is inside, whatever
the distribution. It assumes that the trials are independent draws of the same search space, as in random search.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import special

from .paired import Floats, Interval


@dataclass(frozen=True)
class TuningCurve:
    """The expected best score after 1, 2, … trials.

    Attributes:
        k: Numbers of trials.
        expected_best: Mean of the best score of k trials.
        low: Lower bound of the band.
        high: Upper bound of the band.
    """

    k: list[int]
    expected_best: list[float]
    low: list[float]
    high: list[float]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields, for JSON."""
        return asdict(self)


def tuning_curve(
    scores: Sequence[float],
    greater_is_better: bool = True,
    support: Interval = (0.0, 1.0),
    confidence: float = 0.95,
) -> TuningCurve:
    """Return the tuning curve of random trials.

    Args:
        scores: The scores of the trials. A failed trial counts with the score of a useless model; excluding it would
            bias the curve upwards.
        greater_is_better: Whether a larger score is better.
        support: The smallest and the largest score that is possible. The upper bound of the band approaches the best
            possible score when k approaches the number of trials, because no sample excludes better settings than those
            seen.
        confidence: Confidence of the band, for all k together.
    """
    values = np.asarray(scores, float)
    if not len(values) or not np.isfinite(values).all():
        raise ValueError(f"the scores of the trials must be at least one finite number, and are {list(scores)}.")
    if values.min() < support[0] or values.max() > support[1]:
        raise ValueError(f"support is {support}; it must contain all scores, {values.min():g} to {values.max():g}.")
    sign = 1 if greater_is_better else -1
    least, most = sorted((sign * support[0], sign * support[1]))
    ordered = np.sort(sign * values)
    trials = np.arange(1, len(values) + 1)
    below, above = _distribution_band(len(values), confidence)
    worst = _expected_maximum(np.concatenate([[least], ordered]), np.concatenate([above, [1.0]]), trials)
    best = _expected_maximum(np.concatenate([ordered, [most]]), np.concatenate([below, [1.0]]), trials)
    low, high = (worst, best) if greater_is_better else (-best, -worst)
    expected = sign * expected_best(ordered)
    return TuningCurve(trials.tolist(), expected.tolist(), low.tolist(), high.tolist())


def expected_best(scores: Floats) -> Floats:
    """Return the mean of the largest of k scores over all choices of k of the n scores, for k from 1 to n.

    Args:
        scores: The scores of the trials.
    """
    ordered = np.sort(np.asarray(scores, float))
    n = len(ordered)
    rank, k = np.arange(1, n + 1), np.arange(1, n + 1)[:, None]
    # The i-th smallest is the largest in C(i - 1, k - 1) of the C(n, k) choices.
    with np.errstate(divide="ignore"):
        logs = _log_choose(rank - 1, k - 1) - _log_choose(np.full_like(rank, n), k)
    weights = np.where(rank >= k, np.exp(np.where(rank >= k, logs, 0.0)), 0.0)
    return np.asarray(weights @ ordered)


def _log_choose(n: Any, k: Any) -> Floats:
    k = np.minimum(k, n)  # the other entries are not used
    return np.asarray(special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1))


def _expected_maximum(values: Floats, distribution: Floats, trials: Any) -> Floats:
    """Return the mean of the largest of k draws of a discrete distribution, from its values and its CDF."""
    powers = distribution ** trials[:, None]
    return np.asarray(np.diff(powers, axis=1, prepend=0.0) @ values)


@lru_cache(maxsize=64)
def _distribution_band(n: int, confidence: float, draws: int = 4000) -> tuple[Floats, Floats]:
    """Bounds of the distribution function at each of n ordered scores and before the next one.

    At the i-th smallest of n scores the distribution function has a Beta(i, n + 1 - i) distribution, whatever that of
    the scores. All get equal-tailed intervals of the same level, which is such that all contain it together.
    """
    rank = np.arange(1, n + 1)
    uniform = np.sort(np.random.default_rng(0).random((draws, n)), axis=1)
    tails = special.betainc(rank, n + 1 - rank, uniform)
    level = float(np.quantile(2 * np.minimum(tails, 1 - tails).min(1), 1 - confidence))
    return special.betaincinv(rank, n + 1 - rank, level / 2), special.betaincinv(rank, n + 1 - rank, 1 - level / 2)
