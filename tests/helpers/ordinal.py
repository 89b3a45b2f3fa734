"""A kind of task in one file: classes with an order, scored by how many ranks a prediction is off."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from attendrop.lab.tasks import Metric
from attendrop.lab.tasks.kinds.answers import ClassAnswers
from attendrop.lab.tasks.kinds.classification import Classification


def rank_error(predictions: Sequence[int], references: Sequence[int]) -> float:
    """The mean distance of the predicted rank from the right one."""
    return float(np.abs(np.asarray(predictions) - np.asarray(references)).mean())


RANK_ERROR = Metric("rank_error", rank_error, ("classes",), greater_is_better=False)


class RankAnswers(ClassAnswers):
    """The predicted rank of each example."""

    def losses(self, temperature: float = 1.0) -> np.ndarray:
        """The expected distance from the right rank."""
        ranks = np.arange(len(self.task.labels))
        return (self.probabilities() * np.abs(ranks - self.gold[:, None])).sum(-1)

    def most_frequent(self) -> tuple[np.ndarray, str]:
        """The median, which is the best constant."""
        median = int(np.quantile(self.gold, 0.5, method="inverted_cdf"))
        return np.full(len(self.gold), median), f"the median, {self.task.labels[median]}"


class Ordinal(Classification):
    """Classes with an order, such as one to five stars."""

    name = "ordinal"
    metrics = ("rank_error", "accuracy")
    answers = RankAnswers
