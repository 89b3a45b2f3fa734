"""Multi-label classification: each example has any number of the labels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from ....errors import UserError
from ..files import Problem, Table
from ..values import check_classes, is_missing, missing, sorted_names, split_labels
from .answers import Answers, ClassAnswers, ClassCounts
from .base import Kind
from .codec import ClassCodec, first_of
from .heads import LabelHead
from .members import Array, Members, Outputs
from .reading import Found, Reading, Request
from .snippets import Snippet

if TYPE_CHECKING:
    from ..catalogue import Task


class SetReading(Reading):
    """A cell holds a list of labels, or a text in which a sign stands between them."""

    def task(self, kind: str, name: str, columns: Found, request: Request) -> Task:
        task = super().task(kind, name, columns, dataclasses.replace(request, label_separator=None))
        return dataclasses.replace(task, label_separator=request.label_separator)

    def check_label_column(self, table: Table, task: Task) -> None:
        texts = [value for value in table.columns[str(task.label)] if isinstance(value, str)]
        if texts and task.label_separator is None:
            raise UserError(
                f"column {task.label!r} of {table.path} holds texts, such as {texts[0]!r}, and no lists; name the sign "
                "between the labels with --label-separator."
            )

    def problem_of_label(self, table: Table, task: Task, row: int) -> Problem | None:
        column = str(task.label)
        value = table.columns[column][row]
        if value is None or (isinstance(value, float) and math.isnan(value)):
            return missing("list of labels", column)
        if isinstance(value, str):
            return None
        if isinstance(value, list) and not any(is_missing(name) or isinstance(name, (list, dict)) for name in value):
            return None
        return Problem(f"has {value!r:.80} in column {column!r}", "it must be a list of labels", f"set {column}")

    def names_in(self, value: Any, name_of: Callable[[Any], str], task: Task) -> Any:
        return list(dict.fromkeys(name_of(name) for name in split_labels(value, task)))

    def labels(self, table: Table, task: Task) -> tuple[tuple[str, ...], list[str]]:
        """Return the names of the labels. One label is enough: examples have it or not."""
        names = self.flat(self.label_names(table, task))
        if len(set(names)) != 1:
            check_classes(table, str(task.label), names)
        return sorted_names(set(names)), []

    def written(self, table: Table, task: Task) -> Any:
        return chain.from_iterable(split_labels(value, task) for value in table.columns[str(task.label)])

    def flat(self, labels: Sequence[Any]) -> list[Any]:
        return list(chain.from_iterable(labels))

    def label_keys(self, table: Table, task: Task) -> list[Any]:
        return [frozenset(names) for names in self.label_names(table, task)]


class SetCodec(ClassCodec):
    """The model learns 1 for each label that an example has, and 0 for the others."""

    def encode_labels(self, values: list[Any], encoded: Mapping[str, list[Any]]) -> list[Any]:
        present = np.zeros((len(values), len(self.labels)))
        for row, indices in enumerate(values):
            present[row, [self.to_model[index] for index in indices]] = 1
        rows: list[Any] = present.tolist()
        return rows

    def predicted(self, outputs: np.ndarray) -> np.ndarray:
        """1 for each label that the head predicts."""
        return (outputs > 0).astype(int)

    def for_metrics(self, predicted: np.ndarray, gold: np.ndarray) -> tuple[Any, Any]:
        return predicted[:, self.to_model], gold[:, self.to_model].astype(int)

    def quality_of(self, predicted: np.ndarray, gold: np.ndarray) -> np.ndarray:
        """Return the F1 of the labels of each example; 1 where it has none and gets none."""
        true_positives, sizes = (predicted * gold).sum(-1), predicted.sum(-1) + gold.sum(-1)
        return np.where(sizes > 0, 2 * true_positives / np.maximum(sizes, 1), 1.0)

    def decode(self, predictions: Any, split: str = "test") -> list[Any]:
        rows = self.predicted(first_of(predictions))[:, self.to_model]
        return [[self.task.labels[i] for i in np.flatnonzero(row)] for row in rows]


class SetAnswers(ClassAnswers):
    """Each label of an example is predicted by itself."""

    has_confusion = marks_correct = False
    has_threshold = True

    @classmethod
    def of(cls, task: Task, values: Any, split: Any, word_starts: Sequence[Sequence[int]] | None = None) -> Answers:
        labels = split[task.label][:]
        gold = np.zeros((len(labels), len(task.labels)), int)
        for row, indices in enumerate(labels):
            gold[row, indices] = 1
        return cls(task, values, gold)

    @property
    def predicted(self) -> Any:
        threshold = np.asarray(self.threshold, float)
        cut = np.log(threshold / (1 - threshold))
        return (self.values > (cut[:, None] if cut.ndim else cut)).astype(int)

    def losses(self, temperature: float = 1.0) -> np.ndarray:
        """Return the mean over the labels of -log of the probability of the gold value."""
        logits = self.values / temperature
        return np.asarray(np.logaddexp(0, np.where(self.gold == 1, -logits, logits)).mean(-1))

    def most_frequent(self) -> tuple[Any, str | None]:
        usual = self.gold.mean(0) > 0.5
        names = [name for name, is_usual in zip(self.task.labels, usual, strict=True) if is_usual]
        return np.tile(usual.astype(int), (len(self.gold), 1)), f"{', '.join(names) or 'no label'}"

    def warnings(self, split: str) -> list[str]:
        return []

    def decoded(self) -> list[Any]:
        labels = np.array(self.task.labels, dtype=object)
        return [labels[row == 1].tolist() for row in self.predicted]

    def scored(self) -> tuple[np.ndarray, np.ndarray]:
        flat = self.values.reshape(-1)
        return np.stack([np.zeros_like(flat), flat], -1), self.gold.reshape(-1)

    def probabilities(self, temperature: float = 1.0) -> np.ndarray:
        return 1 / (1 + np.exp(-np.clip(np.asarray(self.values, float) / temperature, -500, 500)))

    def class_counts(self) -> ClassCounts:
        predicted = self.predicted
        return ClassCounts((predicted & self.gold).sum(0), predicted.sum(0), self.gold.sum(0))


class SetMembers(Members):
    """Probabilities of each label are averaged."""

    def reduce(self, outputs: Outputs) -> None:
        """All logits are kept as they are."""

    def evidence(self, outputs: Outputs, values: Array, place: int) -> Array:
        return np.asarray(1 / (1 + np.exp(-np.clip(values, -500, 500))))

    def predicted(self, mean: Array, outputs: Outputs) -> tuple[Any, Any]:
        return (mean > 0.5).astype(int), outputs.gold

    def outcomes(self, mean: Array, gold: Array) -> dict[str, float]:
        probability = np.where(gold == 1, mean, 1 - mean)
        return {"loss": float(-np.log(np.maximum(probability, 1e-15)).mean())}


class SetSnippet(Snippet):
    """The lines for the labels of each text."""

    def pipeline_options(self) -> str:
        return ", top_k=None"

    def answers(self, scaled: str, threshold: float) -> str:
        return (
            f"probabilities = {scaled}.sigmoid()\n"
            "labels = [\n"
            f"    [model.config.id2label[i] for i, p in enumerate(row) if p > {threshold!r}]\n"
            "    for row in logits.sigmoid().tolist()\n"
            "]"
        )


class Multilabel(Kind):
    """Any number of the labels for each example."""

    name, spoken = "multilabel", "multi-label classification"
    modalities = ("text", "image")
    metrics = ("micro_f1", "macro_f1", "exact_match")
    has_named_labels = has_several_labels = True
    can_be_pooled = can_weigh_classes = can_focus = True
    learning_rate = 5e-5  # each label is rare: at half of it a few hundred steps teach little
    reading = SetReading()
    codec = SetCodec
    answers = SetAnswers
    linear = LabelHead()
    members = SetMembers()
    snippet = SetSnippet()

    def label_name(self, task: Task, value: Any) -> Any:
        return [task.labels[index] for index in value]

    def set_head(self, config: Any, labels: tuple[str, ...]) -> None:
        super().set_head(config, labels)
        config.problem_type = "multi_label_classification"
