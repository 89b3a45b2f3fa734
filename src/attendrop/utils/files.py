"""The one writer of files and folders, and the reader of JSON that names its file.

A file or a folder is written under another name beside its place, and renamed when everything is on the disk. So
whatever stops the process, the old content stays, or the new one is there.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from ..errors import UserError, on_one_line
from .limits import read_bytes

UNFINISHED = ".unfinished"  # the ending of a file that is being written
CONTENT = ":content"  # `x:content` is a column with checksums of the files that the column `x` of a data set names

_NO_SPACE_CODES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
# safetensors and torch wrap the error of the operating system in their own error, or lose it
_NO_SPACE = ("No space left on device", "File too large", "unexpected pos", "iostream error", "Disk quota exceeded")


def is_no_space(error: BaseException | str) -> bool:
    """Return whether an error or its message means that the disk is full."""
    return getattr(error, "errno", None) in _NO_SPACE_CODES or any(phrase in str(error) for phrase in _NO_SPACE)


@contextmanager
def whole_file(path: str | Path, is_text: bool = False, flush: bool = True) -> Iterator[IO[Any]]:
    """Open a file that gets its name when the block ends, and is deleted if the block fails.

    A symbolic link at `path` is replaced, and one at the name of the unfinished file is never followed.

    Args:
        path: The file. An existing one is replaced, and its permissions stay.
        is_text: Whether text is written, as UTF-8 and with the line ends as they are. What is no text, such as half of
            a surrogate pair, becomes an escape.
        flush: Whether the file is flushed to the disk, so that it survives a crash of the machine.
    """
    path = Path(path)
    unfinished = path.with_name(path.name + UNFINISHED)
    try:
        _remove(unfinished)  # of a killed process, or a link
        options: dict[str, Any] = {"encoding": "utf-8", "errors": "backslashreplace", "newline": ""} if is_text else {}
        with unfinished.open("x" if is_text else "xb", **options) as file:
            with suppress(OSError):
                unfinished.chmod(stat.S_IMODE(path.stat(follow_symlinks=False).st_mode))
            yield file
            file.flush()
            if flush:
                os.fsync(file.fileno())
        unfinished.replace(path)
    except BaseException as error:
        with suppress(OSError):
            _remove(unfinished)
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(path)  # a full disk does not say where
        raise
    if flush:
        flush_to_disk(path.parent)


def write_whole(path: Path, content: str | bytes, flush: bool = True) -> None:
    """Write a file as `whole_file` does.

    Args:
        path: The file. An existing one is replaced.
        content: Its content.
        flush: Whether to flush it to the disk, so that it survives a crash of the machine.
    """
    with whole_file(path, isinstance(content, str), flush) as file:
        file.write(content)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file atomically, without waiting for the disk."""
    write_whole(path, json_text(value), flush=False)


def json_text(value: Any) -> str:
    """Return the content of a JSON file."""
    return json.dumps(value, indent=1, default=str) + "\n"


def read_json(path: str | Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        UserError: It cannot be read, or is not JSON. The sentence names the file.
    """
    try:
        return load_json(path)
    except (OSError, ValueError) as error:
        raise damaged(path, error) from None


def load_json(path: str | Path) -> Any:
    """Return the content of a JSON file.

    Raises:
        OSError: That of the file system.
        ValueError: It is no JSON, or no file but a pipe or a device, which may never end.
    """
    try:
        return json.loads(read_bytes(Path(path)))
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def damaged(path: str | Path, error: object, remedy: str = "copy it again, or repeat what wrote it") -> UserError:
    """Return the error for a file that we have written and cannot read any more.

    Args:
        path: The file.
        error: Its fault: a sentence, or the error of its reader.
        remedy: The user's remedy.
    """
    reason = f"{type(error).__name__}: {on_one_line(error)}" if isinstance(error, BaseException) else error
    return UserError(f"{str(path)!r} is damaged ({reason}); {remedy}.")


@contextmanager
def whole_folder(folder: str | Path, is_stale: Callable[[str], bool] = lambda name: False) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `folder` when the block ends, and is deleted if the block fails.

    Other files of an existing folder stay. The exchange is one operation of the file system, except on systems without
    it, and where the folder itself cannot be renamed because it is a mount point or somebody works in it: there the
    files are replaced one after the other.

    Args:
        folder: The folder, which may exist.
        is_stale: Whether an older file or folder of this name is deleted even if there is no new one.
    """
    folder = Path(folder).resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = (folder if _must_stay(folder) else folder.parent) / f"{folder.name}{UNFINISHED}"
    draft = staging / folder.name  # with the name that a title in it may show
    try:
        _remove(staging)  # of a killed process, or a link
        staging.mkdir()
        draft.mkdir()
        yield draft
        for path in draft.rglob("*"):
            flush_to_disk(path)
        if staging.parent == folder:
            _replace_files(draft, folder, is_stale)
        else:
            _replace_folder(draft, folder, is_stale)
        flush_to_disk(folder.parent)
    finally:
        with suppress(OSError):
            _remove(staging)


def _must_stay(folder: Path) -> bool:
    """Return whether a folder cannot be exchanged for another one."""
    if not folder.is_dir():
        return False
    is_used = Path.cwd().is_relative_to(folder)
    return is_used or folder.is_mount() or not os.access(folder.parent, os.W_OK)


def _replace_files(draft: Path, folder: Path, is_stale: Callable[[str], bool]) -> None:
    names = {path.name for path in draft.iterdir()}
    for old in list(folder.iterdir()):
        if old != draft.parent and old.name not in names and is_stale(old.name):
            _remove(old)
    for path in list(draft.iterdir()):
        if path.is_dir():
            _remove(folder / path.name)
        path.replace(folder / path.name)


def _replace_folder(draft: Path, folder: Path, is_stale: Callable[[str], bool]) -> None:
    if not folder.exists():
        draft.rename(folder)
        return
    for old in folder.iterdir():
        if (draft / old.name).exists() or is_stale(old.name):
            continue
        if old.is_dir() and not old.is_symlink():
            shutil.copytree(old, draft / old.name, symlinks=True, copy_function=_link)
        else:
            _link(old, draft / old.name)
    shutil.copymode(folder, draft)
    if not _exchange(draft, folder):
        older = draft.with_name("older")
        folder.rename(older)
        draft.rename(folder)


def _link(old: str | Path, new: str | Path) -> None:
    """Give a file a second name, or copy it where the file system has no such names."""
    try:
        os.link(old, new, follow_symlinks=False)
    except (OSError, NotImplementedError):
        shutil.copy2(old, new, follow_symlinks=False)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders at once; return whether the system can."""
    if sys.platform != "linux":
        return False
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE
    return rename is not None and rename(here, os.fsencode(one), here, os.fsencode(other), exchange) == 0


def _remove(path: Path) -> None:
    """Delete a file, a folder or a symbolic link, never what a link points to."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def flush_to_disk(path: Path) -> None:
    """Flush a file or a folder to the disk; of a folder, the names of its files."""
    if os.name == "nt" or path.is_symlink():  # Windows cannot open a folder
        return
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network file systems cannot
            raise
    finally:
        os.close(file)
