"""Predictions on a split and the gold answers: losses, probabilities, a baseline, and columns of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from ..catalogue import Task

Columns = dict[str, list[Any]]


class ClassCounts(NamedTuple):
    """How often each class was predicted and occurs, `[C]` each.

    Attributes:
        true_positives: How many items of the class were predicted as it.
        predicted: How many items were predicted as it.
        support: How many items are of it.
    """

    true_positives: np.ndarray
    predicted: np.ndarray
    support: np.ndarray


@dataclass
class Answers:
    """The outputs of a model on a split, and the gold answers.

    An item has one prediction. It is an example, or in tagging a word.

    Attributes:
        task: The task.
        values: From `Prepared.values`.
        gold: The right class of each item, 1 for each right label (multilabel), the number, or the text; None where it
            is not known.
        lengths: The number of words of each example, in tagging.
        is_scored: Which words are scored, in tagging.
        threshold: The probability above which a label is predicted, for several labels; one number, or one for each
            example.
    """

    task: Task
    values: Any
    gold: Any = None
    lengths: np.ndarray | None = None
    is_scored: np.ndarray | None = None
    threshold: Any = 0.5

    has_threshold: ClassVar[bool] = False  # whether each label is predicted by itself, above a probability
    has_probabilities: ClassVar[bool] = False  # and so calibration, and scores of each class
    has_confusion: ClassVar[bool] = False  # whether each item has exactly one of the classes
    marks_correct: ClassVar[bool] = False  # whether a table of errors has a column `right`
    is_compared_with_baseline: ClassVar[bool] = True  # whether a score no better than the baseline's is a warning

    @classmethod
    def of(cls, task: Task, values: Any, split: Any, word_starts: Sequence[Sequence[int]] | None = None) -> Answers:
        """Put the outputs and the labels of a split together.

        Args:
            task: The task.
            values: From `Prepared.values`.
            split: The split as it was loaded, with the labels.
            word_starts: Those of the split from `Prepared`, in tagging.
        """
        return cls(task, values, np.asarray(split[task.label][:], int))

    @property
    def examples(self) -> int:
        return len(self.values) if self.lengths is None else len(self.lengths)

    @property
    def predicted(self) -> Any:
        """The class of each item, 1 for each label, or the values themselves."""
        return self.values

    def for_metrics(self, predicted: Any) -> tuple[Any, Any]:
        """Return predictions and references as `tasks.METRICS` takes them."""
        return predicted, self.gold

    def losses(self, temperature: float = 1.0) -> np.ndarray:
        """Return the loss of each example, to find the worst ones.

        Args:
            temperature: The logits are divided by it, as in `columns`.
        """
        raise NotImplementedError

    def most_frequent(self) -> tuple[Any, str | None]:
        """Return the best constant prediction for every item, and in words; None where there is none."""
        return None, None

    def warnings(self, split: str) -> list[str]:
        """Sentences about predictions that are all the same."""
        return []

    def decimals(self) -> int:
        """Return how many decimals of predicted numbers mean something."""
        return 4

    def decoded(self) -> list[Any]:
        """Return one prediction for each example: a label name, a number, a list of labels, or a text."""
        return list(self.values)

    def columns(self, temperature: float, decimals: int, word_starts: Sequence[Sequence[int]] | None) -> Columns:
        """Return the columns that predictions add to a table of the examples.

        Args:
            temperature: The logits are divided by it.
            decimals: Predicted numbers are rounded to so many decimals.
            word_starts: Those of `Prepared`, in tagging.
        """
        return {"prediction": self.decoded()}

    # ---- where there are probabilities -----------------------------------------------------------------------------

    def scored(self) -> tuple[np.ndarray, np.ndarray]:
        """Logits and right classes of the items that are scored; each label of a multi-label item is one item."""
        return self.values, self.gold

    def probabilities(self, temperature: float = 1.0) -> np.ndarray:
        """Return the probability of each class of each item; of each label by itself for several labels."""
        from ...statistics.calibration import softmax  # imports scipy

        return softmax(self.values, temperature)

    def class_counts(self) -> ClassCounts:
        """Return how often each class was predicted, and occurs."""
        counts = self.confusion()
        return ClassCounts(np.diag(counts), counts.sum(0), counts.sum(1))

    def confusion(self) -> np.ndarray:
        """Return how many items of each right class (rows) were predicted as each class (columns)."""
        logits, gold = self.scored()
        size = len(self.task.labels)
        return np.bincount(gold * size + logits.argmax(-1), minlength=size * size).reshape(size, size)


class ClassAnswers(Answers):
    """Each item has one of the classes."""

    has_probabilities = has_confusion = marks_correct = True

    @property
    def predicted(self) -> Any:
        return self.values.argmax(-1)

    def losses(self, temperature: float = 1.0) -> np.ndarray:
        """-log of the probability of the right class."""
        probabilities = self.probabilities(temperature)[np.arange(len(self.gold)), self.gold]
        return -np.log(np.maximum(probabilities, 1e-15))

    def most_frequent(self) -> tuple[Any, str | None]:
        first = int(np.bincount(self.scored()[1]).argmax())
        return np.full(len(self.gold), first), f"{self.task.labels[first]}"

    def warnings(self, split: str) -> list[str]:
        gold = np.bincount(self.scored()[1])
        predicted = np.unique(self.predicted)
        if np.count_nonzero(gold) < 2 or len(predicted) != 1:
            return []
        share = gold[predicted[0]] / gold.sum() if predicted[0] < len(gold) else 0.0
        return [
            f"the model answers {self.task.labels[predicted[0]]!r} for every item of {split}, which is right for "
            f"{share:.1%}: it has not learned to tell the classes apart; train longer, raise --learning-rate, or "
            "use --class-weights balanced"
        ]

    def decoded(self) -> list[Any]:
        return [self.task.labels[index] for index in self.values.argmax(-1)]

    def columns(self, temperature: float, decimals: int, word_starts: Sequence[Sequence[int]] | None) -> Columns:
        """`prediction`, and `probability_<class>` for each class."""
        rounded = np.round(self.probabilities(temperature), 4).T.tolist()
        probabilities = {f"probability_{label}": part for label, part in zip(self.task.labels, rounded, strict=True)}
        return {"prediction": self.decoded(), **probabilities}
