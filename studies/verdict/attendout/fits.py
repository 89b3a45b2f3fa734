"""Least-squares fits: the effect of each layer's rate on the trained model, and on the reward of a round."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import special

from .plan import LAYERS, PLAIN, Row, rates_of

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Fit:
    """The slopes of a linear fit.

    Attributes:
        slopes: One for each layer.
        half_widths: Of their 95 % intervals.
        explained: The share of the variance that the slopes explain, from 0 to 1.
        spread: The standard deviation of what they do not explain.
    """

    slopes: Floats
    half_widths: Floats
    explained: float
    spread: float


def fit(x: Floats, y: Floats, groups: Iterable[Any]) -> Fit | None:
    """The least-squares fit of y on x with an intercept for each group; None if there are too few values.

    Args:
        x: [n, layers].
        y: [n].
        groups: The group of each value.
    """
    numbers = np.unique(np.array(list(groups)), return_inverse=True)[1]
    count = np.bincount(numbers)
    x = x - np.stack([np.bincount(numbers, column) / count for column in x.T], 1)[numbers]
    y = y - (np.bincount(numbers, y) / count)[numbers]
    degrees = len(y) - len(count) - x.shape[1]
    if degrees < 1 or np.linalg.matrix_rank(x) < x.shape[1]:
        return None
    inverse = np.linalg.inv(x.T @ x)
    slopes = inverse @ x.T @ y
    rest = y - x @ slopes
    variance = float(rest @ rest) / degrees
    half = special.stdtrit(degrees, 0.975) * np.sqrt(variance * np.diag(inverse))
    total = float(y @ y)
    return Fit(slopes, half, 1 - float(rest @ rest) / total if total else 0.0, float(np.sqrt(variance)))


def fit_search(rows: list[Row], outcome: str) -> Fit | None:
    """How an outcome depends on the rate of each layer, over all fixed rates, with plain fine-tuning at 0.

    The outcomes of a contender are averaged over its seeds first, so that the intervals contain both the noise of the
    seeds and the deviations from a linear dependence.

    Args:
        rows: The lines of one task.
        outcome: A column.
    """
    losses: dict[str, list[float]] = {}
    for row in rows:
        if row["status"] == "finished":
            losses.setdefault(row["method"], []).append(float(row[outcome]))
    if len(losses) < LAYERS + 2:
        return None
    x = np.array([(0.0,) * LAYERS if name == PLAIN else rates_of(name) for name in losses])
    return fit(x, np.array([mean(of) for of in losses.values()]), [0] * len(losses))


def fit_rewards(runs: list[dict[str, Any]], part: range) -> Fit | None:
    """How the reward of a round depends on the shift of each layer, with an intercept for each number of a round.

    Args:
        runs: What the runs of a game with `explore` logged.
        part: The numbers of the rounds that are used.
    """
    x = np.array([run["shift"][number] for run in runs for number in part])
    y = np.array([run["reward"][number] for run in runs for number in part])
    return fit(x, y, [number for _ in runs for number in part]) if len(y) else None
