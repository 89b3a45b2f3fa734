"""Scores of one evaluation: the metrics of the task, and the calibration of a classifier."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import tasks
from ..records import ClassPredictions
from ..statistics.calibration import scaled_probabilities, softmax
from ..tasks.outcomes import measured_outcomes
from .outputs import Outputs, outputs_of

MAX_PREDICTIONS = 2000  # examples of a split whose predictions a record holds


class Scorer:
    """Computes the metrics of a split and keeps the predictions; serves as the Trainer's `compute_metrics`.

    Args:
        prepared: The tokenised data.
        task: The task.
        measures_calibration: Whether the calibration is measured where the outputs are logits of classes.

    Attributes:
        predictions: Classes and confidences of the last evaluation, for the record of a classifier.
        outputs: The predictions of the last evaluation; None for kinds of tasks that cannot be ensembled.
    """

    def __init__(self, prepared: tasks.Prepared, task: tasks.Task, measures_calibration: bool = True) -> None:
        self._prepared, self._task = prepared, task
        self._measures_calibration = measures_calibration and tasks.kind_of(task).has_one_class
        self.predictions: ClassPredictions | None = None
        self.outputs: Outputs | None = None

    def __call__(self, prediction: Any) -> dict[str, float]:
        scores = dict(self._prepared.compute_metrics(prediction))
        self.predictions = None
        self.outputs = outputs_of(self._task, self._prepared, prediction)
        if self._measures_calibration:
            logits, gold = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
            probabilities = softmax(logits)
            scores |= measured_outcomes(probabilities, gold)
            scores |= measured_outcomes(scaled_probabilities(logits, gold), gold, is_scaled=True)
            scores["majority"] = float(np.bincount(gold).max() / len(gold))
            first = slice(MAX_PREDICTIONS)
            self.predictions = ClassPredictions(
                gold=gold[first].tolist(),
                predicted=logits[first].argmax(-1).tolist(),
                confidence=probabilities[first].max(-1).round(3).tolist(),
            )
        return scores
