"""The lock of an output folder: only one run writes into it at a time."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import UserError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK_FILE = "attendrop.lock"

_PATIENCE = 10.0  # seconds to wait for the workers of a killed run, which hold its lock until they end


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder, which is created if it does not exist.

    The operating system releases the lock when the process ends, however it ends. The file also names the holder, for
    the message, and for network file systems on which the lock of another machine is not seen.

    Args:
        folder: The output folder of a run.

    Raises:
        UserError: Another run holds the lock.
    """
    if fcntl is None:
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        file = _acquire(folder)
    except OSError as error:
        raise UserError(f"output_dir is {str(folder)!r}, which cannot be written to ({error.strerror}).") from None
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # the folder may be gone
            (folder / LOCK_FILE).unlink()
        os.close(file)


def _acquire(folder: Path) -> int:
    path = folder / LOCK_FILE
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise UserError(
                f"{str(path)!r} is a symbolic link, and no lock of a run; delete it, or choose another folder with "
                "--output-dir."
            ) from None
        holder = _read(file)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_held = False
        except OSError as error:
            # A file system without locks has only the name of the holder.
            is_held = error.errno in (errno.EAGAIN, errno.EACCES) or (bool(holder) and not _is_dead(holder))
        if not is_held and not _is_same(file, path):
            os.close(file)  # its holder has deleted it in the meantime
            continue
        if not is_held and holder.get("host", socket.gethostname()) == socket.gethostname():
            break  # free, or left by a process of this machine that was killed
        os.close(file)
        if is_held and _is_dead(holder) and time.monotonic() < deadline:
            time.sleep(0.2)
            continue
        raise UserError(_refusal(folder, holder))
    _write(file, {"pid": os.getpid(), "host": socket.gethostname(), "started": time.strftime("%Y-%m-%d %H:%M:%S")})
    return file


def _refusal(folder: Path, holder: dict[str, Any]) -> str:
    who = f"process {holder.get('pid', '?')} on {holder.get('host', '?')}, since {holder.get('started', '?')}"
    here = holder.get("host") == socket.gethostname()
    remedy = "" if here else f", or delete {LOCK_FILE} in it if that run has ended"
    return (
        f"output_dir is {str(folder)!r}, which another run uses ({who}); wait for it, choose another folder with "
        f"--output-dir{remedy}."
    )


def _is_same(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except FileNotFoundError:
        return False


def _is_dead(holder: dict[str, Any]) -> bool:
    """Return whether the holder is a process of this machine that has ended."""
    if holder.get("host") != socket.gethostname():
        return False
    try:
        os.kill(int(holder["pid"]), 0)
    except ProcessLookupError:
        return True
    except (OSError, KeyError, ValueError):
        return False
    return False


def _read(file: int) -> dict[str, Any]:
    """Return the holder that a lock file names; nothing if it was killed before it wrote its name."""
    try:
        holder = json.loads(os.pread(file, 4096, 0))
    except (OSError, ValueError):
        return {}
    return holder if isinstance(holder, dict) else {}


def _write(file: int, holder: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # a full disk: the lock is held without a name
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(holder).encode(), 0)
