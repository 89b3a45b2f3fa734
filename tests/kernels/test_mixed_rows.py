"""Hidden states that are mixed in pairs: the kernel compared with its reference, and the gradient with autograd's.

Without a GPU, Triton runs in its interpreter.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch
from torch import Tensor

from attendrop.kernels.mixed_rows import mixed_rows, reference

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16
OTHERS = torch.tensor([2, 0, 1, 3, 5, 4], device=DEVICE)  # three in a circle, one alone, two with each other


def shares_of(rows: int, tokens: int) -> Tensor:
    shares = torch.rand(rows, tokens, 1, device=DEVICE)
    shares[:, ::2] = 0
    return shares


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton")
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, HALF])
@pytest.mark.parametrize(("tokens", "n"), [(5, 48), (1, 1100), (3, 7)])
def test_kernel_gives_the_numbers_of_the_reference(tokens: int, n: int, dtype: torch.dtype) -> None:
    from attendrop.kernels.mixed_rows import triton

    torch.manual_seed(0)
    x = torch.randn(6, tokens, n, dtype=dtype, device=DEVICE)
    given, taken = shares_of(6, tokens), shares_of(6, tokens)
    actual, expected = (module.mixed_rows(x, OTHERS, given, taken) for module in (triton, reference))
    eps = torch.finfo(dtype).eps
    torch.testing.assert_close(actual, expected, rtol=4 * eps, atol=8 * eps)
    assert torch.equal(actual[:, ::2], x[:, ::2])
    assert tokens == 1 or not torch.equal(actual, x)


@pytest.mark.usefixtures("float64")
def test_gradient_is_that_of_the_formula() -> None:
    x, shares = torch.randn(6, 5, 4, device=DEVICE), shares_of(6, 5)
    back = OTHERS.argsort()
    weights = torch.randn_like(x)
    results = []
    for mix in (
        lambda x: (1 - shares) * x + shares * x[OTHERS],
        lambda x: mixed_rows(x, OTHERS, back, shares, shares[back]),
    ):
        leaf = x.clone().requires_grad_()
        mixed = mix(leaf)
        (mixed * weights).sum().backward()
        results.append((mixed.detach(), leaf.grad))
    torch.testing.assert_close(results[1], results[0])
