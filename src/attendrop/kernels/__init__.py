"""Operations with their own kernels, each beside its reference in plain torch, which is the specification.

Kernels read single numbers, such as the key of draws, from device memory; many of them are elements of one table
(capture/draws.py). Triton would compile such a kernel twice: for addresses that are multiples of 16, and for others. So
these arguments are in `do_not_specialize_on_alignment`, which a test checks (tests/scripts/compile_kernels.py).
"""

from __future__ import annotations

import functools
import importlib.util
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_log = logging.getLogger(__name__)


@functools.cache
def has_triton() -> bool:
    """Return whether triton is installed; the first call logs a warning if it is not."""
    is_installed = importlib.util.find_spec("triton") is not None
    if not is_installed:
        _log.warning("triton is not installed: masks and draws are computed in plain torch, which takes longer.")
    return is_installed


def is_on_nvidia(x: Tensor) -> bool:
    """Return whether a tensor is on an NVIDIA card, whose kernels may contain assembly."""
    import torch

    return x.is_cuda and torch.version.hip is None
