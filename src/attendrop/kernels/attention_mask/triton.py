"""The mask of the attention kernel on a GPU: keep mask and validity are read once, the bias is written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from .reference import Mask

# the bias is written as integers: 0 is 0, and these are the bits of −∞
_INTEGERS = {2: torch.int16, 4: torch.int32}
_MINUS_INFINITY = {
    dtype: int(torch.tensor(float("-inf"), dtype=dtype).view(_INTEGERS[dtype.itemsize]))
    for dtype in (torch.float32, torch.bfloat16, torch.float16)
}


@triton.jit
def _load(ptr, rows, keys, in_bounds, stride_q, stride_k):  # type: ignore[no-untyped-def]
    return tl.load(ptr + rows[:, None] * stride_q + keys[None, :] * stride_k, mask=in_bounds, other=0) != 0


@triton.jit
def attention_mask_kernel(  # type: ignore[no-untyped-def]
    keep_ptr, valid_ptr, bias_ptr, empty_ptr, Q, K, kb, kh, kq, kk, vb, vh, vq, vk,
    DROPPED: tl.constexpr, M: tl.constexpr, N: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """Grid: (blocks of M rows, H, B)."""
    h = tl.program_id(1).to(tl.int64)
    b = tl.program_id(2).to(tl.int64)
    rows = tl.program_id(0) * M + tl.arange(0, M)
    keep_ptr += b * kb + h * kh
    valid_ptr += b * vb + h * vh
    first = (b * tl.num_programs(1) + h) * Q
    bias_ptr += first * K
    attends = tl.zeros([M], tl.int32)
    for tile in range(TILES):
        keys = tile * N + tl.arange(0, N)
        in_bounds = (rows[:, None] < Q) & (keys[None, :] < K)
        allowed = _load(keep_ptr, rows, keys, in_bounds, kq, kk) & _load(valid_ptr, rows, keys, in_bounds, vq, vk)
        attends |= tl.max(allowed.to(tl.int32), 1)
    is_empty = attends == 0
    for tile in range(TILES):
        keys = tile * N + tl.arange(0, N)
        in_bounds = (rows[:, None] < Q) & (keys[None, :] < K)
        keep = _load(keep_ptr, rows, keys, in_bounds, kq, kk) | is_empty[:, None]
        bias = tl.where(keep & _load(valid_ptr, rows, keys, in_bounds, vq, vk), 0, DROPPED)
        tl.store(bias_ptr + rows[:, None] * K + keys[None, :], bias.to(bias_ptr.dtype.element_ty), mask=in_bounds)
    tl.store(empty_ptr + first + rows, is_empty.to(tl.int8), mask=rows < Q)


def mask_of(keep: Tensor, valid: Tensor, dtype: torch.dtype) -> Mask:
    keep, valid = torch.broadcast_tensors(keep, valid)
    keep, valid = (x[(None,) * (4 - x.dim())] for x in (keep, valid))
    batch, heads, queries, keys = keep.shape
    mask = Mask(
        torch.empty(keep.shape, dtype=dtype, device=keep.device),
        torch.empty((*keep.shape[:3], 1), dtype=torch.bool, device=keep.device),
    )
    if keep.numel():
        n = max(16, min(1024, triton.next_power_of_2(keys)))
        m = 4096 // n
        attention_mask_kernel[triton.cdiv(queries, m), heads, batch](
            keep.view(torch.uint8), valid.view(torch.uint8), mask.bias.view(_INTEGERS[dtype.itemsize]),
            mask.empty.view(torch.uint8), queries, keys, *keep.stride(), *valid.stride(),
            DROPPED=_MINUS_INFINITY[dtype], M=m, N=n, TILES=triton.cdiv(keys, n),
        )  # fmt: skip
    return mask
