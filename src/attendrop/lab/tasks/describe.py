"""Statistics of the data that a user should see before training starts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from .catalogue import Task
from .data import Data
from .kinds import kind_of
from .modalities import modality_of
from .modalities.base import Encoder

if TYPE_CHECKING:
    from datasets import Dataset

MEASURED_EXAMPLES = 10_000  # the lengths of so many evenly spaced examples of a split are measured


@dataclass(frozen=True)
class Lengths:
    """Lengths of texts in tokens, with special tokens, or of sounds in seconds, before truncation.

    Attributes:
        median: The median length.
        percentile95: The length that 95 % of the examples do not exceed.
        longest: The length of the longest example.
        truncated: The share of examples that are longer than the maximum length.
    """

    median: float
    percentile95: float
    longest: float
    truncated: float


@dataclass(frozen=True)
class Description:
    """Statistics of a task's data.

    Attributes:
        task: The name of the task.
        kind: The kind of the task.
        rows: Split -> number of examples.
        labels: The label names.
        balance: Split -> label -> number of occurrences; empty if the label is not a class or a tag.
        lengths: Split -> lengths; empty without a processor. For a translation, the longer text of each example counts.
        max_length: The maximum length.
        unit: The unit of lengths: tokens, or seconds for sounds; None for images.
        has_several_labels: Whether an example can have several labels.
    """

    task: str
    kind: str
    rows: dict[str, int]
    labels: tuple[str, ...]
    balance: dict[str, dict[str, int]]
    lengths: dict[str, Lengths] = field(default_factory=dict)
    max_length: int | None = None
    unit: str | None = "tokens"
    has_several_labels: bool = False


def describe(data: Data, tokenizer: Any = None, max_length: int | None = None) -> Description:
    """Count examples and labels and, with a tokenizer or feature extractor, measure lengths.

    Args:
        data: The data of a task.
        tokenizer: The tokenizer of the model, or its image processor or feature extractor; None = no lengths.
        max_length: The maximum length, of texts in tokens, of sounds in seconds; None = that of the task.
    """
    task, splits = data.task, data.splits()
    limit = task.max_length if max_length is None else max_length
    lengths: dict[str, Lengths] = {}
    modality = modality_of(task)
    if tokenizer is not None and modality.unit is not None:
        limit = min(limit, getattr(tokenizer, "model_max_length", limit))
        encoder = modality.encoder(task, tokenizer, None)
        lengths = {name: _measure(task, split, encoder, limit) for name, split in splits.items()}
    return Description(
        task=task.name,
        kind=task.kind,
        rows={name: len(split) for name, split in splits.items()},
        labels=task.labels,
        balance=_count_labels(task, splits),
        lengths=lengths,
        max_length=limit,
        unit=modality.unit,
        has_several_labels=kind_of(task).has_several_labels,
    )


def _count_labels(task: Task, splits: dict[str, Dataset]) -> dict[str, dict[str, int]]:
    balance: dict[str, dict[str, int]] = {}
    if task.label is None or not task.labels:
        return balance
    for name, split in splits.items():
        if task.label in split.column_names:
            values = split[task.label][:]
            counts = Counter(chain.from_iterable(values) if kind_of(task).labels_are_lists else values)
            balance[name] = {label: counts[index] for index, label in enumerate(task.labels)}
    return balance


def _measure(task: Task, split: Dataset, encoder: Encoder, limit: int) -> Lengths:
    rows = np.unique(np.linspace(0, len(split) - 1, min(len(split), MEASURED_EXAMPLES)).astype(int))
    encoded = encoder(split.select(rows)[:])
    tokens = np.array(encoded["length"])
    if "labels" in encoded:  # the target of a translation
        tokens = np.maximum(tokens, [len(ids) for ids in encoded["labels"]])
    return Lengths(
        median=float(np.median(tokens)),
        percentile95=float(np.percentile(tokens, 95)),
        longest=tokens.max().item(),
        truncated=0.0 if kind_of(task).divides_texts else float((tokens > limit).mean()),
    )
