"""`tuning.json`: the result of a search."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .schema import Stored

TUNING_FILE = "tuning.json"


@dataclass(kw_only=True)
class TrialResult:
    """A trial of a search.

    Attributes:
        method: The method.
        number: Its number among the trials of the method.
        state: "finished", "pruned", "failed" or "running".
        point: The point of the search space.
        score: The mean of its scores; None if it has not finished.
        is_random: Whether its point was drawn at random.
        scores: The score on each split.
        losses: The loss on each split.
        settings: The settings of its runs.
        seeds: The seeds of its runs.
        runs: The ids of its runs.
        versions: Library -> its version.
        device: The device that it was trained on.
        error: Why it has failed.
    """

    method: str
    number: int
    state: str
    point: dict[str, Any] = field(default_factory=dict)
    score: float | None = None
    is_random: bool = False
    scores: list[float] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    settings: dict[str, Any] | None = None
    seeds: list[int] = field(default_factory=list)
    runs: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    device: str | None = None
    error: str | None = None


@dataclass(kw_only=True)
class ChosenSetting:
    """The setting of a trial: the number of the trial, its score, its point of the search space, and its settings."""

    trial: int
    score: float | None = None
    point: dict[str, Any] = field(default_factory=dict)
    settings: dict[str, Any] | None = None


@dataclass(kw_only=True)
class DevelopmentResult(ChosenSetting):
    """A setting on the development set: seed -> score, the mean of the scores, and why runs have failed."""

    values: dict[str, float] = field(default_factory=dict)
    mean: float | None = None
    errors: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class MethodCurve:
    """The best score of a method after k trials, by what the sampler allows.

    Attributes:
        method: The method.
        k: Numbers of trials.
        expected_best: The mean of the best score.
        low: The band, see `statistics.tuning_curves.TuningCurve`; empty where it is not known.
        high: Likewise.
        kind: "random": of k random trials, with a band. "grid": of k points of the grid. "search": after the first k
            trials of this one search, whose points depend on each other, so that there is no band.
    """

    method: str
    k: list[int]
    expected_best: list[float]
    low: list[float] = field(default_factory=list)
    high: list[float] = field(default_factory=list)
    kind: str = "random"


@dataclass(kw_only=True)
class TuningMap:
    """The difference of each point of a grid from the best plain setting, `difference[y][x]`; None = no trial."""

    method: str
    x: str
    y: str
    xs: list[float]
    ys: list[float]
    difference: list[list[float | None]]
    baseline: float | None = None


@dataclass(kw_only=True)
class TuningResult(Stored):
    """The result of a search.

    Attributes:
        protocol: "honest" or "paper".
        label: The label of a search that is scored on the development set.
        sampler: The sampler.
        budget: The number of trials of each method.
        repeats: The number of splits that score a trial.
        seed: The seed of the search.
        spaces: Method -> name of a field -> its range, as text.
        metric: The name of the score.
        greater_is_better: Whether greater values of the metric are better.
        curves: The expected best score of each method.
        heatmaps: The grids over two numbers.
        trials: All trials.
        chosen: Method -> the setting with the best score.
        dev: Method -> role ("chosen" or "median") -> the setting on the development set.
    """

    protocol: str = "honest"
    label: str | None = None
    sampler: str = ""
    budget: int | None = None
    repeats: int | None = None
    seed: int | None = None
    spaces: dict[str, dict[str, str]] = field(default_factory=dict)
    metric: str | None = None
    greater_is_better: bool | None = None
    curves: list[MethodCurve] = field(default_factory=list)
    heatmaps: list[TuningMap] = field(default_factory=list)
    trials: list[TrialResult] = field(default_factory=list)
    chosen: dict[str, ChosenSetting] = field(default_factory=dict)
    dev: dict[str, dict[str, DevelopmentResult]] = field(default_factory=dict)
