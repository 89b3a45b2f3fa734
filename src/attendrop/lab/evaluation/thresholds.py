"""The probability from which a label of a multi-label task is predicted, chosen on validation data.

With few examples of each label a model gives most labels less than one half, and the usual threshold of 0.5 predicts
almost none. One threshold for all labels is chosen, because few examples say little about that of each label: the one
with the best micro F1, or, with fewer than `FEW_EXAMPLES`, the one that predicts as many labels as there are. The best
F1 of ten examples is luck: of one hundred training examples with one to three of 20 labels, the threshold with as many
labels was as good on average as that with the best F1, and far better where the validation examples were unusual.
"""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

import numpy as np

from ..tasks.kinds import Answers
from ..tasks.metrics import METRICS

USUAL = 0.5
FEW_EXAMPLES = 20
LEAST_EXAMPLES, LEAST_DECISIONS = 20, 200  # one of them is enough
METRIC = "micro_f1"
_GRID = np.round(np.arange(0.05, 0.96, 0.05), 2)
_FOLDS = 5


class Threshold(NamedTuple):
    """A threshold that was chosen.

    Attributes:
        value: The threshold.
        note: A sentence about the choice; empty for tasks that have none.
        answers: The validation answers, each with the threshold that was chosen without it.
    """

    value: float
    note: str
    answers: Answers


def choose_threshold(answers: Answers) -> Threshold:
    """Choose the threshold with the best micro F1 on validation data, and of equal ones that nearest to 0.5.

    It is kept only if thresholds that are chosen on four fifths of the examples are better than 0.5 on the others. Of
    few examples it is the threshold with as many labels as there are, and always kept.

    Args:
        answers: The predictions on the validation data.
    """
    if not answers.has_threshold:
        return Threshold(USUAL, "", answers)
    if answers.examples < LEAST_EXAMPLES and answers.values.size < LEAST_DECISIONS:
        return Threshold(USUAL, f"labels are predicted above 0.5: {answers.examples} examples choose no other", answers)
    is_few = answers.examples < FEW_EXAMPLES
    choose = _with_as_many if is_few else _best
    places = np.arange(answers.examples) % _FOLDS
    without = [choose(_part(answers, places != fold)) for fold in range(_FOLDS)]
    crossed = dataclasses.replace(answers, threshold=np.array(without)[places])
    usual, fitted = _score(answers), _score(crossed)
    if not (is_few or fitted > usual):
        note = "labels are predicted above 0.5: no other threshold was better on held-out parts"
        return Threshold(USUAL, note, answers)
    best = choose(answers)
    why = (
        f"gives the {answers.examples} validation examples as many labels as they have"
        if is_few
        else "was chosen on the validation data"
    )
    note = (
        f"labels are predicted above the probability {best:g} (before the temperature), which {why}; the "
        f"scores on them have thresholds that were chosen on other parts of them (micro F1 "
        f"{fitted:.4f}, and {usual:.4f} above 0.5)"
    )
    return Threshold(best, note, crossed)


def _with_as_many(answers: Answers) -> float:
    """Return the threshold that predicts as many labels as there are, in the middle of the two nearest logits."""
    values = np.sort(answers.values.ravel())[::-1]
    count = min(max(int(answers.gold.sum()), 1), len(values) - 1)
    middle = np.clip((values[count - 1] + values[count]) / 2, -10, 10)
    return float(f"{1 / (1 + np.exp(-middle)):.4g}")


def _part(answers: Answers, rows: np.ndarray) -> Answers:
    return dataclasses.replace(answers, values=answers.values[rows], gold=answers.gold[rows])


def _score(answers: Answers) -> float:
    return METRICS[METRIC](*answers.for_metrics(answers.predicted))


def _best(answers: Answers) -> float:
    """Return the best threshold of the grid; of equal ones the nearest to the usual one."""
    gold = answers.gold.sum()
    scores = {}
    for value in _GRID.tolist():
        predicted = dataclasses.replace(answers, threshold=value).predicted
        scores[value] = float(2 * (predicted & answers.gold).sum() / max(int(predicted.sum() + gold), 1))
    return min(scores, key=lambda value: (-scores[value], abs(value - USUAL)))
