"""Modalities of tasks: texts, images or sounds. Each is a module; other code does not refer to them by name."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ....errors import UserError
from ..catalogue import Task
from ..files import ReadOptions, Table, read_table
from ..files.content import likely_texts
from ..kinds import KINDS
from .audio import Audio
from .base import Modality
from .folders import read_folder
from .image import Image
from .media import Media
from .text import Text

__all__ = ["MEDIA_KINDS", "Media", "Modality", "file_kinds", "find_media", "modality_of", "read_source"]

_MEDIA: tuple[Media, ...] = (Image(), Audio())
_MODALITIES: dict[str, Modality] = {modality.name: modality for modality in (Text(), *_MEDIA)}

# A kind of task that the user may name -> its modality. The kind of such a task is classification.
MEDIA_KINDS: dict[str, Media] = {f"{media.name}_classification": media for media in _MEDIA}


def file_kinds() -> tuple[str, ...]:
    """Return the valid values of --kind for the user's own files."""
    return (*KINDS, *MEDIA_KINDS)


def modality_of(task: Task) -> Modality:
    """Return the modality of a task."""
    return _MODALITIES[task.modality]


def read_source(
    path: str | Path, options: ReadOptions | None = None, has_plain_texts: bool = False, content: bytes | None = None
) -> Table:
    """Read a file, as `read_table` does, or a folder of images or sounds.

    Args:
        path: The file or the folder.
        options: How a file is read.
        has_plain_texts: Whether a .txt file has one text on each line.
        content: Content to read instead of the file.
    """
    place = Path(path).expanduser()
    if content is None and place.is_dir():
        return read_folder(place, _MEDIA)
    return read_table(path, options, has_plain_texts, content)


def find_media(table: Table, column: str | None, kind: str | None) -> tuple[Media, str] | None:
    """Find the column of a table that holds paths of images or of sounds; None for a table of texts.

    Args:
        table: The training file.
        column: The column that the user named with --text, or None to look at all.
        kind: The kind that the user named, or None.
    """
    wanted = MEDIA_KINDS.get(str(kind))
    kinds = tuple(dict.fromkeys(name for media in _MEDIA for name in media.kinds))
    if wanted is None and kind not in (None, *kinds):
        if table.path.is_dir():
            raise UserError(
                f"kind is {kind!r}, and {table.path} is a folder, for which it must be {' or '.join(kinds)}."
            )
        return None
    names = [column] if column is not None else list(table.columns)
    candidates = [
        (media, name)
        for media in ([wanted] if wanted else _MEDIA)
        for name in names
        if _are_paths(table.columns.get(name, ()), media.suffixes)
    ]
    if wanted is None and column is None and likely_texts(table.columns):
        candidates = [(media, name) for media, name in candidates if _has_files(table, name)]
    if len(candidates) == 1:
        return candidates[0]
    if candidates:
        raise UserError(
            f"{table.path} has paths of files in the columns {' and '.join(name for _, name in candidates)}; name the "
            "one to learn from with --text."
        )
    if wanted is not None:
        raise UserError(
            f"kind is {kind!r}, and {table.path} has no column with paths of {wanted.noun}s "
            f"({', '.join(wanted.suffixes)}); it has {', '.join(table.columns)}."
        )
    return None


def _has_files(table: Table, name: str) -> bool:
    """Return whether any of the first files that a column names is there."""
    paths = (table.path.parent / value for value in table.columns[name][:100] if isinstance(value, str))
    return any(path.exists() for path in paths)


def _are_paths(values: Sequence[Any], suffixes: tuple[str, ...]) -> bool:
    """Return whether most of the first 1,000 values end as the names of such files do."""
    present = [value for value in values[:1000] if value is not None]
    ends = sum(isinstance(value, str) and value.strip().lower().endswith(suffixes) for value in present)
    return ends * 2 > len(present)
