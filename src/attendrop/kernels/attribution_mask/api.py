"""From attributions to the attention positions that AD-DROP keeps, by one of several implementations.

    reference   plain torch, on any device: the specification
    cpu         the same bits, faster
    triton      on a GPU, without a map in memory; the same but for scores within rounding of their row's threshold
    auto        cpu on a CPU; triton on CUDA; the reference on other devices, for float64 on CUDA, and, with a line in
                the log, where triton is not installed

An implementation that is asked for by name and cannot do it raises; none takes another's place.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from ...utils.checks import check_choice
from .. import has_triton
from . import cpu, reference

IMPLEMENTATIONS = ("auto", "reference", "cpu", "triton")
DIRECTIONS = ("high", "low")


def keep_from_gradient(
    gradient: Tensor,
    value: Tensor,
    valid: Tensor,
    p: float,
    q: float,
    key: int | Tensor,
    positions: Tensor,
    direction: str = "high",
    impl: str = "auto",
) -> Tensor:
    """The AD-DROP mask by gradient attribution: bool [B, H, Q, K], True = stays.

    gradient   ∂F/∂O, [B, Q, H, d]
    value      [B, G, K, d]; G < H where heads share values
    valid      bool, broadcastable to [B, H, Q, K]
    p, q       size of the candidate region, and the probability with which a candidate is dropped
    key        of the draws (`attendrop.random.key_of`)
    positions  of the examples in the global batch, [B]
    direction  "high" drops the highest scores, "low" the lowest

    The key may be an int32 of no dimensions on the device: a captured graph reads it there.
    """
    batch, queries, heads, width = gradient.shape
    if value.dim() != 4 or value.shape[0] != batch or value.shape[3] != width or heads % value.shape[1]:
        raise ValueError(
            f"value is {list(value.shape)}, which does not fit a gradient of {list(gradient.shape)}; it must be "
            "[B, G, K, d] for a gradient [B, Q, H, d], with G a divisor of H."
        )
    _check((batch, heads, queries, value.shape[2]), valid, positions, direction)
    dtype = torch.promote_types(gradient.dtype, value.dtype)
    module = _choose(impl, gradient.device, dtype)
    choice = reference.Choice(p, q, key, positions, direction)
    if module is reference or module is cpu:
        return module.keep_from_scores(reference.scores(gradient, value), valid, choice)
    return module.keep_from_gradient(gradient, value, valid, choice)


def keep_from_scores(
    scores: Tensor,
    valid: Tensor,
    p: float,
    q: float,
    key: int | Tensor,
    positions: Tensor,
    direction: str = "high",
    impl: str = "auto",
) -> Tensor:
    """The same where the map of scores, [B, H, Q, K], is there already."""
    _check(tuple(scores.shape), valid, positions, direction)
    module = _choose(impl, scores.device, scores.dtype)
    return module.keep_from_scores(scores, valid, reference.Choice(p, q, key, positions, direction))


def _check(shape: tuple[int, ...], valid: Tensor, positions: Tensor, direction: str) -> None:
    if valid.dtype != torch.bool or not _broadcasts(tuple(valid.shape), shape):
        raise ValueError(
            f"valid is {valid.dtype} {list(valid.shape)}; it must be bool and broadcastable to {list(shape)}."
        )
    if positions.shape != shape[:1]:
        raise ValueError(f"positions is {list(positions.shape)}; it must have one for each of {shape[0]} examples.")
    if direction not in DIRECTIONS:
        raise ValueError(f"direction is {direction!r}; it must be 'high' or 'low'.")


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Every row must have all of its keys."""
    return (
        len(shape) <= 4
        and shape[-1:] == to[-1:]
        and all(a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False))
    )


def _choose(impl: str, device: torch.device, dtype: torch.dtype) -> Any:
    check_choice("impl", impl, IMPLEMENTATIONS)
    if impl == "auto":
        fits = device.type == "cuda" and dtype != torch.float64 and has_triton()
        impl = "triton" if fits else "cpu" if device.type == "cpu" else "reference"
    if impl == "reference":
        return reference
    if impl == "cpu":
        if device.type != "cpu":
            raise ValueError(f"impl is 'cpu', and the tensors are on {device.type}; use 'triton' or 'reference'.")
        return cpu
    return _triton(dtype)


def _triton(dtype: torch.dtype) -> ModuleType:
    if dtype == torch.float64:
        raise ValueError("impl is 'triton', which takes float32, bfloat16 and float16, not float64; use 'reference'.")
    try:
        from . import triton
    except ImportError as error:
        raise ImportError("impl is 'triton', which needs the package triton (Linux: pip install triton).") from error
    return triton
