"""From attributions to the attention positions that AD-DROP keeps, by one of several implementations.

    reference   plain torch, on any device: the specification
    cpu         the same bits, faster
    triton      on a GPU, without a map in memory; the same but for scores within rounding of their row's threshold
    auto        cpu on a CPU; triton on CUDA; the reference on other devices, for float64 on CUDA, and, with a line in
                the log, where triton is not installed

An implementation that is requested by name and cannot run raises an error; there is no fallback.
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
    gradient: Tensor, value: Tensor, valid: Tensor, rule: reference.DropRule, impl: str = "auto"
) -> Tensor:
    """Return the AD-DROP mask by gradient attribution: bool [B, H, Q, K], True = stays.

    Args:
        gradient: ∂F/∂O, [B, Q, H, d].
        value: [B, G, K, d]; G < H where heads share values.
        valid: the positions that the model lets attend: bool, broadcastable to [B, H, Q, K].
        rule: which positions are dropped.
        impl: the implementation.
    """
    batch, queries, heads, width = gradient.shape
    if value.dim() != 4 or value.shape[0] != batch or value.shape[3] != width or heads % value.shape[1]:
        raise ValueError(
            f"value is {list(value.shape)}, which does not fit a gradient of {list(gradient.shape)}; it must be "
            "[B, G, K, d] for a gradient [B, Q, H, d], with G a divisor of H."
        )
    _check((batch, heads, queries, value.shape[2]), valid, rule)
    dtype = torch.promote_types(gradient.dtype, value.dtype)
    module = _choose(impl, gradient.device, dtype)
    if module is reference or module is cpu:
        return module.keep_from_scores(reference.scores(gradient, value), valid, rule)
    return module.keep_from_gradient(gradient, value, valid, rule)


def keep_from_scores(scores: Tensor, valid: Tensor, rule: reference.DropRule, impl: str = "auto") -> Tensor:
    """Like `keep_from_gradient`, where the map of scores, [B, H, Q, K], has been computed already."""
    _check(tuple(scores.shape), valid, rule)
    return _choose(impl, scores.device, scores.dtype).keep_from_scores(scores, valid, rule)


def _check(shape: tuple[int, ...], valid: Tensor, rule: reference.DropRule) -> None:
    if valid.dtype != torch.bool or not _broadcasts(tuple(valid.shape), shape):
        raise ValueError(
            f"valid is {valid.dtype} {list(valid.shape)}; it must be bool and broadcastable to {list(shape)}."
        )
    if rule.positions.shape != shape[:1]:
        raise ValueError(
            f"positions is {list(rule.positions.shape)}; it must have one for each of {shape[0]} examples."
        )
    check_choice("direction", rule.direction, DIRECTIONS)


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    """Return whether `shape` broadcasts to `to`; every row must have all of its keys."""
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
