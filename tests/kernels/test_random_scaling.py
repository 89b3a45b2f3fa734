"""The kernels that change weights and gradients by random factors, compared with their reference.

Without a GPU, Triton runs in its interpreter.
"""

from __future__ import annotations

import importlib.util

import pytest
import torch

from attendrop.kernels.random_scaling import reference
from attendrop.random import key_of

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton (pip install triton)")
KEY = key_of(5, 3, 0, "weights")
HALF = torch.bfloat16 if DEVICE == "cuda" else torch.float16


def share_of(value: float, in_memory: bool) -> float | torch.Tensor:
    return torch.tensor(value, device=DEVICE) if in_memory else value


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize(
    ("shape", "of_keep"), [((40, 300), (40, 300)), ((40, 300), (1, 300)), ((40, 300), (40, 1)), ((1, 7), (1, 7))]
)
def test_mixed_weights_and_their_gradients(
    shape: tuple[int, int], of_keep: tuple[int, int], dtype: torch.dtype, in_memory: bool
) -> None:
    from attendrop.kernels.random_scaling import triton

    share = share_of(0.3, in_memory)
    for target in (None, torch.randn(shape, dtype=dtype, device=DEVICE)):
        weight, gradient = (torch.randn(shape, dtype=dtype, device=DEVICE) for _ in range(2))
        if target is not None:
            weight[0] = target[0]
        results = {}
        for name, module in (("triton", triton), ("reference", reference)):
            w, g, trained = weight.clone(), gradient.clone(), torch.empty_like(weight)
            keep = torch.empty(of_keep, dtype=torch.bool, device=DEVICE)
            module.mix(w, trained, keep, target, share, KEY)
            mixed = w.clone()
            module.unmix(w, trained, keep, g, share)
            results[name] = mixed, keep, g
            assert torch.equal(w, weight)
            assert torch.equal(trained, weight)
        assert 0 < results["reference"][1].sum() < keep.numel()
        assert torch.equal(results["triton"][1], results["reference"][1])
        assert torch.equal(results["triton"][2], results["reference"][2])
        # a product and a sum may be rounded once or twice
        torch.testing.assert_close(
            results["triton"][0], results["reference"][0], rtol=4 * torch.finfo(dtype).eps, atol=1e-6
        )
        if target is not None:
            assert torch.equal(results["triton"][0][0], target[0])


@pytest.mark.parametrize("in_memory", [False, True])
@pytest.mark.parametrize("shape", [(5000,), (30, 257), (6, 5, 4), (), (0, 3)])
def test_gradients_after_dropout_are_those_of_the_reference(shape: tuple[int, ...], in_memory: bool) -> None:
    from attendrop.kernels.random_scaling import triton

    x, share = torch.randn(shape, device=DEVICE), share_of(0.7, in_memory)
    expected, actual = x.clone(), x.clone()
    reference.dropout_(expected, share, KEY)
    key = torch.full((), KEY - 2**32 if KEY >= 2**31 else KEY, dtype=torch.int32, device=DEVICE)
    triton.dropout_(actual, share, key)
    assert torch.equal(actual, expected)
    if x.numel() > 1000:
        assert abs((actual != 0).float().mean().item() - 0.7) < 0.05
