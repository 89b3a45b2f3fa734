"""Contenders that are trained with another learning rate or number of epochs than the baseline.

The difference of such a contender is that of the method and of the training together. A matched control is the baseline
with exactly the learning rate and the epochs of the contender (`attendrop compare --matched`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ...records import StudyRecord
from ...report.analysis import Result
from ...statistics.sequential import SequentialDesign
from ...tasks.outcomes import SCORE
from ..design import FROZEN, LENGTH_AND_RATE, is_control
from .outcomes import Group, compare

_WORDS = {"learning_rate": "learning rate {:.3g}", "num_train_epochs": "{:g} epochs", "max_steps": "{:g} steps"}


def with_controls(
    results: Mapping[str, Result],
    group: Group,
    part: str,
    baseline: str,
    delta: float,
    confidence: float,
    looks: SequentialDesign | None,
) -> dict[str, Result]:
    """Return results on the score, whose comparisons say where a contender is not trained like the baseline.

    Args:
        results: Method -> its result.
        group: The runs.
        part: The part of the data.
        baseline: The baseline.
        delta: The smallest difference that matters.
        confidence: Confidence of the intervals.
        looks: The plan of looks, if there is one.
    """
    trained = {method: _training(group, method) for method in group.runs}
    controls = [method for method in group.runs if method != baseline and is_control(method, baseline)]
    changed = dict(results)
    for method, result in results.items():
        if result.comparison is None or not trained[method] or not trained[baseline]:
            continue
        if trained[method] == trained[baseline] or method.partition("@")[0].strip() == FROZEN:
            continue
        text = f"It is trained with {_words(trained[method])}, {baseline} with {_words(trained[baseline])}"
        same = next((name for name in controls if trained[name] == trained[method] and name != method), None)
        if method in controls:
            text += "."
        elif same is None:
            text += ": the difference is that of both together (--matched adds a baseline with the same values)."
        else:
            pair = Group(group.task, group.size, {same: group.runs[same], method: group.runs[method]})
            against = compare(pair, part, SCORE, same, delta, confidence, looks)[method].comparison
            assert against is not None
            text += f". Compared with {same}, with matched learning rate and epochs: {against.sentence}"
        sentence = f"{result.comparison.sentence} {text}"
        changed[method] = dataclasses.replace(
            result, comparison=dataclasses.replace(result.comparison, sentence=sentence)
        )
    return changed


def _training(group: Group, method: str) -> dict[str, Any]:
    """Return the learning rate and the length of training of a method's runs."""
    record: StudyRecord | None = next((r for r in group.runs[method].values() if r.is_finished), None)
    if record is None:
        return {}
    values = {name: record.settings.get(name) for name in LENGTH_AND_RATE}
    return {name: float(value) for name, value in values.items() if value is not None and float(value) > 0}


def _words(training: Mapping[str, float]) -> str:
    return " and ".join(_WORDS[name].format(value) for name, value in training.items()) or "the usual settings"
