"""The attention of the first token alone: its query, and the keys and values of all tokens.

    o_0 = softmax(q_0 Kᵀ / √d + b_0) V        K, V: of all tokens; b_0: the first row of mask and bias

`FirstQuery` comes before the class of an attention module, as the seams do. It acts on hidden states that carry the
tokens they were cut from (`cut_to_first`), and runs the module's own code on all others.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from .layouts import Layout

_CONTEXT = "_attendrop_context"  # attribute of a tensor: all tokens, of which it is the first
_LAYOUT = "_attendrop_first_query"  # attribute of a module


def cut_to_first(hidden: Tensor) -> Tensor:
    """Return the first token, `[B, 1, d]`, which carries all tokens for the attention of its block.

    Args:
        hidden: The hidden states, `[B, L, d]`.
    """
    first = hidden[:, :1]
    setattr(first, _CONTEXT, hidden)
    return first


class FirstQuery:
    """The common base of the subclasses of attention modules that `give_first_query` makes."""

    def forward(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        tokens = getattr(hidden_states, _CONTEXT, None)
        if tokens is None:
            return super().forward(hidden_states, *args, **kwargs)  # type: ignore[misc]
        given = _arguments(type(self).__mro__[2], args, kwargs)
        output = _attend(self, hidden_states, tokens, given.get("attention_mask"), given.get("position_bias"))
        return output, None

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Copy and pickle the module by the class that it had."""
        return _restored, (type(self).__mro__[2], self.__dict__)


def _restored(cls: Any, state: dict[str, Any]) -> Any:
    module = cls.__new__(cls)
    module.__dict__.update(state)
    module.__class__ = _subclass(cls)
    return module


def give_first_query(module: nn.Module, layout: Layout) -> None:
    """Let an attention module compute the first query alone where its input asks for it.

    Args:
        module: The attention module.
        layout: Its layout, which has `heads`.
    """
    setattr(module, _LAYOUT, layout)
    cls: Any = type(module)
    module.__class__ = _subclass(cls)


def take_first_query(module: Any) -> None:
    """Undo `give_first_query`.

    Args:
        module: The attention module.
    """
    module.__class__ = type(module).__mro__[2]
    delattr(module, _LAYOUT)


@functools.cache
def _subclass(cls: type) -> type:
    return type(cls.__name__, (FirstQuery, cls), {"__module__": cls.__module__})


def _arguments(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = list(inspect.signature(cls.forward).parameters)[2:]  # after self and the hidden states
    return dict(zip(names, args, strict=False)) | kwargs


def _attend(module: Any, first: Tensor, tokens: Tensor, mask: Tensor | None, bias: Tensor | None) -> Tensor:
    layout: Layout = getattr(module, _LAYOUT)
    heads = getattr(module, layout.heads)

    def split(path: str, x: Tensor) -> Tensor:
        return module.get_submodule(path)(x).unflatten(-1, (heads, -1)).transpose(1, 2)

    q, k, v = split(layout.q, first), split(layout.k, tokens), split(layout.v, tokens)
    mask = None if mask is None else mask[:, :, :1]
    if bias is not None:
        bias = bias[:, :, :1]
        mask = bias if mask is None else bias + mask
    if getattr(module, "config", None) is not None and module.config._attn_implementation == "sdpa":
        output = functional.scaled_dot_product_attention(q, k, v, mask)
    else:
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(q.dtype).min) if mask.dtype == torch.bool else scores + mask
        output = scores.softmax(-1) @ v
    output = output.transpose(1, 2).flatten(2)
    return output if layout.o_outside else module.get_submodule(layout.o)(output)
