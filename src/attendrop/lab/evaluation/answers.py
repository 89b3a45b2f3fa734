"""What a model answered on a split with labels, in the shape that scores, intervals and tables need."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from .. import tasks
from ..statistics.calibration import softmax

CLASSES = ("classification", "choice", "tokens")  # each item has one of the classes
Statistic = Callable[..., float]


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


def statistic(name: str, answers: Answers) -> tuple[Statistic, list[np.ndarray]]:
    """A metric as a fast function of columns with one row for each example, for the bootstrap.

    Args:
        name: The name of the metric.
        answers: The answers.
    """
    kind, gold, predicted = answers.task.kind, answers.gold, answers.predicted
    if kind == "translation":
        return _bleu(predicted, gold)
    if kind == "regression":
        return tasks.METRICS[name], [predicted, gold]
    if kind == "tokens":
        return _of_sentences(name, *answers.for_metrics(predicted))
    if name in ("accuracy", "exact_match"):
        right = predicted == gold
        return np.mean, [(right.all(-1) if kind == "multilabel" else right).astype(float)]
    if kind == "multilabel":
        counts = np.stack([predicted & gold, predicted, gold], 1).astype(float)  # [N, 3, labels]
        axis = (0, 2) if name == "micro_f1" else 0
        return lambda rows: float(np.mean(f1_of(*_three(rows.sum(axis))))), [counts]
    size = len(answers.task.labels)

    def score(cells: np.ndarray) -> float:
        return of_confusion(name, np.bincount(cells, minlength=size * size).reshape(size, size))

    return score, [gold * size + predicted]


def _three(sums: np.ndarray) -> tuple[Any, Any, Any]:
    return sums[0], sums[1], sums[2]


def f1_of(right: Any, predicted: Any, gold: Any) -> Any:
    """F1 from counts: how many were rightly predicted, predicted at all, and there."""
    return 2 * right / np.maximum(predicted + gold, 1)


def of_confusion(name: str, counts: np.ndarray) -> float:
    """Accuracy, F1 of class 1, macro F1 or Matthews correlation of a confusion matrix.

    Args:
        name: The name of the metric.
        counts: The confusion matrix; its rows are the right classes.
    """
    right, predicted, gold, total = np.diag(counts), counts.sum(0), counts.sum(1), counts.sum()
    if name == "accuracy":
        return float(right.sum() / total)
    if name == "mcc":
        covariance = right.sum() * total - float(predicted @ gold)
        spread = (float(total) ** 2 - float(predicted @ predicted)) * (float(total) ** 2 - float(gold @ gold))
        return float(covariance / np.sqrt(spread)) if spread > 0 else 0.0
    scores = f1_of(right, predicted, gold)
    return float(scores[1]) if name == "f1" else float(scores[predicted + gold > 0].mean())


def _of_sentences(name: str, predicted: list[Any], gold: list[Any]) -> tuple[Statistic, list[np.ndarray]]:
    """Scores of tagging from counts of each sentence: entities or words that are right, predicted and there."""
    from seqeval.metrics.sequence_labeling import get_entities

    def counts(said: list[Any], right: list[Any]) -> tuple[int, int, int]:
        if name == "token_accuracy":
            return sum(a == b for a, b in zip(said, right, strict=True)), len(said), len(right)
        found, there = set(get_entities(said)), set(get_entities(right))
        return len(found & there), len(found), len(there)

    table = np.array([counts(*pair) for pair in zip(predicted, gold, strict=True)], float)
    place = {"entity_precision": 1, "entity_recall": 2}.get(name)

    def score(rows: np.ndarray) -> float:
        sums = rows.sum(0)
        return float(f1_of(*_three(sums)) if place is None else sums[0] / max(sums[place], 1))

    return score, [table]


def _bleu(predicted: list[str], gold: list[str]) -> tuple[Statistic, list[np.ndarray]]:
    from sacrebleu.metrics import BLEU

    bleu = BLEU(effective_order=True)
    parts = [bleu.sentence_score(said, [right]) for said, right in zip(predicted, gold, strict=True)]
    table = np.array([[*part.counts, *part.totals, part.sys_len, part.ref_len] for part in parts], float)
    order = (table.shape[1] - 2) // 2

    def score(rows: np.ndarray) -> float:
        sums = rows.sum(0).astype(int).tolist()
        counts, totals = sums[:order], sums[order : 2 * order]
        return float(BLEU.compute_bleu(counts, totals, *sums[2 * order :], smooth_method="exp").score)

    return score, [table]
