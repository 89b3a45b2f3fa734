"""The module that replaces a pruned attention layer: uniform attention, one vector for each sequence.

    Y = W_O (W_V mean(X) + b_V) + b_O = W mean(X) + b        W = W_O W_V,  b = W_O b_V + b_O

The mean is over the valid tokens. W is computed once, and the query and key weights are removed. (Self-pruning,
AttendOut v1, arXiv 2104.04692v1.)
Differs from the paper in: there is no attention dropout, because there is no attention map to apply it to.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .layouts import Layout


class ConstantAttention(nn.Module):
    """Uniform attention over the valid tokens, with value and output projection multiplied into one.

    `project` is one Linear. Where all heads together are narrower than the model, it is value and output projection
    one after the other: their product would have a rank that further training does not preserve.

    Args:
        module: The attention module to replace.
        output: Its output projection.
        layout: Where the module keeps its projections.
        layers: The numbers of the layers that the module serves; several where layers share it.
    """

    def __init__(self, module: nn.Module, output: nn.Linear, layout: Layout, layers: Sequence[int]) -> None:
        super().__init__()
        self.layout = layout
        self.layers = tuple(layers)
        self.reads_summary = False  # whether the last row of the input is the mean: in a summary tail (tail.py)
        value: Any = module.get_submodule(layout.v)
        self.project = _projection(value, output, layout.fused)
        for name in layout.keeps:
            if hasattr(module, name):
                setattr(self, name, getattr(module, name))
        # `save` needs the shapes of the removed weights: those of the module, and those of the output projection.
        kept = self.state_dict()
        self.shapes = {name: tuple(x.shape) for name, x in module.state_dict().items() if name not in kept}
        self.output_shapes = {name: tuple(x.shape) for name, x in output.state_dict().items()}
        self.train(module.training)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        *args: Any,
        mask: Tensor | None = None,
        **kwargs: Any,
    ) -> tuple[Any, ...]:
        mask = attention_mask if mask is None else mask  # T5 calls it `mask`
        if self.reads_summary:
            mean = hidden_states[:, -1:]
        elif mask is None:
            mean = hidden_states.mean(1, keepdim=True)
        else:
            mean = mean_weights(mask, hidden_states.dtype, self.layout.binary_mask) @ hidden_states
        # A view of one row for all tokens: it needs no memory, and dropout after it still draws for each token.
        output = self.project(mean).expand(-1, hidden_states.shape[1], -1)
        return self.layout.finish(self, hidden_states, output, kwargs)

    def extra_repr(self) -> str:
        return f"layers={list(self.layers)}"


def mean_weights(mask: Tensor, dtype: torch.dtype, binary: bool = False) -> Tensor:
    """Return the weights of the mean over the valid tokens of each sequence: 1/n at its n valid tokens, [B, 1, K].

    A sequence without valid tokens gets the mean over all its tokens, so that the result is finite.

    Args:
        mask: What a model passes to its attention: [B, K] with 1 = valid, or [B, H, Q, K], either bool (True = valid)
            or numbers that are added to the scores.
        dtype: Of the weights.
        binary: Whether numbers in a mask [B, H, Q, K] are 1 at valid positions instead.
    """
    # All layers of a forward get the same mask, so the weights are cached on it, until the mask is written to. A graph
    # that is captured must compute them itself: it is replayed with other values in the same mask.
    can_cache = _can_be_read(mask) and not mask.is_inference()
    cached = getattr(mask, "_attendrop_mean_weights", None) if can_cache else None
    if cached is not None and cached[0] == mask._version and cached[1].dtype == dtype:
        return cached[1]
    valid = _valid_tokens(mask, binary)
    valid = valid | ~valid.any(-1, keepdim=True)
    weights = (valid / valid.sum(-1, keepdim=True)).to(dtype).unsqueeze(1)
    if can_cache:
        mask._attendrop_mean_weights = mask._version, weights  # type: ignore[attr-defined]
    return weights


def _valid_tokens(mask: Tensor, binary: bool) -> Tensor:
    """Return the valid tokens of each sequence: bool [B, K]."""
    is_additive = mask.is_floating_point() and mask.dim() == 4 and not binary
    allowed = mask > torch.finfo(mask.dtype).min / 2 if is_additive else mask != 0
    if allowed.dim() == 2:
        return allowed
    if allowed.shape[-2] == 1:
        return allowed[:, 0, 0]
    # Every valid token attends to itself. Rows of padding may attend to nothing at all, as in DeBERTa.
    valid = allowed[:, 0].diagonal(dim1=-2, dim2=-1)
    if _can_be_read(allowed):
        _check_rows(allowed, valid)
    return valid


def _can_be_read(x: Tensor) -> bool:
    """Return whether the values of a tensor can be read now: not while a graph is compiled or captured."""
    return not torch.compiler.is_compiling() and not (x.is_cuda and torch.cuda.is_current_stream_capturing())


def _check_rows(allowed: Tensor, valid: Tensor) -> None:
    differs = (allowed != valid[:, None, None, :]) & valid[:, None, :, None]
    if differs.any():
        raise ValueError(
            f"attention_mask has shape {list(allowed.shape)} and lets tokens of one sequence see different tokens; a "
            "pruned layer has one vector for each sequence, so all tokens must see the same ones ([B, K], or equal "
            "rows)."
        )


@torch.no_grad()
def _projection(value: Any, output: Any, fused: bool) -> nn.Module:
    """W_O (W_V x + b_V) + b_O as one Linear, or as two where the product would have a lower rank."""
    w, b = value.weight, value.bias
    if fused:
        w, b = w.chunk(3)[2], None if b is None else b.chunk(3)[2]
    trainable = value.weight.requires_grad or output.weight.requires_grad
    if w.shape[0] < w.shape[1]:
        return nn.Sequential(_linear(w, b, trainable), _linear(output.weight, output.bias, trainable))
    # In double precision, so that the product is rounded only once. MPS has no double precision.
    wide = torch.float32 if w.device.type == "mps" else torch.float64
    product = output.weight.to(wide) @ w.to(wide)
    bias = None if output.bias is None else output.bias.to(wide)
    if b is not None:
        projected = output.weight.to(wide) @ b.to(wide)
        bias = projected if bias is None else bias + projected
    return _linear(product.to(w.dtype), None if bias is None else bias.to(w.dtype), trainable)


def _linear(weight: Tensor, bias: Tensor | None, trainable: bool) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    linear.weight = nn.Parameter(weight.clone(), trainable)
    if bias is not None:
        linear.bias = nn.Parameter(bias.clone(), trainable)
    return linear
