"""What a user should see of the data before training starts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np

from .data import Data
from .encode import Encoder

LOOKED_AT = 10_000  # examples of a part, evenly spaced, whose lengths are measured


@dataclass(frozen=True)
class Lengths:
    """In tokens, special ones included, before anything is cut off; `truncated` is the share that is cut off."""

    median: float
    percentile95: float
    longest: int
    truncated: float


@dataclass(frozen=True)
class Description:
    """Rows by part; the names of the labels; how often each occurs, by part; and lengths by part.

    `balance` is empty where the label is not a class or a tag, `lengths` without a tokenizer. A translation has two
    texts: their lengths are those of the longer one.
    """

    task: str
    kind: str
    rows: dict[str, int]
    labels: tuple[str, ...]
    balance: dict[str, dict[str, int]]
    lengths: dict[str, Lengths] = field(default_factory=dict)
    max_length: int | None = None


def describe(data: Data, tokenizer: Any = None, max_length: int | None = None) -> Description:
    """Counts labels and, with a tokenizer, tokens; `max_length` is the task's unless given."""
    task, parts = data.task, data.parts()
    balance: dict[str, dict[str, int]] = {}
    if task.labels and task.label is not None:
        for name, part in parts.items():
            if task.label in part.column_names:
                values = part[task.label][:]
                counts = Counter(chain.from_iterable(values) if task.kind == "tokens" else values)
                balance[name] = {label: counts[place] for place, label in enumerate(task.labels)}
    lengths: dict[str, Lengths] = {}
    limit = task.max_length if max_length is None else max_length
    if tokenizer is not None:
        limit = min(limit, tokenizer.model_max_length)
        encoder = Encoder(task, tokenizer, None)
        for name, part in parts.items():
            places = np.unique(np.linspace(0, len(part) - 1, min(len(part), LOOKED_AT)).astype(int))
            found = encoder(part.select(places)[:])
            tokens = np.array(found["length"])
            if task.kind == "translation" and "labels" in found:
                tokens = np.maximum(tokens, [len(ids) for ids in found["labels"]])
            lengths[name] = Lengths(
                median=float(np.median(tokens)),
                percentile95=float(np.percentile(tokens, 95)),
                longest=int(tokens.max()),
                truncated=float((tokens > limit).mean()),
            )
    return Description(
        task=task.name,
        kind=task.kind,
        rows={name: len(part) for name, part in parts.items()},
        labels=task.labels,
        balance=balance,
        lengths=lengths,
        max_length=limit,
    )
