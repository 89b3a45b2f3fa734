"""What a model answered on a split with labels, in the shape that scores, intervals and tables need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from .. import tasks
from ..statistics.calibration import softmax

CLASSES = ("classification", "choice", "tokens")  # each item has one of the classes


@dataclass
class Answers:
    """The outputs of a model on a split, and what is right.

    An item is what gets one answer: an example, or in tagging a word.

    Attributes:
        task: The task.
        values: From `Prepared.values`.
        gold: The right class of each item, 1 for each right label (multilabel), the number, or the text.
        lengths: The number of words of each example, in tagging.
        is_scored: Which words are scored, in tagging.
    """

    task: tasks.Task
    values: Any
    gold: Any
    lengths: np.ndarray | None = None
    is_scored: np.ndarray | None = None

    @classmethod
    def of(cls, task: tasks.Task, values: Any, split: Any, word_starts: Sequence[Sequence[int]] | None) -> Answers:
        """Put the outputs and the labels of a split together.

        Args:
            task: The task.
            values: From `Prepared.values`.
            split: The split as it was loaded, with the labels.
            word_starts: Those of the split from `Prepared`, in tagging.
        """
        if task.kind == "translation":
            return cls(task, values, list(split[task.text[1]]))
        labels = split[task.label][:]
        if task.kind == "multilabel":
            gold = np.zeros((len(labels), len(task.labels)), int)
            for row, indices in enumerate(labels):
                gold[row, indices] = 1
            return cls(task, values, gold)
        if task.kind == "tokens":
            assert word_starts is not None
            lengths = np.array([len(row) for row in labels])
            starts = np.fromiter(chain.from_iterable(word_starts), int, lengths.sum())
            return cls(task, values, np.fromiter(chain.from_iterable(labels), int), lengths, starts >= 0)
        return cls(task, values, np.asarray(labels, float if task.kind == "regression" else int))

    @property
    def examples(self) -> int:
        return len(self.values) if self.lengths is None else len(self.lengths)

    @property
    def predicted(self) -> Any:
        """The class of each item, 1 for each label, or the values themselves."""
        if self.task.kind in CLASSES:
            return self.values.argmax(-1)
        return (self.values > 0).astype(int) if self.task.kind == "multilabel" else self.values

    def for_metrics(self, predicted: Any) -> tuple[Any, Any]:
        """Predictions and references as `tasks.METRICS` takes them."""
        if self.task.kind != "tokens":
            return predicted, self.gold
        names = np.array(self.task.labels, dtype=object)
        return self._sentences(names[predicted]), self._sentences(names[self.gold])

    def _sentences(self, words: np.ndarray) -> list[list[Any]]:
        assert self.lengths is not None
        assert self.is_scored is not None
        ends = np.cumsum(self.lengths)[:-1]
        parts = zip(np.split(words, ends), np.split(self.is_scored, ends), strict=True)
        return [list(part[mask]) for part, mask in parts]

    def scored(self) -> tuple[np.ndarray, np.ndarray]:
        """Logits and right classes of the items that are scored; each label of a multi-label item is one item."""
        if self.task.kind == "multilabel":
            flat = self.values.reshape(-1)
            return np.stack([np.zeros_like(flat), flat], -1), self.gold.reshape(-1)
        if self.is_scored is None:
            return self.values, self.gold
        return self.values[self.is_scored], self.gold[self.is_scored]

    def probabilities(self, temperature: float = 1.0) -> np.ndarray:
        """The probability of each class of each item; of each label by itself for several labels."""
        return probabilities(self.task, self.values, temperature)

    def losses(self) -> np.ndarray:
        """The loss of each example: -log of the probability of what is right (the mean over its words or labels), the
        squared error of a regression, or of a translation 1 minus its chrF, which needs no probabilities."""
        kind = self.task.kind
        if kind == "translation":
            from sacrebleu import sentence_chrf

            pairs = zip(self.values, self.gold, strict=True)
            return np.array([1 - sentence_chrf(said, [right]).score / 100 for said, right in pairs])
        if kind == "regression":
            return (self.values - self.gold) ** 2
        if kind == "multilabel":
            return np.logaddexp(0, np.where(self.gold == 1, -self.values, self.values)).mean(-1)
        chances = self.probabilities()[np.arange(len(self.gold)), self.gold]
        losses = -np.log(np.maximum(chances, 1e-15))
        if self.lengths is None or self.is_scored is None:
            return losses
        rows = np.repeat(np.arange(len(self.lengths)), self.lengths)
        counts = np.bincount(rows, self.is_scored, len(self.lengths))
        return np.bincount(rows, losses * self.is_scored, len(self.lengths)) / np.maximum(counts, 1)


def probabilities(task: tasks.Task, values: Any, temperature: float = 1.0) -> np.ndarray:
    """The probabilities that the outputs of a model stand for.

    Args:
        task: The task.
        values: From `Prepared.values`.
        temperature: The logits are divided by it.
    """
    if task.kind == "multilabel":
        return 1 / (1 + np.exp(-np.clip(np.asarray(values, float) / temperature, -500, 500)))
    return softmax(values, temperature)
