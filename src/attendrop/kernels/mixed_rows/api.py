"""Hidden states of examples that are mixed in pairs: one Triton kernel on a GPU, the reference elsewhere."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import has_triton
from . import reference

_DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class _MixedRows(torch.autograd.Function):
    """Mixes rows in the forward; the backward uses the inverse permutation."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, others: Tensor, back: Tensor, shares: Tensor, shares_back: Tensor) -> Tensor:
        ctx.save_for_backward(back, shares, shares_back)
        return _implementation(x).mixed_rows(x.contiguous(), others, shares, shares)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        back, shares, shares_back = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        return _implementation(gradient).mixed_rows(gradient, back, shares, shares_back), None, None, None, None


def mixed_rows(x: Tensor, others: Tensor, back: Tensor, shares: Tensor, shares_back: Tensor) -> Tensor:
    """y_i = (1 − s_i) x_i + s_i x_π(i), with the gradient of x.

    Args:
        x: [rows, tokens, d].
        others: π, a permutation of the rows.
        back: π⁻¹.
        shares: s, [rows, tokens, 1], in float32. Where it is 0, the other row is not read.
        shares_back: s_π⁻¹(i): what the row gives to the one whose partner it is.
    """
    mixed: Tensor = _MixedRows.apply(x, others, back, shares, shares_back)
    return mixed


def _implementation(x: Tensor) -> Any:
    if x.is_cuda and x.dtype in _DTYPES and has_triton():
        from . import triton

        return triton
    return reference
