"""Operations with a kernel of their own, each beside its reference in plain torch, which is the specification."""

from __future__ import annotations

import functools
import importlib.util
import logging

_log = logging.getLogger(__name__)


@functools.cache
def has_triton() -> bool:
    """Whether triton is installed; the first call logs a warning if it is not."""
    found = importlib.util.find_spec("triton") is not None
    if not found:
        _log.warning("triton is not installed: masks and draws are computed in plain torch, which takes longer.")
    return found
