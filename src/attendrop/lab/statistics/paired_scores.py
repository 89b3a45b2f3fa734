"""The difference of the scores of two models on the same examples, with an interval over examples.

accuracy       (b − c) / n, b and c the examples that only one model has right; the interval of Agresti and Min (2005):
               half an example is added to each of the four counts, so that models that agree on all of few examples
               are not proved equal
other scores   the bootstrap over examples, both models on the same draws; at least as wide as the interval of an
               accuracy without any difference
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import special

Statistic = Callable[..., float]


@dataclass(frozen=True)
class Difference:
    """The score of a model minus that of another, greater = better.

    Attributes:
        value: The difference.
        low: The lower limit of its interval.
        high: The upper limit.
        examples: The number of examples.
    """

    value: float
    low: float
    high: float
    examples: int

    def verdict(self, tolerance: float) -> str:
        """Return "no worse", "worse" or "cannot tell".

        Args:
            tolerance: The loss that counts as none.
        """
        if self.low >= -tolerance:
            return "no worse"
        return "worse" if self.high < 0 else "cannot tell"


def difference_of_shares(first: npt.ArrayLike, second: npt.ArrayLike, confidence: float = 0.95) -> Difference:
    """Return the difference of two accuracies.

    Args:
        first: Whether the first model is right on each example.
        second: The same of the second, on the same examples.
        confidence: How often the interval contains the true difference.
    """
    one, other = np.asarray(first, bool), np.asarray(second, bool)
    n, b, c = len(one), float(np.sum(one & ~other)), float(np.sum(~one & other))
    z = float(special.ndtri((1 + confidence) / 2))
    b_, c_, n_ = b + 0.5, c + 0.5, n + 2
    center, error = (b_ - c_) / n_, math.sqrt((b_ + c_) - (b_ - c_) ** 2 / n_) / n_
    value = (b - c) / n
    return Difference(value, min(value, max(-1.0, center - z * error)), max(value, min(1.0, center + z * error)), n)


def difference_of_scores(
    score: Statistic,
    first: Sequence[npt.ArrayLike],
    second: Sequence[npt.ArrayLike],
    greater_is_better: bool = True,
    confidence: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> Difference:
    """Return the difference of two values of a score.

    Args:
        score: Function of columns with one row for each example.
        first: The columns of the first model.
        second: Those of the second, of the same examples.
        greater_is_better: Whether greater values are better.
        confidence: How often the interval contains the true difference.
        resamples: Number of bootstrap samples.
        seed: Seed of the bootstrap.
    """
    sign = 1 if greater_is_better else -1
    one, other = ([np.asarray(column) for column in columns] for columns in (first, second))
    n, generator = len(one[0]), np.random.default_rng(seed)
    value = sign * (score(*one) - score(*other))
    draws = (generator.integers(0, n, n) for _ in range(resamples))
    values = [sign * (score(*(c[rows] for c in one)) - score(*(c[rows] for c in other))) for rows in draws]
    low, high = np.nanquantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    least = float(special.ndtri((1 + confidence) / 2)) / (n + 2)
    return Difference(value, min(float(low), value - least), max(float(high), value + least), n)


def examples_needed(tolerance: float, confidence: float = 0.95) -> int:
    """Return how many examples can show a difference within a tolerance, if no answer differs at all.

    Args:
        tolerance: The loss that counts as none.
        confidence: That of the interval.
    """
    if tolerance <= 0:
        return 10**9
    return max(1, math.ceil(float(special.ndtri((1 + confidence) / 2)) / tolerance - 2))
