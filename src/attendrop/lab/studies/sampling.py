"""The order in which points of a search space are tried.

`points` lists them for grid, random and QMC search. The point of a trial is a function of its number and the seed
alone, so that a search that was killed, or that several drivers share, tries the same points as an uninterrupted one.
TPE begins with QMC points and then asks Optuna's sampler, which learns from the scores so far.
"""

from __future__ import annotations

import itertools
import math
import random
from typing import Any

import numpy as np

from .search_space import Space

SAMPLERS = ("auto", "grid", "random", "qmc", "tpe")
MANY_TRIALS = 30  # the smallest number of trials for TPE
STARTUP_TRIALS = 10  # points of TPE that are drawn by QMC

Point = dict[str, Any]


def choose_sampler(sampler: str, trials: int) -> str:
    """Return the sampler that "auto" stands for: QMC for few trials, TPE for many.

    Args:
        sampler: One of `SAMPLERS`.
        trials: The number of trials of each method.
    """
    if sampler != "auto":
        return sampler
    return "tpe" if trials >= MANY_TRIALS else "qmc"


def grid_size(space: Space) -> int:
    """Return the number of points of the grid of a space."""
    return math.prod(len(dimension.grid()) for dimension in space.values())


def points(space: Space, sampler: str, trials: int, seed: int) -> list[Point]:
    """Return the points of the first trials.

    Args:
        space: The search space.
        sampler: "grid", "random" or "qmc"; of "tpe" only the first points are known before training.
        trials: The number of points. A grid with fewer points is repeated.
        seed: The seed of the draws.
    """
    if sampler == "grid":
        grid = itertools.product(*(dimension.grid() for dimension in space.values()))
        grid_points = [dict(zip(space, values, strict=True)) for values in grid]
        return [grid_points[i % len(grid_points)] for i in range(trials)]
    count = min(trials, STARTUP_TRIALS) if sampler == "tpe" else trials
    shares = _uniform(len(space), count, seed) if sampler == "random" else _sobol(len(space), count, seed)
    return [
        {name: dimension.at(float(share)) for (name, dimension), share in zip(space.items(), row, strict=True)}
        for row in shares
    ]


def _uniform(dimensions: int, count: int, seed: int) -> np.ndarray:
    # One generator for each row, so that more trials begin with the same points.
    return np.array([np.random.default_rng((seed, i)).random(dimensions) for i in range(count)])


def _sobol(dimensions: int, count: int, seed: int) -> np.ndarray:
    from scipy.stats.qmc import Sobol

    if not dimensions:
        return np.empty((count, 0))
    # The number of points that are drawn is a power of two, as scipy recommends; the first ones do not depend on it.
    return Sobol(dimensions, rng=np.random.default_rng(seed)).random_base2(math.ceil(math.log2(max(count, 1))))[:count]


def make_sampler(space: Space, sampler: str, trials: int, seed: int) -> Any:
    """Return a sampler of Optuna that tries `points`, and lets TPE choose the trials after them.

    Args:
        space: The search space.
        sampler: "grid", "random", "qmc" or "tpe".
        trials: The number of trials.
        seed: The seed of the draws.
    """
    from optuna.samplers import BaseSampler, TPESampler

    known = points(space, sampler, trials, seed)

    class Points(BaseSampler):
        """Answers with the point of the trial's number. TPE gets a seed of its own for each trial."""

        def __init__(self) -> None:
            self.tpe: Any = None

        def before_trial(self, study: Any, trial: Any) -> None:
            own_seed = random.Random(f"{seed}/{trial.number}").getrandbits(32)
            self.tpe = TPESampler(seed=own_seed, n_startup_trials=0, multivariate=True)

        def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
            return {} if trial.number < len(known) else self.tpe.infer_relative_search_space(study, trial)

        def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
            return {} if trial.number < len(known) else self.tpe.sample_relative(study, trial, search_space)

        def sample_independent(self, study: Any, trial: Any, param_name: str, param_distribution: Any) -> Any:
            if trial.number < len(known):
                return known[trial.number][param_name]
            return self.tpe.sample_independent(study, trial, param_name, param_distribution)

    return Points()
