"""The start of our own processes, and the number of processors they may use."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
import time

_PR_SET_PDEATHSIG = 1  # of Linux: the signal that a process gets when its parent ends


def end_with_parent() -> None:
    """End this process when its parent ends for any reason, so that a killed launcher leaves no workers behind."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_wait_for_parent, args=(os.getppid(),), daemon=True).start()


def _wait_for_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def freeze_imported() -> None:
    """Exclude the objects that exist now from garbage collection, which the Trainer runs in every run.

    With torch and transformers that is half a million objects, and a quarter of a second each time. Use it
    only in our own processes: objects that exist now are never collected if a cycle of references keeps them alive.
    """
    gc.collect()
    gc.freeze()


def cpu_count() -> int:
    """Return the number of processors that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
