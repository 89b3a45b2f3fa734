"""Scores of one evaluation: the metrics of the task, and the calibration of a classifier."""

from __future__ import annotations

from typing import Any

import numpy as np

from .. import tasks
from ..statistics.calibration import brier_score, calibration_error, log_loss, scaled_probabilities, softmax

MAX_PREDICTIONS = 2000  # examples of a split whose predictions a record holds


class Scorer:
    """Computes the metrics of a split and keeps the predictions; serves as the Trainer's `compute_metrics`.

    Args:
        prepared: The tokenised data.
        is_classifier: Whether the outputs are logits of classes, of which the calibration is measured.
    """

    def __init__(self, prepared: tasks.Prepared, is_classifier: bool) -> None:
        self._prepared, self._is_classifier = prepared, is_classifier
        self.predictions: dict[str, list[Any]] | None = None  # of the last evaluation

    def __call__(self, prediction: Any) -> dict[str, float]:
        scores = dict(self._prepared.compute_metrics(prediction))
        self.predictions = None
        if self._is_classifier:
            logits, gold = np.asarray(prediction.predictions), np.asarray(prediction.label_ids)
            probabilities = softmax(logits)
            scores["brier"] = brier_score(probabilities, gold)
            scores["ece"] = calibration_error(probabilities, gold)
            scaled = scaled_probabilities(logits, gold)
            scores["scaled_loss"] = log_loss(scaled, gold)
            scores["scaled_ece"] = calibration_error(scaled, gold)
            scores["majority"] = float(np.bincount(gold).max() / len(gold))
            first = slice(MAX_PREDICTIONS)
            self.predictions = {
                "gold": gold[first].tolist(),
                "predicted": logits[first].argmax(-1).tolist(),
                "confidence": probabilities[first].max(-1).round(3).tolist(),
            }
        return scores
