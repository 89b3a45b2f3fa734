"""The data of a compression: texts to train on, a selection of the training data, and the validation data.

The selection is split off the training data: layers, the learning rate and the last stage are chosen on it. The
validation data of the run are used once, at the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import UserError
from .. import tasks
from ..records import FolderRecord
from ..runs.data import data_of_run

SELECTION_SHARE, MOST_SELECTED, FEWEST_SELECTED = 0.2, 1000, 10
LONG = 0.9  # the quantile of the lengths of the larger shape
LARGE = 16  # its texts

Batch = Mapping[str, Any]


@dataclasses.dataclass
class CompressionData:
    """What a compression reads.

    Attributes:
        batches: Batches to train on, of texts of similar length.
        held_out: Batches of the selection, with labels.
        shapes: Shape of the inputs -> real examples of this shape, to measure the latency on.
        selection: The selection, as `Data.test`.
        validation: The validation data, as `Data.test`.
        trained: The number of examples to train on from the run.
        unlabelled: The number of further texts.
    """

    batches: list[Batch]
    held_out: list[Batch]
    shapes: dict[str, Batch]
    selection: tasks.Data
    validation: tasks.Data
    trained: int
    unlabelled: int


def read_data(
    folder: str | Path, record: FolderRecord, tokenizer: Any, unlabelled: str | Path | None, batch_size: int, seed: int
) -> CompressionData:
    """Read the data of a run, and further texts.

    Args:
        folder: The folder of the run.
        record: Its record.
        tokenizer: Its tokenizer or processor.
        unlabelled: A file with more texts, with the columns of the training file; labels are not read.
        batch_size: The number of examples in a batch.
        seed: The seed of the selection.
    """
    task = tasks.Task.from_dict(record.task_definition)
    data = data_of_run(folder, record)
    if data.train is None or data.validation is None:
        raise UserError(f"{str(folder)!r} was trained without validation data, so its score cannot be compared.")
    whole = tasks.Data(task, data.train, None)
    share = min(SELECTION_SHARE, MOST_SELECTED / len(data.train))
    split = tasks.split_validation(whole, share, seed)
    assert split.validation is not None
    assert split.train is not None
    if len(split.validation) < FEWEST_SELECTED:
        raise UserError(
            f"{str(folder)!r} has {len(data.train)} training examples, too few to choose layers on {share:.0%} of "
            f"them; at least {FEWEST_SELECTED / SELECTION_SHARE:.0f} are needed."
        )
    more = None if unlabelled is None else tasks.load_inputs(unlabelled, task).test
    parts = {"train": split.train, "validation": split.validation} | ({"test": more} if more is not None else {})
    prepared = tasks.prepare(whole.with_splits(parts), tokenizer, record.max_length)
    batches = _batches(prepared.train, prepared, tokenizer, batch_size, seed)
    if prepared.test is not None:
        batches += _batches(prepared.test, prepared, tokenizer, batch_size, seed)
    return CompressionData(
        batches=batches,
        held_out=_batches(prepared.validation, prepared, tokenizer, batch_size, seed, most=256),
        shapes=_shapes(prepared.train, prepared, tokenizer),
        selection=tasks.Data(task, None, None, split.validation),
        validation=tasks.Data(task, None, None, data.validation),
        trained=len(split.train),
        unlabelled=0 if more is None else len(more),
    )


def _columns(split: Any, prepared: tasks.Prepared, tokenizer: Any) -> Any:
    if prepared.keeps_columns:
        return split
    names = [name for name in split.column_names if name in (*tokenizer.model_input_names, "labels")]
    return split.select_columns(names)


def _batches(
    split: Any, prepared: tasks.Prepared, tokenizer: Any, size: int, seed: int, most: int | None = None
) -> list[Batch]:
    """Return the batches of a split: texts of similar length together, drawn anew where lengths are equal."""
    lengths = np.asarray(split["length"][:])
    order = np.random.default_rng(seed).permutation(len(lengths))[:most]
    order = order[np.argsort(lengths[order], kind="stable")]
    split = _columns(split, prepared, tokenizer)
    return [_batch(split, order[first : first + size], prepared) for first in range(0, len(order), size)]


def _batch(split: Any, rows: Sequence[int] | np.ndarray, prepared: tasks.Prepared) -> Batch:
    batch = prepared.collator([split[int(row)] for row in rows])
    return {name: value for name, value in batch.items() if isinstance(value, Tensor)}


def _shapes(split: Any, prepared: tasks.Prepared, tokenizer: Any) -> dict[str, Batch]:
    """Return one example of the median length, and many of about the length that nine of ten do not exceed."""
    lengths = np.asarray(split["length"][:])
    order, split = np.argsort(lengths, kind="stable"), _columns(split, prepared, tokenizer)
    shapes: dict[str, Batch] = {}
    for size, quantile in ((1, 0.5), (LARGE, LONG)):
        end = min(len(order), max(size, round(quantile * len(order))))
        batch = {name: x for name, x in _batch(split, order[end - size : end], prepared).items() if name != "labels"}
        first = next(iter(batch.values()))
        shapes[" × ".join(map(str, first.shape))] = {name: x.contiguous() for name, x in batch.items()}
    return shapes


def on_device(shapes: Mapping[str, Batch], device: torch.device) -> dict[str, Batch]:
    """Return batches on a device.

    Args:
        shapes: Name -> batch.
        device: The device.
    """
    return {shape: {name: x.to(device) for name, x in batch.items()} for shape, batch in shapes.items()}
