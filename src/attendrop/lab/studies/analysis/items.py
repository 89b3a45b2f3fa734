"""How much of a difference is the noise of the test examples, from the stored predictions of the runs.

A score that is a mean over examples gives one value for each example; any other one gives jackknife pseudo-values of
groups of examples. Differences of these, seed by seed, go to `items_of`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...evaluation.outputs import Outputs
from ...records import StudyRecord
from ...statistics.calibration import scaled_probabilities
from ...statistics.paired import Floats
from ...statistics.rules import Items, items_of
from ...tasks.metrics import METRICS, is_share
from ...tasks.outcomes import Outcome
from .ensembles import evidence, members_of
from .groups import Group, Read
from .scope import scores_same_examples

GROUPS = 50  # of examples that are left out together
_CLASSES = "classification"


def items_of_group(
    group: Group, part: str, outcome: Outcome, baseline: str, read: Read | None = None
) -> dict[str, Items | None]:
    """Return the noise in the difference of each method that more seeds do not make smaller; None where none is known.

    That is the noise of the test examples and, in a search, that of the selection of settings.

    Args:
        group: The runs.
        part: The part of the data.
        outcome: The outcome.
        baseline: The baseline.
        read: Reads the outputs of a run, empty where they are not stored; None = only predictions in records are known.
    """
    noise = _items_of_examples(group, part, outcome, baseline, read)
    chosen = group.selection.get(outcome.name, {})
    if part == "validation" and baseline in chosen:
        for method in set(chosen) & set(group.runs) - {baseline}:
            both = chosen[method].plus(chosen[baseline])
            noise[method] = both if (known := noise.get(method)) is None else known.plus(both)
    return noise


def _items_of_examples(
    group: Group, part: str, outcome: Outcome, baseline: str, read: Read | None
) -> dict[str, Items | None]:
    if not scores_same_examples(group.finished):
        return {}
    values: dict[str, dict[int, Floats]] = {}
    golds: list[Any] = []
    for method, seeds in group.runs.items():
        for seed, record in seeds.items():
            if record.is_finished and (known := _values_of(record, part, outcome, read)) is not None:
                values.setdefault(method, {})[seed] = known[0]
                golds.append(known[1])
    if any(not np.array_equal(golds[0], gold) for gold in golds[1:]):
        return {}
    own = values.get(baseline, {})
    noise: dict[str, Items | None] = {}
    for method, of in values.items():
        shared = [seed for seed in own if seed in of]
        if method != baseline and len(shared) > 1:
            noise[method] = items_of(np.array([of[seed] - own[seed] for seed in shared]))
    return noise


def _values_of(record: StudyRecord, part: str, outcome: Outcome, read: Read | None) -> tuple[Floats, Any] | None:
    """Return the values of the examples, or of groups of them, whose mean is the outcome; and the references."""
    outputs = None if read is None else read(record).get(part)
    if outcome.is_score:
        return _scores(record, part, outputs)
    if outputs is None or outputs.kind != _CLASSES or outcome.is_relative:
        return None
    gold, logits = np.asarray(outputs.gold, int), outputs.values.astype(float)
    probabilities = scaled_probabilities(logits, gold) if outcome.is_scaled else evidence(outputs)
    if outcome.measure_each is not None:
        return outcome.measure_each(probabilities, gold), gold
    if outcome.measure is None:
        return None
    return _pseudo_values(outcome.measure, [probabilities, gold]), gold


def _scores(record: StudyRecord, part: str, outputs: Outputs | None) -> tuple[Floats, Any] | None:
    predictions, metric = record.predictions.get(part), METRICS.get(str(record.metric))
    if metric is None:
        return None
    if predictions is not None and "classes" in metric.takes:
        predicted, gold = np.array(predictions.predicted), np.array(predictions.gold)
        references = gold
    elif outputs is not None:
        predicted, gold = members_of(outputs).predicted(evidence(outputs), outputs)
        references = outputs.gold
    else:
        return None
    if len(gold) < 2:
        return None
    statistic, columns = metric.statistic(predicted, gold)
    return (columns[0] if is_share(metric.name) else _pseudo_values(statistic, columns)), references


def _pseudo_values(statistic: Callable[..., float], columns: list[Any]) -> Floats:
    """Return the jackknife pseudo-values of groups of examples."""
    count = min(GROUPS, len(columns[0]))
    place = np.arange(len(columns[0])) % count
    whole = statistic(*columns)
    without = np.array([statistic(*(column[place != group] for column in columns)) for group in range(count)])
    return np.asarray(count * whole - (count - 1) * without)
