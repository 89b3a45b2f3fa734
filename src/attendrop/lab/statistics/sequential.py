"""Error rates that hold with interim looks after every seed (`--until-decided`).

With a fixed number of seeds, a t test at 5 % gives a false alarm in 5 % of studies; with a look after each of 5 to 40
seeds, in about 25 %. Here every look has its own, smaller level. The levels come from alpha spending (Lan and
DeMets 1983): after n of N seeds, (n/N)^5 of the error rate is spent (the power family of Kim and DeMets 1987; later
than O'Brien and Fleming: little is spent on few seeds, whose skewness nobody knows). The usual boundaries,
for values of known deviation, would give too many false alarms; the boundaries here are exact for the t test with
normal differences.

Intervals at these levels are repeated confidence intervals (Jennison and Turnbull 1989): all of them together contain
the true difference with the given confidence. So every conclusion from an interval, including "no difference",
keeps its error rate at any look.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy import special

from .paired import Floats, power_of

FIRST_LOOK = 12  # seeds; with fewer, skewed differences give too many false alarms
_CELLS = 64
_ALPHAS = np.concatenate([np.geomspace(1e-6, 0.05, 12), [0.1, 0.2, 0.4, 0.6, 0.8, 0.9, 0.99]])


@dataclass(frozen=True)
class SequentialDesign:
    """The schedule of looks: after every seed from the first look on, or less often.

    Attributes:
        max_seeds: The largest number of seeds.
        first: Number of seeds at the first look.
        exponent: After n seeds, the share (n / max_seeds) ** exponent of the error rate is spent. 1 spends early, like
            Pocock's boundaries; 3 like those of O'Brien and Fleming; 5 later.
    """

    max_seeds: int = 40
    first: int = FIRST_LOOK
    exponent: float = 5.0

    def __post_init__(self) -> None:
        if not 2 <= self.first <= self.max_seeds:
            raise ValueError(f"max_seeds is {self.max_seeds}; it must be at least {max(2, self.first)}.")
        if not self.exponent > 0:
            raise ValueError(f"exponent is {self.exponent}; it must be above 0.")

    def level(self, seeds: int, alpha: float = 0.05) -> float:
        """Return the level of the two-sided test at one look, for an overall error rate of `alpha`.

        Args:
            seeds: Number of pairs at this look.
            alpha: Error rate of all looks together.
        """
        return float(np.exp(np.interp(math.log(alpha), np.log(_ALPHAS), np.log(self._levels(seeds)))))

    def repeated_p(self, p: float, seeds: int) -> float:
        """Return the smallest overall error rate at which the test of this look is significant.

        Args:
            p: Two-sided p of the test at this look.
            seeds: Number of pairs at this look.
        """
        levels = self._levels(seeds)
        if p <= levels[0]:
            return float(_ALPHAS[0] * p / levels[0])
        if p > levels[-1]:
            return 1.0
        return float(np.exp(np.interp(math.log(p), np.log(levels), np.log(_ALPHAS))))

    def power_at_least(self, effect: float, deviation: float, alpha: float = 0.05) -> float:
        """Return a lower bound of the power of Student's t: that of the last look alone.

        The skew correction of `rules.py` costs about a point of it where differences are normal.

        Args:
            effect: The true mean difference.
            deviation: Standard deviation of the differences, above 0.
            alpha: Error rate of all looks together.
        """
        return power_of(effect, deviation, self.max_seeds, self.level(self.max_seeds, alpha))

    def _levels(self, seeds: int) -> Floats:
        """Return the levels of a look, for each of `_ALPHAS`."""
        if not self.first <= seeds <= self.max_seeds:
            raise ValueError(f"a look after {seeds} seeds is outside of the plan, {self.first} to {self.max_seeds}.")
        return _table(self)[:, seeds - self.first]


@lru_cache(maxsize=8)
def _table(design: SequentialDesign) -> Floats:
    """Return levels: one row for each of `_ALPHAS`, one column for each look."""
    return np.array([_levels_of(design, alpha) for alpha in _ALPHAS])


def _levels_of(design: SequentialDesign, alpha: float) -> list[float]:
    """Return the level of each look, by recursion over the distribution of the paths that have not stopped.

    Let u be the cosine of the angle between the n differences and the vector of ones, so that t = u √(n-1) / √(1-u²).
    For normal differences with mean 0, u is a Markov chain (`_at_most`). A path stops when |u| is above the bound of
    its look, which is such that the share of paths that stop there is the share of `alpha` that is spent there.
    """
    levels: list[float] = []
    spent = 0.0
    places, shares = np.zeros(0), np.zeros(0)  # |u| of the paths that continue, in cells, and their shares
    for n in range(design.first, design.max_seeds + 1):
        target = alpha * (n / design.max_seeds) ** design.exponent
        is_first = n == design.first
        if is_first:
            bound = float(_cosine(special.stdtrit(n - 1, 1 - target / 2), n))
        else:
            bound = _bound(places, shares, n, float(shares.sum()) - (target - spent))
        spent = target
        levels.append(2 * float(special.stdtr(n - 1, -_student(bound, n))))
        edges = np.linspace(0, bound, _CELLS + 1)
        below = 1 - 2 * special.stdtr(n - 1, -_student(edges, n)) if is_first else _at_most(edges, places, n) @ shares
        places, shares = (edges[1:] + edges[:-1]) / 2, np.diff(below)
    return levels


def _student(cosine: Floats | float, n: int) -> Floats:
    return np.asarray(cosine * np.sqrt((n - 1) / (1 - np.square(cosine))))


def _cosine(t: Floats | float, n: int) -> Floats:
    return np.asarray(t / np.sqrt(n - 1 + np.square(t)))


def _at_most(bounds: Floats, places: Floats, n: int) -> Floats:
    """Return P(|u| of n differences is at most a bound) (rows), for each |u| of n - 1 differences (columns).

    The length of the vector of n - 1 normal values does not depend on its direction. The next value turns the vector by
    an angle φ with density ∝ cos^(n-2) φ, and √n u' = √(n-1) u cos φ + sin φ = r sin(φ + ψ).
    """
    across = math.sqrt(n - 1) * places
    turn, radius = np.arctan(across), np.sqrt(1 + across**2)
    reach = np.arcsin(np.minimum(1.0, np.asarray(bounds)[..., None] * math.sqrt(n) / radius))
    return _angle(reach - turn, n) - _angle(-reach - turn, n) + 1 - _angle(math.pi - reach - turn, n)


def _angle(angle: Floats, n: int) -> Floats:
    """Distribution function of the angle by which the n-th value turns the vector."""
    limited = np.clip(angle, -math.pi / 2, math.pi / 2)
    return np.asarray(special.stdtr(n - 1, math.sqrt(n - 1) * np.tan(limited)))


def _bound(places: Floats, shares: Floats, n: int, share: float) -> float:
    """Return the bound that a `share` of all paths does not exceed at the look after n differences."""
    from scipy.optimize import brentq

    return float(brentq(lambda bound: float(_at_most(bound, places, n) @ shares) - share, 0.0, 1.0, xtol=1e-12))
