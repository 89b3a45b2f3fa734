"""Regression: each example has a number."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..files import Problem, Table
from ..values import as_number
from .answers import Answers, Columns
from .base import Kind
from .codec import Codec, first_of
from .heads import NumberHead
from .members import Array, Members, Outputs
from .reading import Reading
from .snippets import Snippet

if TYPE_CHECKING:
    from ..catalogue import Task


class NumberReading(Reading):
    """Labels are numbers."""

    label_feature = "float64"

    def problem_of_value(self, text: str, value: Any) -> Problem | None:
        is_number = as_number(value) is not None
        return None if is_number else Problem(text, "a regression needs numbers, with a decimal point", "number")

    def labels(self, table: Table, task: Task) -> tuple[tuple[str, ...], list[str]]:
        return (), []

    def label_keys(self, table: Table, task: Task) -> list[Any]:
        return [as_number(value) for value in table.columns[str(task.label)]]


class NumberCodec(Codec):
    """The one output of the head is the number."""

    compares_examples = True

    def encode_labels(self, values: list[Any], encoded: Mapping[str, list[Any]]) -> list[Any]:
        return [float(value) for value in values]

    def predicted(self, outputs: np.ndarray) -> np.ndarray:
        return outputs.reshape(-1)

    def quality_of(self, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
        """Return minus the squared error of each example."""
        return -((predicted.astype(float) - gold.reshape(-1)) ** 2)

    def values(self, predictions: Any, split: str = "test") -> Any:
        return first_of(predictions).reshape(-1)


class NumberAnswers(Answers):
    """Predicted numbers."""

    is_compared_with_baseline = False  # the correlation with a constant is 0

    @classmethod
    def of(cls, task: Task, values: Any, split: Any, word_starts: Sequence[Sequence[int]] | None = None) -> Answers:
        return cls(task, values, np.asarray(split[task.label][:], float))

    def losses(self, temperature: float = 1.0) -> np.ndarray:
        """Return the squared error of each example."""
        return np.asarray((self.values - self.gold) ** 2)

    def most_frequent(self) -> tuple[Any, str | None]:
        return np.full(len(self.gold), self.gold.mean()), f"the mean, {self.gold.mean():.4g}"

    def warnings(self, split: str) -> list[str]:
        if np.ptp(self.values) < 1e-3 * max(np.ptp(self.gold), 1e-12):
            return [f"the model predicts almost the same number for every example of {split}"]
        return []

    def decimals(self) -> int:
        """Return how many decimals of the predictions mean something.

        They go down to a hundredth of the error, or of the spread of the predictions where that is smaller, so that
        predictions keep their order.
        """
        error = float(np.sqrt(np.mean((self.values - self.gold) ** 2)))
        least = min(error, float(np.std(self.values)))
        if not least > 0 or not math.isfinite(least):
            return 4
        return min(6, max(0, math.ceil(-math.log10(least / 100))))

    def decoded(self) -> list[Any]:
        numbers: list[Any] = self.values.tolist()
        return numbers

    def columns(self, temperature: float, decimals: int, word_starts: Sequence[Sequence[int]] | None) -> Columns:
        return {"prediction": np.round(np.asarray(self.values, float), decimals).tolist()}


class NumberMembers(Members):
    """Numbers are averaged."""

    precision = gold_precision = np.float32

    def reduce(self, outputs: Outputs) -> None:
        outputs.values, outputs.gold = outputs.values.reshape(-1), outputs.gold.reshape(-1)

    def evidence(self, outputs: Outputs, values: Array, place: int) -> Array:
        return values

    def predicted(self, mean: Array, outputs: Outputs) -> tuple[Any, Any]:
        return mean, outputs.gold

    def outcomes(self, mean: Array, gold: Array) -> dict[str, float]:
        return {"loss": float(np.mean((mean - gold) ** 2))}


class NumberSnippet(Snippet):
    """The lines for a number of each text."""

    def answers(self, scaled: str, threshold: float) -> str:
        return "numbers = logits.squeeze(-1).tolist()"


class Regression(Kind):
    """A number for each example."""

    name = "regression"
    modalities = ("text", "image")
    metrics = ("pearson", "spearman", "rmse")
    has_numbers = can_be_pooled = True
    reading = NumberReading()
    codec = NumberCodec
    answers = NumberAnswers
    linear = NumberHead()
    members = NumberMembers()
    snippet = NumberSnippet()

    def set_head(self, config: Any, labels: tuple[str, ...]) -> None:
        config.num_labels, config.problem_type = 1, "regression"

    def as_values(self, outputs: Any) -> Any:
        return outputs.reshape(-1)
