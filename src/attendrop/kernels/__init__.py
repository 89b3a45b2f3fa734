"""What is worth a kernel of its own, each beside its reference in plain torch."""

from __future__ import annotations

import functools
import importlib.util
import logging

_log = logging.getLogger(__name__)


@functools.cache
def has_triton() -> bool:
    found = importlib.util.find_spec("triton") is not None
    if not found:
        _log.warning("triton is not installed: masks and draws are made in plain torch, which takes longer.")
    return found
