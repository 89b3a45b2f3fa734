"""Fades out the attention of a layer, or a whole block, while a model is trained.

    attention    s · Attn(X) + (1 − s) · W_O (W_V mean(X) + b_V) + b_O        to the constant 1/n
    block        s · f(X) + (1 − s) · X                                       to its removal

The share s falls from 1 to 0. At 0 the model computes what it computes after `prune` or `drop_layers`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .constant_attention import mean_weights
from .layouts import Layout


class Fading:
    """The share of a layer's own output that is left."""

    def __init__(self) -> None:
        self.share = 1.0

    @contextmanager
    def attention(self, module: nn.Module, layout: Layout) -> Iterator[None]:
        """Fade the attention of a module to the constant 1/n in the block.

        Args:
            module: The attention module.
            layout: Where it keeps its projections.
        """

        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
            return (self._mixed(output[0], _constant(module, layout, hidden, mask)), *output[1:])

        handle = module.register_forward_hook(hook, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    @contextmanager
    def block(self, block: nn.Module) -> Iterator[None]:
        """Fade a block to its input in the block of code.

        Args:
            block: The block.
        """

        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            hidden = args[0] if args else kwargs["hidden_states"]
            if isinstance(output, Tensor):
                return self._mixed(output, hidden)
            return (self._mixed(output[0], hidden), *output[1:])

        handle = block.register_forward_hook(hook, with_kwargs=True)
        try:
            yield
        finally:
            handle.remove()

    def _mixed(self, own: Tensor, other: Tensor) -> Tensor:
        return torch.lerp(other.expand_as(own), own, self.share)


def _constant(module: nn.Module, layout: Layout, hidden: Tensor, mask: Tensor | None) -> Tensor:
    """Return what the module returns with uniform attention, `[B, 1, d]`."""
    if mask is None:
        mean = hidden.mean(1, keepdim=True)
    else:
        mean = mean_weights(mask, hidden.dtype, layout.binary_mask) @ hidden
    value: Any = module.get_submodule(layout.v)
    if layout.fused:
        bias = None if value.bias is None else value.bias.chunk(3)[2]
        mixed = functional.linear(mean, value.weight.chunk(3)[2], bias)
    else:
        mixed = value(mean)
    return mixed if layout.o_outside else module.get_submodule(layout.o)(mixed)
