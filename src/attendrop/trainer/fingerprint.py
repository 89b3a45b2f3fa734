"""Fingerprints of data sets and of a model, with which a resumed run checks that they have not changed."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..random import all_preserved
from ..utils.files import CONTENT

_ROWS = 1000  # rows of an Arrow table that are read at once
_SAMPLE = 32  # examples of a data set of unknown type that are read


def model_fingerprint(model: nn.Module) -> str:
    """Return the class of a model, its parameter count and a checksum of their names, shapes and `requires_grad`."""
    checksum = hashlib.sha256()
    count = 0
    for name, parameter in model.named_parameters():
        checksum.update(f"{name} {tuple(parameter.shape)} {parameter.requires_grad}\n".encode())
        count += parameter.numel()
    return f"{type(model).__name__}, {count:,} parameters, checksum {checksum.hexdigest()[:12]}"


def data_fingerprint(dataset: Any) -> str | None:
    """Return the number of examples of a data set and a checksum of them; None for one that has no length.

    All examples of a `datasets.Dataset`, a list or a tuple are read. Of another data set a few examples are, and only
    if they are the same when they are read twice, because a data set may change them at random.
    """
    if dataset is None:
        return None
    if isinstance(dataset, Mapping):
        return "; ".join(f"{name}: {data_fingerprint(part)}" for name, part in sorted(dataset.items()))
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        return None
    checksum = _checksum(dataset)
    count = f"{len(dataset):,} examples"
    return count if checksum is None else f"{count}, checksum {checksum[:12]}"


def _checksum(dataset: Any) -> str | None:
    if isinstance(dataset, torch.utils.data.Subset):
        inner = _checksum(dataset.dataset)
        return None if inner is None else _digest([[inner, list(dataset.indices)]])
    if hasattr(dataset, "with_format") and hasattr(dataset, "column_names"):
        return _arrow_checksum(dataset)
    if isinstance(dataset, (list, tuple)):
        return _digest(dataset)
    places = sorted({round(i * (len(dataset) - 1) / (_SAMPLE - 1)) for i in range(_SAMPLE)}) if len(dataset) else []
    with all_preserved():
        once, again = (_digest(dataset[place] for place in places) for _ in range(2))
    return once if once == again else None


def _arrow_checksum(dataset: Any) -> str:
    """Return the checksum of a `datasets.Dataset`, from its Arrow table: no example becomes a Python object.

    Of files, their content decides and not their place.
    """
    import pyarrow

    names = dataset.column_names
    dataset = dataset.remove_columns([name for name in names if f"{name}{CONTENT}" in names])

    checksum = hashlib.sha256()
    table = dataset.with_format("arrow")
    for start in range(0, len(dataset), _ROWS):
        sink = pyarrow.BufferOutputStream()
        rows = table[start : start + _ROWS].combine_chunks().replace_schema_metadata(None)
        with pyarrow.ipc.new_stream(sink, rows.schema) as writer:
            writer.write_table(rows)
        checksum.update(sink.getvalue())
    return checksum.hexdigest()


def _digest(examples: Iterable[Any]) -> str:
    checksum = hashlib.sha256()
    for example in examples:
        _add(checksum, example)
    return checksum.hexdigest()


def _add(checksum: Any, value: Any) -> None:
    """Add a value of an example to a checksum; of an object of unknown type only the name of the type."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy() if value.dtype != torch.bfloat16 else value.detach().cpu().float().numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        checksum.update(f"{value.dtype} {value.shape}".encode())
        checksum.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            checksum.update(f"{key}:".encode())
            _add(checksum, value[key])
    elif isinstance(value, (list, tuple)):
        checksum.update(f"[{len(value)}".encode())
        for each in value:
            _add(checksum, each)
    elif value is None or isinstance(value, (bool, int, float, str, bytes)):
        checksum.update(repr(value).encode())
    else:
        checksum.update(type(value).__name__.encode())
