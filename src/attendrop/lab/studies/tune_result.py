"""The result of a search: all trials, the chosen settings, and their scores on the development set."""

from __future__ import annotations

import itertools
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...utils.files import write_whole
from ..records import (
    TUNING_FILE,
    ChosenSetting,
    DevelopmentResult,
    MethodCurve,
    TrialResult,
    TuningMap,
    TuningResult,
)
from ..report.page.words import PAPER_LABEL
from ..statistics.tuning_curves import expected_best, tuning_curve
from .design import PLAIN
from .search_space import Range, rounded
from .tune import Setting, Tuner

_STORED_WITH_TRIALS = ("scores", "losses", "settings", "seeds", "runs", "versions", "device", "error")


def summarize(tuner: Tuner) -> TuningResult:
    """Return the content of `tuning.json`.

    Args:
        tuner: The search, which may still be running.
    """
    config = tuner.config
    trials = [_trial(tuner, method, trial) for method in tuner.searches for trial in tuner.searches[method].all()]
    return TuningResult(
        protocol=config.protocol,
        label=PAPER_LABEL if config.is_paper else None,
        sampler=config.sampler,
        budget=config.trials,
        repeats=config.repeats,
        seed=config.seed,
        spaces={m: {name: str(d) for name, d in space.items()} for m, space in config.spaces.items()},
        metric=tuner.metric,
        greater_is_better=tuner.greater_is_better,
        curves=_curves(tuner),
        heatmaps=_heatmaps(tuner),
        trials=trials,
        chosen={s.method: ChosenSetting(**_chosen(tuner, s)) for s in tuner.settings if s.role == "chosen"},
        dev={
            method: {s.role: _dev(tuner, s) for s in tuner.settings if s.method == method}
            for method in dict.fromkeys(s.method for s in tuner.settings)
        },
    )


def write_result(tuner: Tuner, folder: Path) -> TuningResult:
    """Write `tuning.json` atomically, and return its content.

    Args:
        tuner: The search.
        folder: The folder of the study.
    """
    result = summarize(tuner)
    write_whole(folder / TUNING_FILE, json.dumps(result.to_json(), indent=1, default=str) + "\n")
    return result


def _trial(tuner: Tuner, method: str, trial: Any) -> TrialResult:
    return TrialResult(
        method=method,
        number=trial.number,
        state={"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}.get(trial.state.name, "running"),
        score=tuner.shown_score(trial) if trial.state.name == "COMPLETE" else None,
        point=trial.params,
        is_random=trial.number < tuner.random_trials[method],
        **{name: value for name, value in trial.user_attrs.items() if name in _STORED_WITH_TRIALS},
    )


def _chosen(tuner: Tuner, setting: Setting) -> dict[str, Any]:
    trial = setting.trial
    score = tuner.shown_score(trial)
    return {"trial": trial.number, "score": score, "point": trial.params, "settings": trial.user_attrs.get("settings")}


def _dev(tuner: Tuner, setting: Setting) -> DevelopmentResult:
    values = list(setting.scores.values())
    return DevelopmentResult(
        **_chosen(tuner, setting),
        values={str(seed): score for seed, score in sorted(setting.scores.items())},
        mean=statistics.fmean(values) if values else None,
        errors=setting.errors,
    )


def _curves(tuner: Tuner) -> list[MethodCurve]:
    """Return the best score after k trials, for each method that has any.

    Only random points are independent draws, for which there is a band. Of a grid, k points are drawn without
    replacement. The points of QMC and TPE depend on those before, so that their curve is that of the one search.
    """
    curves = []
    for method in tuner.searches:
        scores = _scores_in_order(tuner, method)
        if all(score is None for score in scores):
            continue
        values = [_worst(tuner, method) if score is None else score for score in scores]
        greater, k = bool(tuner.greater_is_better), [*range(1, len(values) + 1)]
        sign = 1 if greater else -1
        if tuner.config.sampler == "random":
            curve = tuning_curve(values, greater, _support(values))
            curves.append(MethodCurve(method=method, **curve.to_dict()))
        elif tuner.config.sampler == "grid":
            best = [sign * value for value in expected_best(np.array([sign * value for value in values])).tolist()]
            curves.append(MethodCurve(method=method, k=k, expected_best=best, kind="grid"))
        else:
            best = [sign * value for value in itertools.accumulate((sign * value for value in values), max)]
            curves.append(MethodCurve(method=method, k=k, expected_best=best, kind="search"))
    return curves


def _scores_in_order(tuner: Tuner, method: str) -> list[float | None]:
    """Return the score of each trial that has ended; None for one that failed, or that was stopped early."""
    ended = [trial for trial in tuner.searches[method].all() if trial.state.is_finished()]
    return [tuner.shown_score(trial) if trial.state.name == "COMPLETE" else None for trial in ended]


def _worst(tuner: Tuner, method: str) -> float:
    """Return the score of a failed trial: that of the most frequent answer, or the worst of all if that is worse."""
    trials = tuner.searches[method].all()
    known = [score for score in _scores_in_order(tuner, method) if score is not None]
    useless = [value for trial in trials if (value := trial.user_attrs.get("useless")) is not None]
    return (min if tuner.greater_is_better else max)([*known, *useless])


def _support(scores: Sequence[float]) -> tuple[float, float]:
    """Return the smallest and the largest possible score of metrics from 0 or -1 to 1 or 100, or the observed range."""
    low = next((limit for limit in (0.0, -1.0) if limit <= min(scores)), min(scores))
    high = next((limit for limit in (1.0, 100.0) if limit >= max(scores)), max(scores))
    return low, high


def _heatmaps(tuner: Tuner) -> list[TuningMap]:
    """For a grid over two numbers: the difference to the best plain setting at each point of it."""
    plain = tuner.best(PLAIN)
    if tuner.config.sampler != "grid" or plain is None:
        return []
    baseline, maps = tuner.shown_score(plain), []
    assert baseline is not None
    for method, space in tuner.config.spaces.items():
        ranges = {name: dimension.grid() for name, dimension in space.items() if len(dimension.grid()) > 1}
        if len(ranges) != 2 or not all(isinstance(space[name], Range) for name in ranges):
            continue
        (x, xs), (y, ys) = ranges.items()
        cells: dict[tuple[Any, Any], list[float]] = {}
        for trial in tuner.searches[method].finished():
            score = tuner.shown_score(trial)
            cells.setdefault((rounded(trial.params[x]), rounded(trial.params[y])), []).append(float(score or 0.0))
        means = {point: statistics.fmean(scores) - baseline for point, scores in cells.items()}
        rows = [[means.get((column, row)) for column in xs] for row in ys]
        names = {"x": x.rpartition(".")[2], "y": y.rpartition(".")[2]}
        maps.append(
            TuningMap(
                method=method,
                **names,
                xs=[float(value) for value in xs],
                ys=[float(value) for value in ys],
                difference=rows,
                baseline=baseline,
            )
        )
    return maps
