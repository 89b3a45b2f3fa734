"""Passes over all weights: the kernels compared with their reference, and the reference with formulas by hand.

Without a GPU, Triton runs in its interpreter.
"""

from __future__ import annotations

import importlib.util
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

from attendrop.kernels.foreach import reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
needs_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
# An empty tensor, a number, one that is smaller than a tile, one of whole chunks, one with a rest.
SHAPES = [(0, 3), (), (7,), (5, 300), (2, 16384), (3, 7001), (16384,)]


def tensors(dtype: torch.dtype = torch.float32, seed: int = 0) -> list[Tensor]:
    """Tensors of two precisions, some larger and some smaller than what one program works on."""
    torch.manual_seed(seed)
    return [
        torch.randn(shape, device=DEVICE, dtype=dtype if i % 2 else torch.float32) for i, shape in enumerate(SHAPES)
    ]


def both(run: Any) -> tuple[list[Tensor], list[Tensor]]:
    """What `run(module)` returns for the kernels and for the reference."""
    from attendrop.kernels.foreach import triton

    return run(triton), run(reference)


def assert_close(actual: list[Tensor], expected: list[Tensor]) -> None:
    # a product and a sum may be rounded once or twice
    for x, y in zip(actual, expected, strict=True):
        torch.testing.assert_close(
            x, y, rtol=4 * torch.finfo(y.dtype).eps, atol=16 * min(1e-7, torch.finfo(y.dtype).eps)
        )


def number(value: float, in_memory: bool) -> float | Tensor:
    return torch.tensor(value, device=DEVICE) if in_memory else value


@needs_triton
@pytest.mark.parametrize(
    ("dtype", "share", "in_memory"), [(HALF, 0.01, False), (HALF, 0.7, True), (torch.float64, 0.1, False)]
)
def test_averages_are_those_of_the_reference(dtype: torch.dtype, share: float, in_memory: bool) -> None:
    wide = torch.promote_types(dtype, torch.float32)

    def run(module: ModuleType) -> list[Tensor]:
        averages = tensors(wide)
        module.average(averages, tensors(dtype, seed=1), number(share, in_memory))
        return averages

    actual, expected = both(run)
    assert_close(actual, expected)
    before, weights = tensors(wide), tensors(dtype, seed=1)
    assert_close(actual, [(1 - share) * a + share * w.to(a.dtype) for a, w in zip(before, weights, strict=True)])


@needs_triton
@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("has_targets", [False, True])
def test_pulled_gradients_are_those_of_the_reference(has_targets: bool, in_memory: bool) -> None:
    weights = tensors(HALF, seed=1)
    targets = tensors(HALF, seed=2) if has_targets else None
    if targets is not None:
        weights[4] = targets[4].clone()

    def run(module: ModuleType) -> list[Tensor]:
        gradients = tensors(HALF)
        module.pull(gradients, weights, targets, number(0.3, in_memory))
        return gradients

    actual, expected = both(run)
    assert_close(actual, expected)
    if has_targets:
        assert torch.equal(actual[4], tensors(HALF)[4])  # no pull where the weight is at its target


@needs_triton
@pytest.mark.parametrize("eta", [None, 0.1])
@pytest.mark.parametrize("bad", [None, 0.0, float("inf"), float("nan")])
def test_weights_that_ascend_are_those_of_the_reference(eta: float | None, bad: float | None) -> None:
    gradients = tensors(HALF, seed=1)
    if bad is not None:
        gradients = [torch.full_like(g, bad) if i == 3 else torch.zeros_like(g) for i, g in enumerate(gradients)]

    def run(module: ModuleType) -> list[Tensor]:
        weights, is_moved = tensors(HALF), torch.tensor(False, device=DEVICE)
        trained = [torch.full_like(x, 9) for x in weights]
        module.restore(weights, trained, is_moved)  # they have not been moved
        etas = [eta if index % 2 else None for index in range(len(weights))]
        module.ascend(weights, trained, gradients, number(0.5, bad is None), etas, is_moved)
        ascended = [x.clone() for x in weights]
        assert all(map(torch.equal, trained, tensors(HALF)))
        module.restore(weights, trained, is_moved)
        module.restore(weights, ascended, is_moved)  # they are back already
        assert all(map(torch.equal, weights, trained))
        return ascended

    actual, expected = both(run)
    assert_close(actual, expected)
    assert all(map(torch.equal, actual, tensors(HALF))) == (bad is not None)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("eta", [None, 0.1])
def test_step_of_the_reference_has_its_length(eta: float | None) -> None:
    weights, gradients = ([torch.randn(3, 4), torch.randn(5)] for _ in range(2))
    trained, is_moved = [torch.empty_like(x) for x in weights], torch.tensor(False)
    reference.ascend(weights, trained, gradients, 0.5, [eta, eta], is_moved)
    w, before, g = (torch.cat([x.flatten() for x in each]) for each in (weights, trained, gradients))
    scale = torch.ones_like(w) if eta is None else before.abs() + eta
    torch.testing.assert_close(w - before, 0.5 * scale**2 * g / (scale * g).norm())
    assert bool(is_moved)


@needs_triton
def test_address_table_holds_large_numbers() -> None:
    from attendrop.kernels.foreach.triton import table_of

    rows = [[2**47 + 512 * i + j for j in range(300)] for i in range(3)]
    assert table_of(rows, torch.device(DEVICE)).tolist() == rows
