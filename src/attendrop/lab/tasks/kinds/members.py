"""Stores the predictions of a run, and averages and scores those of several seeds."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


def _nothing() -> Array:
    return np.zeros(0, int)


@dataclass
class Outputs:
    """The predictions of a model on one part of the data.

    Attributes:
        kind: The name of the kind of the task.
        values: Of each example the logits minus their largest (one class each), the logits of the labels
            (multilabel) or the number (regression); of each word that is scored its class (token_classification); of
            each masked token the log-likelihood of the right one (mlm).
        gold: The gold answers, in the same order, as the model's classes.
        labels: The names of the task's labels.
        to_task: For each class of the model, the number of its label.
        lengths: How many words of each example are scored, in tagging.
    """

    kind: str
    values: Array
    gold: Array
    labels: Array = field(default_factory=lambda: np.zeros(0, str))
    to_task: Array = field(default_factory=_nothing)
    lengths: Array = field(default_factory=_nothing)


class Members:
    """Seeds of a task whose examples have one of several classes. Their probabilities are averaged."""

    precision: ClassVar[Any] = np.float16  # of stored values; None = the smallest type for whole numbers
    gold_precision: ClassVar[Any] = None

    def reduce(self, outputs: Outputs) -> None:
        """Keep of the Trainer's outputs and labels what scores need.

        Args:
            outputs: The predictions of the model, which are changed.
        """
        # Small gaps below the largest logit keep their precision, so that rounding does not change the prediction.
        outputs.values = np.maximum(outputs.values - outputs.values.max(-1, keepdims=True), -60_000)

    def evidence(self, outputs: Outputs, values: Array, place: int) -> Array:
        """Return what one member adds to the mean: by default probabilities.

        Args:
            outputs: The predictions of the member.
            values: Its values in double precision.
            place: Its number among the members; earlier ones decide where votes are equal.
        """
        from ...statistics.calibration import softmax  # imports scipy

        return softmax(values)

    def predicted(self, mean: Array, outputs: Outputs) -> tuple[Any, Any]:
        """Prediction of the ensemble, and references, as `METRICS` takes them.

        Args:
            mean: The mean evidence of the members.
            outputs: The predictions of one of them, with the gold answers.
        """
        predicted, gold = mean.argmax(-1), outputs.gold
        return (outputs.to_task[predicted], outputs.to_task[gold]) if len(outputs.to_task) else (predicted, gold)

    def outcomes(self, mean: Array, gold: Array) -> dict[str, float]:
        """Return the loss of the ensemble, and what else is measured on probabilities."""
        from ...statistics.calibration import log_loss

        return {"loss": log_loss(mean, gold)}


def smallest(numbers: Array) -> Any:
    """Return the smallest type for whole numbers from 0 on."""
    return np.min_scalar_type(int(numbers.max(initial=0)))


def shrunk(outputs: Outputs, members: Members) -> Outputs:
    """Return the same in the smallest types that keep what scores need."""
    values = outputs.values.astype(members.precision or smallest(outputs.values))
    gold = outputs.gold.astype(members.gold_precision or smallest(outputs.gold))
    return Outputs(
        outputs.kind, values, gold, outputs.labels, outputs.to_task.astype(np.int32), outputs.lengths.astype(np.int32)
    )
