"""Comparisons of numbers whose tolerance does not depend on the processor.

A method is compared with a slow version of it in float64, where a difference means a wrong formula. In float32 and in
half precision rounding depends on the kernels of the machine: there the error of a plain version is the measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

# Two ways to compute the same in float64 differ by about 1e-13. What should be zero is not compared relative to itself.
RTOL, ATOL = 1e-9, 1e-11


class _Float64(TorchFunctionMode):
    """Every call that asks for float32 gets float64.

    Models compute norms, rotary embeddings and softmaxes in float32 even when their weights are in float64.
    """

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = {name: _wider(value) for name, value in (kwargs or {}).items()}
        if func is Tensor.float:
            func = Tensor.double
        result = func(*map(_wider, args), **kwargs)
        # arrays of NumPy and compiled functions are still in float32
        return result.double() if isinstance(result, Tensor) and result.dtype == torch.float32 else result


_engine_run_backward = torch.autograd._engine_run_backward


def _backward(*args: Any, **kwargs: Any) -> Any:
    """PyTorch leaves the mode for a backward pass, and gradient checkpointing computes blocks again there."""
    with _Float64():
        return _engine_run_backward(*args, **kwargs)


def _wider(value: Any) -> Any:
    return torch.float64 if value is torch.float32 else value


@contextmanager
def float64() -> Iterator[None]:
    """Inside this context models, data and all that is computed from them are in float64."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Float64(), mock.patch.object(torch.autograd, "_engine_run_backward", _backward):
            yield
    finally:
        torch.set_default_dtype(before)


def assert_same_numbers(actual: Tensor, expected: Tensor, name: str = "") -> None:
    """Fails where two float64 tensors differ by more than rounding; `name` is shown with the difference."""
    assert actual.dtype == expected.dtype == torch.float64, "comparisons with a slow version run in float64"
    torch.testing.assert_close(actual, expected, rtol=RTOL, atol=ATOL, msg=lambda text: f"{name}: {text}")


def assert_same_gradients(model: nn.Module, literal: nn.Module) -> None:
    """Compares the gradients of all parameters; a missing one is zero."""
    for (name, a), b in zip(model.named_parameters(), literal.parameters(), strict=True):
        actual, expected = (torch.zeros_like(b) if x.grad is None else x.grad for x in (a, b))
        assert_same_numbers(actual, expected, name)


def relative_error(actual: Tensor, truth: Tensor) -> float:
    return ((actual.double() - truth).norm() / truth.norm()).item()


def assert_as_exact_as_stock(ours: tuple[Tensor, Tensor], stock: tuple[Tensor, Tensor]) -> None:
    """For float32 and half: the relative error is at most twice that of stock operations in the same precision.

    Args:
        ours: what the library computed, and the same in float64.
        stock: what transformers' or PyTorch's own operations compute without the method, and the same in float64.
    """
    assert ours[0].dtype == stock[0].dtype != torch.float64 == ours[1].dtype == stock[1].dtype
    error, allowed = relative_error(*ours), 2 * relative_error(*stock)
    assert error <= allowed, f"the relative error is {error:.2e}; twice that of the stock operations is {allowed:.2e}"
