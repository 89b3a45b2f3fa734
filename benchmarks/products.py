"""The time of the matrix products of a plain training step alone: what no change beside the products can beat.

The shapes are those of the products that a step of the model computes, forward and backward, in bf16 on a GPU. They run
one after the other in a CUDA graph, on numbers that do not matter, and equal shapes share theirs, so that the cache is
warmer than in a step. Products inside attention's own kernels are not counted.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from .shapes import RandomTexts, make_model

_PRODUCTS = ("mm", "addmm", "bmm", "baddbmm")
_ROUNDS = 20


class Products(TorchDispatchMode):
    """Notes the matrix products that run: of each the name, and the shapes, strides and precision of its inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[str, tuple[tuple[torch.Size, tuple[int, ...], torch.dtype], ...]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._overloadpacket.__name__
        if name in _PRODUCTS:
            tensors = (x for x in args if isinstance(x, Tensor))
            self.calls.append((name, tuple((x.shape, x.stride(), x.dtype) for x in tensors)))
        return function(*args, **(kwargs or {}))


def products_of(model: str, batch: int, length: int, device: str) -> Products:
    """The products of a plain step.

    Args:
        model: the name of the model.
        batch: the number of texts.
        length: their tokens.
        device: "cpu" or "cuda".
    """
    network = make_model(model, length, device).train()
    texts = RandomTexts(batch, length, model)
    columns = {name: torch.tensor([text[name] for text in texts], device=device) for name in texts[0]}
    on_gpu = device == "cuda"
    with Products() as products, torch.autocast(device, torch.bfloat16, enabled=on_gpu):
        network(**columns).loss.backward()
    return products


def products_ms(model: str, batch: int, length: int, device: str) -> float:
    """The median time of the products of a plain step, in milliseconds.

    Args:
        model: the name of the model.
        batch: the number of texts.
        length: their tokens.
        device: "cpu" or "cuda".
    """
    calls = products_of(model, batch, length, device).calls
    buffers = {described: _buffer(*described, device) for _, inputs in calls for described in inputs}

    def work() -> None:
        for name, inputs in calls:
            getattr(torch, name)(*(buffers[described] for described in inputs))

    run: Callable[[], Any] = work
    if device == "cuda":
        from .weight_passes import as_graph

        run = as_graph(work)
    return statistics.median(_seconds(run, device) for _ in range(_ROUNDS if device == "cuda" else 1)) * 1e3


def _buffer(shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, device: str) -> Tensor:
    size = 1 + sum((n - 1) * step for n, step in zip(shape, stride, strict=True))
    return torch.randn(size, device=device).to(dtype).as_strided(shape, stride)


def _seconds(work: Callable[[], Any], device: str) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
