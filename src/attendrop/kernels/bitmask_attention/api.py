"""Attention with its mask as bits, forward and backward, by Triton kernels on a GPU.

It takes the place of the model's own kernel where a plan masks an attention site. `supports` says where: from
`SHORTEST` keys on, on CUDA, for shapes that the kernels know. Elsewhere the mask is an additive mask, as before.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .. import has_triton
from ..mask_bits import Bits, Blocks, PackedKeep, pack
from .reference import Dropout

_log = logging.getLogger(__name__)

# From this number of keys on the kernels are used. On an H200, attention with bits and the mask that it reads take less
# time than with a bias from here on (benchmarks/bits.py).
SHORTEST = 256

WIDTHS = range(32, 129, 16)  # of a head
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_COMPUTE_CAPABILITY = (8, 0)  # bfloat16 products; older cards have not been tried
# In float32 the backward of heads wider than 64 needs 105 KiB of shared memory. Cards of compute capability 8.6 and 8.9
# have 100 (tests/scripts/compile_kernels.py).
_WIDEST_FLOAT32, _SHARED_MEMORY = 64, 106 * 1024


@dataclass(frozen=True)
class Limits:
    """Where the kernels are used.

    Args:
        shortest: the number of keys from which on they are used.
        devices: the types of devices; "cpu" works in Triton's interpreter only.
    """

    shortest: int = SHORTEST
    devices: tuple[str, ...] = ("cuda",)


_limits = Limits()
_logged: set[str] = set()


@contextmanager
def override_limits(**changes: Any) -> Iterator[None]:
    """Change where the kernels are used, for tests and benchmarks: the fields of `Limits`."""
    global _limits
    before = _limits
    _limits = replace(before, **changes)
    try:
        yield
    finally:
        _limits = before


def supports(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Return whether the kernels run attention of these shapes; if only a shape forbids it, log one line.

    Args:
        query: [B, H, Q, d].
        key: [B, G, K, d].
        value: [B, G, K, d].
    """
    if torch.compiler.is_compiling() or not are_long_enough(key.shape[2], query.device):
        return False
    reason = _unsupported(query, key, value)
    if reason is not None and reason not in _logged:
        _logged.add(reason)
        _log.warning("Attention masks stay additive, which takes more memory: %s.", reason)
    return reason is None


def are_long_enough(keys: int, device: torch.device) -> bool:
    """Return whether rows of this number of keys are read as bits, where the shapes allow it."""
    return keys >= _limits.shortest and is_possible(device)


def is_possible(device: torch.device) -> bool:
    """Return whether a supported device and Triton are available."""
    return device.type in _limits.devices and has_triton()


def stored(keep: Tensor) -> Tensor | PackedKeep:
    """Return a keep mask, bool [B, H, Q, K], as a plan stores it: as bits where attention will read bits.

    Dimensions that are 1, but for the last one, are the same for all.
    """
    return pack(keep) if are_long_enough(keep.shape[-1], keep.device) else keep


def _unsupported(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    """Return why the kernels do not support these tensors."""
    width = query.shape[-1]
    if not query.dtype == key.dtype == value.dtype or query.dtype not in DTYPES:
        return f"query, key and value are {query.dtype}, {key.dtype} and {value.dtype}, not one of float32, bf16, fp16"
    if width not in WIDTHS or key.shape[-1] != width or value.shape[-1] != width:
        return f"the heads have a width of {width} (values: {value.shape[-1]}), not a multiple of 16 from 32 to 128"
    if query.shape[1] % key.shape[1] or key.shape[:3] != value.shape[:3] or key.shape[0] != query.shape[0]:
        return f"the shapes are {list(query.shape)}, {list(key.shape)} and {list(value.shape)}"
    return _unserved_by(torch.cuda.get_device_properties(query.device), query.dtype, width) if query.is_cuda else None


def _unserved_by(card: Any, dtype: torch.dtype, width: int) -> str | None:
    """Return why a card does not run the kernels for heads of this width.

    Args:
        card: its properties, as `torch.cuda.get_device_properties` returns them.
        dtype: the precision.
        width: the width of a head.
    """
    if (card.major, card.minor) < _COMPUTE_CAPABILITY:
        return "the GPU has a compute capability below 8.0"
    if dtype == torch.float32 and width > _WIDEST_FLOAT32 and card.shared_memory_per_multiprocessor < _SHARED_MEMORY:
        return f"the heads have a width of {width} in float32, for which the GPU has too little shared memory"
    return None


class HasBits(Protocol):
    """Bits, or an object that computes them on demand."""

    def bits(self) -> Bits: ...


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: HasBits | None,
    blocks: Blocks | None,
    scaling: float,
    dropout: Dropout | None = None,
) -> Tensor:
    """Return attention, [B, Q, H, d], with gradients of query, key and value. `reference.attend` is its specification.

    Args:
        query: [B, H, Q, d].
        key: [B, G, K, d]; G < H where heads share keys and values.
        value: [B, G, K, d].
        mask: the positions that attend; None: all.
        blocks: the blocks that have such positions; None: all.
        scaling: the factor of the scores, above 0.
        dropout: the model's own dropout; None: no weight is dropped.
    """
    return _Attend.apply(query, key, value, mask, blocks, scaling, dropout)


class _Attend(torch.autograd.Function):
    """Attention as an autograd function. Masks live as long as its context; autograd does not track them."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: HasBits | None,
        blocks: Blocks | None,
        scaling: float,
        dropout: Dropout | None,
    ) -> Tensor:
        from . import triton

        bits = None if mask is None else mask.bits()
        output, lse, draws = triton.forward(query, key, value, bits, blocks, scaling, dropout)
        ctx.save_for_backward(query, key, value, output, lse, draws)
        ctx.mask, ctx.blocks, ctx.scaling, ctx.dropout = mask, blocks, scaling, dropout
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        from . import triton

        bits = None if ctx.mask is None else ctx.mask.bits()
        query, key, value, output, lse, draws = ctx.saved_tensors
        dq, dk, dv = triton.backward(
            gradient, query, key, value, output, lse, draws, bits, ctx.blocks, ctx.scaling, ctx.dropout
        )
        return dq, dk, dv, None, None, None, None
