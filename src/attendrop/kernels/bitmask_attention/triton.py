"""Attention on a GPU with its mask as bits: the launches of the kernels, and the sizes of their programs."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from .. import is_on_nvidia
from ..draws.reference import largest_word_below
from ..mask_bits.reference import BLOCK, Bits, Blocks
from ..mask_bits.triton import broadcast_strides
from .reference import Dropout
from .triton_kernels import forward_kernel, key_value_gradient_kernel, query_gradient_kernel

LOG2_E = math.log2(math.e)
# How `bits` are read: there are none, all queries of an example and head share a row of them, or each has its own.
NO_BITS, BITS_OF_KEYS, BITS_OF_ROWS = 0, 1, 2
# From so many on, programs of 128 queries are enough for two on each multiprocessor of an H200.
MANY_QUERIES = 128 * 2 * 132


def forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bits: Bits | None,
    blocks: Blocks | None,
    scaling: float,
    dropout: Dropout | None,
    **options: Any,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the output [B, Q, H, d], and per row [B, H, Q] the log2 of its softmax sum and the word of its draws.

    Args:
        query: [B, H, Q, d].
        key: [B, G, K, d].
        value: [B, G, K, d].
        bits: the positions that attend; None: all.
        blocks: the blocks with such positions; None: all.
        scaling: the factor of the scores.
        dropout: the model's own dropout; None: no weight is dropped.
        options: the sizes of a program, instead of `sizes`.
    """
    batch, heads, queries, width = query.shape
    output = torch.empty(batch, queries, heads, width, dtype=query.dtype, device=query.device)
    lse = torch.empty(batch, heads, queries, dtype=torch.float32, device=query.device)
    draws = None if dropout is None else torch.empty(lse.shape, dtype=torch.int32, device=query.device)
    mask = _mask_arguments(bits, None if blocks is None else blocks.keys, query)
    settings = {**sizes("forward", query, mask.has_rows), **options}
    if output.numel():
        forward_kernel[triton.cdiv(queries, settings["M"]), batch * heads](
            query, key, value, *mask.pointers, query if dropout is None else dropout.key,
            output, lse, lse if draws is None else draws,
            *_shared(query, key, scaling, dropout), mask.blocks,
            *query.stride(), *key.stride(), *value.stride(), *_of_heads(output).stride(), *mask.strides,
            **mask.kinds, DROPOUT=dropout is not None, WHOLE=_are_whole(query, key, settings),
            **_widths(width), **settings,
        )  # fmt: skip
    return output, lse, draws


def backward(
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    lse: Tensor,
    draws: Tensor | None,
    bits: Bits | None,
    blocks: Blocks | None,
    scaling: float,
    dropout: Dropout | None,
    of_query: dict[str, int] | None = None,
    of_key_value: dict[str, int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of query, key and value, from that of the output, [B, Q, H, d].

    Args:
        gradient: of the output.
        query: as in `forward`, like all arguments up to `dropout`.
        key: as above.
        value: as above.
        output: what `forward` returned.
        lse: what `forward` returned.
        draws: what `forward` returned.
        bits: as above.
        blocks: as above.
        scaling: as above.
        dropout: as above.
        of_query: the sizes of a program for the gradient of the query, instead of `sizes`.
        of_key_value: the same for those of key and value.
    """
    batch, heads, queries, width = query.shape
    groups, keys = key.shape[1:3]
    dq, dk, dv = (torch.empty_like(x) for x in (query, key, value))
    # Of each row: minus the logarithm of its sum, −Σ_d g · o, nothing, and the word of its draws: rows are aligned.
    numbers = lse.new_empty((*lse.shape, 4))
    gradient = _of_heads(gradient)
    if not query.numel() or not key.numel():
        return dq.zero_(), dk.zero_(), dv.zero_()
    words_of_rows = lse if draws is None else draws
    kinds = {"DROPOUT": dropout is not None, **_widths(width)}
    shared = _shared(query, key, scaling, dropout)
    of_keys = (*key.stride(), *value.stride())
    mask = _mask_arguments(bits, None if blocks is None else blocks.keys, query)
    masked_query = torch.empty_like(query) if mask.kinds["EMPTY"] else query  # 0 in empty rows
    settings = {**sizes("query", query, mask.has_rows), **(of_query or {})}
    query_gradient_kernel[triton.cdiv(queries, settings["M"]), batch * heads](
        query, key, value, *mask.pointers, words_of_rows, output, lse, gradient, dq, numbers, masked_query,
        *shared, mask.blocks, *query.stride(), *of_keys, *_of_heads(output).stride(), *mask.strides,
        *gradient.stride(), *dq.stride(), *masked_query.stride(),
        **mask.kinds, **kinds, WHOLE=_are_whole(query, key, settings), **settings,
    )  # fmt: skip
    mask = _mask_arguments(bits, None if blocks is None else blocks.queries, query)
    settings = {**sizes("key_value", query, mask.has_rows), **(of_key_value or {})}
    key_value_gradient_kernel[triton.cdiv(keys, settings["N"]), batch * groups](
        masked_query, key, value, mask.pointers[0], numbers, mask.pointers[2], gradient, dk, dv,
        *shared, mask.blocks, *masked_query.stride(), *of_keys, *mask.strides[:3], *mask.strides[6:],
        *gradient.stride(), *dk.stride(), *dv.stride(),
        BITS=mask.kinds["BITS"], RANGES=mask.kinds["RANGES"], **kinds, WHOLE=_are_whole(query, key, settings),
        ASM=is_on_nvidia(query), **settings,
    )  # fmt: skip
    return dq, dk, dv


class _Mask(NamedTuple):
    """The arguments of a kernel that say which positions attend. What is not given points to the query instead."""

    pointers: tuple[Tensor, Tensor, Tensor]
    blocks: int
    strides: tuple[int, ...]
    kinds: dict[str, Any]

    @property
    def has_rows(self) -> bool:
        return self.kinds["BITS"] == BITS_OF_ROWS


def _mask_arguments(bits: Bits | None, ranges: Tensor | None, query: Tensor) -> _Mask:
    words = query if bits is None else bits.words
    empty = None if bits is None else bits.empty
    kind = NO_BITS if bits is None else BITS_OF_KEYS if words.shape[2] == 1 else BITS_OF_ROWS
    return _Mask(
        (words, query if empty is None else empty.view(torch.uint8), query if ranges is None else ranges),
        0 if ranges is None else ranges.shape[1],
        (
            *((0, 0, 0) if bits is None else broadcast_strides(words)[:3]),
            *((0, 0, 0) if empty is None else broadcast_strides(empty)[:3]),
            *((0, 0) if ranges is None else broadcast_strides(ranges)[:2]),
        ),
        {"BITS": kind, "EMPTY": empty is not None, "RANGES": ranges is not None},
    )


def _of_heads(x: Tensor) -> Tensor:
    """[B, Q, H, d] as [B, H, Q, d]."""
    return x.transpose(1, 2)


def _shared(query: Tensor, key: Tensor, scaling: float, dropout: Dropout | None) -> tuple[Any, ...]:
    limit, rescale = (0, 1.0) if dropout is None else (largest_word_below(dropout.p), 1 / (1 - dropout.p))
    heads = query.shape[1]
    return query.shape[2], key.shape[2], heads, heads // key.shape[1], scaling * LOG2_E, limit, rescale


def _are_whole(query: Tensor, key: Tensor, settings: dict[str, int]) -> bool:
    """Return whether no tile goes beyond the last query or key."""
    return query.shape[2] % settings["M"] == 0 and key.shape[2] % settings["N"] == 0


def _widths(width: int) -> dict[str, int]:
    return {"D": width, "BLOCK_D": max(16, triton.next_power_of_2(width))}


def sizes(kernel: str, query: Tensor, has_rows: bool) -> dict[str, int]:
    """Return the sizes of a program: M queries and N keys at a time.

    Args:
        kernel: "forward", "query" or "key_value".
        query: [B, H, Q, d].
        has_rows: whether each query has its own bits.
    """
    batch, heads, queries, width = query.shape
    limit = {}
    if query.dtype == torch.float32:
        m, warps, stages = 32, 8, 2
    elif width > 64:
        m, warps, stages = 32 if kernel == "key_value" else 64, 4, 2
    elif kernel == "key_value":
        # Bits of 32 queries are too few to be copied while the tile before is computed.
        m, warps, stages = 64 if has_rows else 32, 4, 3
    elif kernel == "forward" and not has_rows and queries >= 128 and batch * heads * queries >= MANY_QUERIES:
        m, warps, stages = 128, 8, 3
        if torch.version.hip is None:
            limit = {"maxnreg": 128}  # two programs share a multiprocessor
    else:
        m, warps, stages = 64, 4, 3
    m = max(16, min(m, triton.next_power_of_2(queries)))
    return {"M": m, "N": BLOCK, "num_warps": warps, "num_stages": stages, **limit}
