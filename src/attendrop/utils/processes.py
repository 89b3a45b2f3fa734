"""Processes that end when the process that started them has ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1  # of Linux: the signal that a process gets when its parent ends


def end_with_parent() -> None:
    """Ends this process when its parent has ended, however it ended. A killed launcher leaves no workers behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_wait_for_parent, args=(os.getppid(),), daemon=True).start()


def _wait_for_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def cpu_count() -> int:
    """The number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
