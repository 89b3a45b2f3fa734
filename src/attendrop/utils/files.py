"""Atomic writes of files, and the errors of a full disk."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

UNFINISHED = ".unfinished"  # the ending of a file that is being written

_NO_SPACE_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# safetensors and torch wrap the error of the operating system in their own error, or lose it
_NO_SPACE = ("No space left on device", "File too large", "unexpected pos", "iostream error", "Disk quota exceeded")


def is_no_space(error: BaseException | str) -> bool:
    """Return whether an error or its message means that the disk is full."""
    return getattr(error, "errno", None) in _NO_SPACE_CODES or any(phrase in str(error) for phrase in _NO_SPACE)


def write_whole(path: Path, content: str | bytes, flush: bool = True) -> None:
    """Write a file atomically: it is complete or absent, whatever stops the process.

    Args:
        path: The file. An existing one is replaced.
        content: Its content.
        flush: Whether to flush it to the disk, so that it survives a crash of the machine.
    """
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        with unfinished.open("wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
            file.flush()
            if flush:
                os.fsync(file.fileno())
        unfinished.replace(path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
    if flush:
        _flush_folder(path.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, without waiting for the disk."""
    write_whole(path, json_text(value), flush=False)


def json_text(value: Any) -> str:
    """Return the content of a JSON file."""
    return json.dumps(value, indent=1, default=str) + "\n"


def _flush_folder(folder: Path) -> None:
    """Flush a folder to the disk, and with it the new names of its files."""
    if os.name == "nt":  # Windows cannot open a folder
        return
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
