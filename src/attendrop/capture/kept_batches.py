"""Evaluation batches that are collated once and stay in pinned memory.

A forward from a graph takes a small model less time than the collator needs for the next batch. The batches of an
evaluation are the same each time, so later evaluations, also those of later runs on the same data, reuse them. The
Trainer's dataloader stays: its data set gives numbers of examples, and its collator looks up their batch.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
import transformers
from torch import Tensor
from torch.utils.data import Dataset

_MOST_BYTES = 1 << 28  # of the batches of one data set that are kept

# Collators whose batches depend on nothing but the examples. Others say so with `is_deterministic`.
_DETERMINISTIC: tuple[Any, ...] = (
    transformers.DataCollatorWithPadding,
    transformers.DataCollatorForTokenClassification,
    transformers.DataCollatorForSeq2Seq,
    transformers.DefaultDataCollator,
    transformers.default_data_collator,
)

_kept: WeakKeyDictionary[Any, KeptBatches] = WeakKeyDictionary()  # by the data set


class KeptBatches(Dataset[int]):
    """The numbers of the examples of a data set, and their batches.

    Args:
        examples: The data set, with the columns that the model reads.
        collator: Makes a batch of examples.
        key: What else the batches depend on.
        pins: Whether batches are kept in pinned memory.
    """

    def __init__(self, examples: Any, collator: Callable[[list[Any]], Any], key: Any, pins: bool) -> None:
        self.examples, self.collator, self.key, self._pins = examples, collator, key, pins
        self._batches: dict[tuple[int, ...], Any] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self.examples)

    def __getitem__(self, number: int) -> int:
        return number

    def collate(self, numbers: Sequence[int]) -> Any:
        """Return the batch of the examples with these numbers, in a mapping of its own."""
        key = tuple(numbers)
        if key not in self._batches:
            batch = self.collator(self._examples(key))
            size = sum(x.nbytes for x in batch.values() if isinstance(x, Tensor))
            if self._bytes + size > _MOST_BYTES:
                return batch
            for name, value in list(batch.items()) if self._pins else ():
                if isinstance(value, Tensor):
                    batch[name] = value.pin_memory()
            self._batches[key], self._bytes = batch, self._bytes + size
        return copy.copy(self._batches[key])

    def _examples(self, numbers: tuple[int, ...]) -> list[Any]:
        """Return the examples as a dataloader fetches them."""
        fetch = getattr(self.examples, "__getitems__", None)
        return fetch(list(numbers)) if fetch else [self.examples[number] for number in numbers]


def kept_batches(dataset: Any, columns: Callable[[Any], Any], collator: Any) -> KeptBatches | None:
    """Return the batches of a data set; None where an evaluation may not reuse them.

    Args:
        dataset: The data set as the user gave it. Only those of `datasets` are known not to change.
        columns: Removes from it the columns that the model does not read.
        collator: The Trainer's.
    """
    datasets = sys.modules.get("datasets")  # an optional package: without it there is no such data set
    is_known = type(collator) in _DETERMINISTIC or collator in _DETERMINISTIC
    if datasets is None or not (is_known or getattr(collator, "is_deterministic", False)):
        return None
    if not isinstance(dataset, datasets.Dataset):
        return None
    if dataset.format["type"] == "custom":  # a transform may draw
        return None
    examples, kept = columns(dataset), _kept.get(dataset)
    key = examples.column_names, examples.format, _settings(collator)
    if kept is None or kept.collator is not collator or kept.key != key:
        examples = copy.copy(dataset) if examples is dataset else examples  # so that the data set can be freed
        kept = _kept[dataset] = KeptBatches(examples, collator, key, torch.cuda.is_available())
    return kept


def _settings(collator: Any) -> dict[str, Any]:
    """Return what the user may change between two evaluations: the settings of a collator and of its tokenizer."""
    own = {
        name: x for name, x in getattr(collator, "__dict__", {}).items() if isinstance(x, (bool, int, str, type(None)))
    }
    tokenizer = getattr(collator, "tokenizer", None)
    return {**own, "tokenizer": [getattr(tokenizer, name, None) for name in ("padding_side", "pad_token_id")]}
