"""Ctrl-C while the libraries are imported."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def exits_on_interrupt() -> Iterator[None]:
    """Make Ctrl-C end the process at once inside the block, with one word and exit code 130.

    Python would raise a KeyboardInterrupt in the middle of an import, which some libraries turn into other errors.
    While they are imported there is nothing to clean up.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def end(number: int, frame: Any) -> None:
        os.write(2, b"stopped\n")
        os._exit(130)

    before = signal.signal(signal.SIGINT, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
