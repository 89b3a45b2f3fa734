"""Sums over the rows of logits, a part of the rows at a time.

For a language model a row is a position, and it has a logit for each word of the vocabulary. The distributions of all
rows, and what a backward needs of them, would take many times the memory of the logits. So nothing is saved but the
logits, and the backward computes each part again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ...model import token_head

SumOfPart = Callable[[Tensor, slice], Tensor]


def sum_by_parts(logits: Tensor, views: int, sum_of_part: SumOfPart) -> Tensor:
    """Return the sum of `sum_of_part` over all parts of the rows. It can be differentiated with respect to the logits.

    Args:
        logits: [views · B, T, V].
        views: how many copies of the batch they are for.
        sum_of_part: gets the logits of some of the B · T rows, [views, n, V] in float32 at least, and the slice of
            those rows; returns a 0-d tensor.
    """
    return _SumByParts.apply(logits.reshape(views, -1, logits.shape[-1]), sum_of_part)


class _SumByParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, sum_of_part: SumOfPart) -> Tensor:
        ctx.save_for_backward(logits)
        ctx.sum_of_part = sum_of_part
        return torch.stack([sum_of_part(at_least_float32(logits[:, part]), part) for part in _parts(logits)]).sum()

    @staticmethod
    def backward(ctx: Any, outer: Tensor) -> tuple[Tensor, None]:
        (logits,) = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        for part in _parts(logits):
            with torch.enable_grad():
                own = logits[:, part].detach().requires_grad_()
                value = ctx.sum_of_part(at_least_float32(own), part)
            gradient[:, part] = torch.autograd.grad(value, own, outer.to(value.dtype))[0]
        return gradient, None


def _parts(logits: Tensor) -> Iterator[slice]:
    views, rows, width = logits.shape
    size = max(1, token_head.LOGITS_AT_ONCE // (views * width))
    for start in range(0, rows, size):
        yield slice(start, min(start + size, rows))


def at_least_float32(x: Tensor) -> Tensor:
    """`x` in float32, or in its own precision where that is higher."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
