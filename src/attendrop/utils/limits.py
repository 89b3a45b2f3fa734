"""Limits of reading files, in one place: a small file must not fill the memory, nor stop the program.

Beyond a limit a file is an accident or an attack. Each check raises a `UserError` that names the file and the limit.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from ..errors import UserError

MOST_BYTES = 4 * 2**30  # of a file, and of what it is unpacked to
MOST_GROWTH = 200  # times its size a file may be unpacked to,
FREE_GROWTH = 2**28  # or to this many bytes
MOST_COLUMNS = 10_000
MOST_CELLS = 200_000_000  # rows times columns
MOST_DEPTH = 20  # of lists and objects in a value
MOST_LAYERS, MOST_LABELS = 1000, 100_000  # that the configuration of a model may name
MOST_YAML, MOST_NODES = 2**24, 100_000  # bytes of a YAML file, and its values when its aliases are written out
MOST_SEEDS, MOST_LOOKS = 10_000, 500  # of a method; the levels of so many looks take half a minute
MOST_WORKERS = max(16, 4 * (os.cpu_count() or 1))  # processes of one kind on a machine

_OBJECTS = ("id2label", "quantization_config", "text_config")  # in the configuration of a model
_CHUNK = 2**24


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


def size_of(count: int) -> str:
    """Return a number of bytes for a sentence: `512 MB`."""
    return f"{count / 2**30:,.1f} GB" if count >= 2**30 else f"{count / 2**20:,.0f} MB"


def is_regular(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a file with content: no pipe, no device, nothing that could be read without an end."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def read_bytes(path: Path, most: int = MOST_BYTES) -> bytes:
    """Read a file, or a pipe that the shell made of a command, `<(zcat …)`; other pipes and devices are refused.

    Args:
        path: The file. An `OSError` is that of the file system.
        most: The limit of its size.
    """
    status = path.stat()
    is_pipe = stat.S_ISFIFO(status.st_mode) and str(path).startswith(("/dev/fd/", "/dev/stdin", "/proc/self/fd/"))
    if not (stat.S_ISREG(status.st_mode) or is_pipe):
        what = "a pipe" if stat.S_ISFIFO(status.st_mode) else "a device or a socket"
        raise UserError(f"{path} is {what} and not a file; save its content to a file and give that.")
    with path.open("rb") as file:
        return read_stream(file, path, most, "has")


def read_stream(stream: _Stream, path: Path, most: int, verb: str) -> bytes:
    """Read a stream to its end, which must come before `most` bytes.

    Args:
        stream: The stream.
        path: The file that it belongs to.
        most: The limit.
        verb: The verb of the sentence, such as "has".
    """
    chunks, size = [], 0
    while chunk := stream.read(_CHUNK):
        size += len(chunk)
        if size > most:
            raise UserError(f"{path} {verb} more than {size_of(most)}, the limit of a file; split it.")
        chunks.append(chunk)
    return b"".join(chunks)


def growth_limit(size: int) -> int:
    """Return to how many bytes a file of `size` bytes may be unpacked."""
    return min(MOST_BYTES, max(FREE_GROWTH, MOST_GROWTH * size))


def check_growth(path: Path, size: int, unpacked: int) -> None:
    """Refuse a compressed file that would be unpacked to far more than its size.

    Args:
        path: The file.
        size: Its size.
        unpacked: The size of its content.
    """
    if unpacked > (most := growth_limit(size)):
        raise UserError(f"{path} unpacks to more than {size_of(most)}, the limit of a file of its size; split it.")


def check_shape(path: Path, columns: int, rows: int) -> None:
    """Refuse a table with too many columns or cells."""
    if columns > MOST_COLUMNS:
        raise UserError(f"{path} has {columns:,} columns, and at most {MOST_COLUMNS:,} are read; keep those you need.")
    if columns * rows > MOST_CELLS:
        raise UserError(
            f"{path} has {rows:,} rows of {columns:,} columns, and at most {MOST_CELLS:,} cells are read; keep the "
            "columns that you need, or split it."
        )


def check_nodes(path: str | os.PathLike[str], node: Any) -> None:
    """Refuse a YAML document whose aliases, written out, make more values than a configuration has.

    Args:
        path: The file.
        node: Its root, from `yaml.compose`.
    """
    sizes: dict[int, int] = {}

    def size(of: Any) -> int:
        if id(of) not in sizes:
            sizes[id(of)] = MOST_NODES  # while it is counted, so that an alias of a value in itself is too many
            inner = of.value if isinstance(getattr(of, "value", None), list) else []
            parts = [part for item in inner for part in (item if isinstance(item, tuple) else (item,))]
            sizes[id(of)] = 1 + sum(map(size, parts))
        return sizes[id(of)]

    if node is not None and size(node) > MOST_NODES:
        raise UserError(f"{str(path)!r} has more than {MOST_NODES:,} values when its aliases (*name) are written out.")


def check_model(name: str | os.PathLike[str], config: Mapping[str, Any]) -> None:
    """Refuse the configuration of a model that would take all memory, or all time, before it is read.

    Args:
        name: The model.
        config: The content of its config.json.
    """
    for field, value in config.items():
        if isinstance(value, dict):
            check_model(name, value)
        if value != value:  # NaN
            raise UserError(f"config.json of {name} has {field} = {value}, which is not a number; correct it.")
        if field in _OBJECTS and not isinstance(value, (dict, type(None))):
            raise UserError(f"config.json of {name} has {field} = {value!r:.40}; it must be an object; correct it.")
        if field == "id2label" and (wrong := [key for key in value or () if not str(key).lstrip("-").isdecimal()]):
            raise UserError(
                f"config.json of {name} has id2label with the key {wrong[0]!r:.40}; its keys must be the numbers of "
                "the labels, such as '0'; correct it."
            )
        most = MOST_LAYERS if "layer" in field else MOST_LABELS if field == "num_labels" else None
        if most is not None and isinstance(value, (int, float)) and value > most:
            raise UserError(f"config.json of {name} has {field} = {value}; at most {most:,} are allowed.")


def check_parameters(name: str | os.PathLike[str], count: int, stored: int) -> None:
    """Refuse a model that would take far more memory than the files of its weights have.

    Args:
        name: The model.
        count: Its parameters, by its configuration.
        stored: The bytes of its weights.
    """
    if 4 * count > max(FREE_GROWTH, MOST_GROWTH * stored):
        raise UserError(
            f"config.json of {name} describes {count:,} parameters, and its weights have {stored:,} bytes; copy both "
            "from the same model."
        )


def is_deep(value: Any) -> bool:
    """Return whether lists and objects are nested in each other too deeply."""
    level: Iterable[Any] = [value]
    for _ in range(MOST_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, (list, dict))
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, (list, dict))
        ]
        if not level:
            return False
    return True
