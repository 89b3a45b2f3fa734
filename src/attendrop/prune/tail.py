"""The tail of an encoder: its last blocks, computed only for the rows that the head reads.

**Exact tail.** Where the head reads the first token, the last block computes this token alone: its query, the keys and
values of all tokens, and one row of everything after the attention (`first_query.py`). It is the same function.

**Summary tail.** Where the attention of the last k blocks is the constant 1/n, a token needs nothing of the others but
the mean. With x_1 … x_n the hidden states before these blocks, f_i block i, in which every row gets the attention
output W_i m + b_i of the mean m:

    m⁰ = mean_t x_t        c⁰ = x_1
    mⁱ = f_i(mⁱ⁻¹; mⁱ⁻¹)    cⁱ = f_i(cⁱ⁻¹; mⁱ⁻¹)       the head reads cᵏ (first token) or mᵏ (mean)

so the tail has two rows for each sequence, or one, instead of n. Compared with constant attention in all tokens, whose
mean after a block is mean_t f_i(x_t; m):

    k = 1, the head reads the first token    the same function, where blocks normalise after the residual connection
    otherwise                                 the same only where all tokens of a sequence are equal, because a block is
                                              not linear: f(mean x) is not mean f(x); training makes up for it

What a head reads is found by trying (`head_reads`). The last block of a model with a tail returns one row, `[B, 1, d]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..model.dry_run import few_tokens, is_traced
from ..model.probe import LABELS
from ..model.subclasses import Seam
from .constant_attention import ConstantAttention, mean_weights
from .depth import stacks_of
from .evaluation import isolated_eval
from .first_query import FirstQuery, cut_to_first, give_first_query, take_first_query
from .layouts import Layout
from .stock_layout import TAIL, store_in_stock_layout
from .surgery import encoder_layers

FIRST, MEAN = "first", "mean"
Batch = Mapping[str, Any]
Rows = Callable[[Tensor, Tensor | None], Tensor]  # hidden states [B, L, d] and the mask -> other rows


def encoder_blocks(model: Any, batch: Batch | None = None) -> list[tuple[str, nn.Module]]:
    """Return the blocks of the only stack of a model, with their names.

    Args:
        model: A transformers model that is not bound.
        batch: Inputs for the dry run that finds the blocks. Models of text and images need none.
    """
    stacks = stacks_of(model, batch)
    if len(stacks) != 1 or stacks[0].kind != "only":
        raise ValueError(f"{type(model).__name__} has an encoder and a decoder; a tail needs a model with one stack.")
    path = stacks[0].path
    return [(f"{path}.{name}", block) for name, block in model.get_submodule(path).named_children()]


def head_reads(model: Any, batch: Batch | None = None) -> str | None:
    """Return what the head of a model reads of the last block: "first", the first token; "mean"; None = more than that.

    Each is tried: all rows of the block's output are replaced by the one in question, and the outputs must stay.

    Args:
        model: A transformers model that is not bound.
        batch: Inputs for the trial. Models of text and images need none.
    """
    if (tail := tail_of(model)) is not None:
        return str(tail["reads"])
    inputs = dict(batch) if batch is not None else _different_tokens(model)
    last = encoder_blocks(model, batch)[-1][1]
    whole, first, mean, other = (_outputs(model, inputs, last, rows) for rows in (None, _first_row, _mean_row, _other))
    if any(x.shape != whole.shape for x in (first, mean, other)) or _is_close(whole, other):
        return None
    return FIRST if _is_close(whole, first) else MEAN if _is_close(whole, mean) else None


def _outputs(model: Any, inputs: Batch, block: nn.Module | None = None, rows: Rows | None = None) -> Tensor:
    """Return the logits of a head, also of several, in one row for each example; `rows` changes those of a block."""

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        return None if rows is None else _with_rows(output, lambda x: rows(x, inputs.get("attention_mask")))

    handle = None if block is None else block.register_forward_hook(hook)
    try:
        with isolated_eval(model):
            outputs = model(**{name: x for name, x in inputs.items() if name not in LABELS})
    finally:
        if handle is not None:
            handle.remove()
    logits = [x for name, x in outputs.items() if "logits" in name and isinstance(x, Tensor)]
    if not logits:
        raise ValueError(f"{type(model).__name__} returns no logits; a tail is for models with a head.")
    return torch.cat([x.flatten(1) for x in logits], 1).float()


def _different_tokens(model: Any) -> dict[str, Tensor]:
    """Return two examples for the trial, the second with padding."""
    inputs = few_tokens(model, model.config)
    if "input_ids" not in inputs:  # images
        generator = torch.Generator().manual_seed(0)
        return {name: torch.randn(x.shape, generator=generator).to(x) for name, x in inputs.items()}
    ids = inputs["input_ids"]
    numbers = torch.arange(2 * ids.numel(), device=ids.device).reshape(2, *ids.shape[1:])
    inputs["input_ids"] = 3 + numbers * 7 % (model.config.get_text_config().vocab_size - 3)
    inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
    inputs["attention_mask"][1, ..., -2:] = 0
    return inputs


def _first_row(x: Tensor, mask: Tensor | None) -> Tensor:
    return x[:, :1].expand_as(x)


def _other(x: Tensor, mask: Tensor | None) -> Tensor:
    return x[:, 1:2].expand_as(x)


def _mean_row(x: Tensor, mask: Tensor | None) -> Tensor:
    if mask is None:
        return x.mean(1, keepdim=True).expand_as(x)
    return (mean_weights(mask.reshape(x.shape[:2]), x.dtype) @ x).expand_as(x)


def _is_close(one: Tensor, other: Tensor) -> bool:
    return bool((one - other).abs().max() <= 1e-4 * one.abs().max().clamp(min=1e-6))


# ---- summary tail ----------------------------------------------------------------------------------------------------


def tail_of(model: Any) -> dict[str, Any] | None:
    """Return the tail that a configuration names: `blocks` (0 = exact) and what the head `reads`; None = none."""
    return getattr(model.config, TAIL, None)


def add_summary_tail(model: Any, blocks: int, reads: str, batch: Batch | None = None) -> None:
    """Compute the last blocks on the rows that the head reads and the mean, in place.

    Args:
        model: A model without an exact tail in which the attention of these blocks is constant (`prune`).
        blocks: How many blocks; a shorter tail becomes longer.
        reads: What the head reads, from `head_reads`.
        batch: Inputs for the dry run that finds the blocks. Models of text and images need none.
    """
    stack = encoder_blocks(model, batch)
    if not 1 <= blocks < len(stack):
        raise ValueError(f"blocks is {blocks}; it must be at least 1 and below {len(stack)}, the number of blocks.")
    layers = encoder_layers(model, batch)
    remove_tail(model)
    tail = stack[-blocks:]
    constants = []
    for name, _ in tail:
        inside = [layer for layer in layers if layer.site.name.startswith(f"{name}.")]
        if not inside or not all(layer.is_pruned for layer in inside):
            raise ValueError(f"blocks is {blocks}, but {name} has attention; make it constant first (prune).")
        constants += [layer.module for layer in inside]
    first: Any = constants[0]
    for constant in constants:
        constant.reads_summary = True  # type: ignore[assignment]
    entered, left = tail[0][1], tail[-1][1]
    _keep(entered, entered.register_forward_pre_hook(_Summarize(reads, first.layout, type(entered)), with_kwargs=True))
    _keep(left, left.register_forward_hook(_KeepFirst()))
    setattr(model.config, TAIL, {"blocks": blocks, "reads": reads})
    store_in_stock_layout(model)


class _Summarize:
    """Before the first block of the tail: `[B, L, d]` becomes the first token and the mean, or the mean alone."""

    def __init__(self, reads: str, layout: Layout, cls: type) -> None:
        self.reads, self.layout, self.cls = reads, layout, cls

    def __call__(self, block: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        hidden, mask = _arguments(self.cls, args, kwargs)
        if mask is None:
            mean = hidden.mean(1, keepdim=True)
        else:
            mean = mean_weights(mask, hidden.dtype, self.layout.binary_mask) @ hidden
        rows = mean if self.reads == MEAN else torch.cat([hidden[:, :1], mean], 1)
        return _with_hidden(args, kwargs, rows)


class _KeepFirst:
    """After the last block: the row that the head reads."""

    def __call__(self, block: nn.Module, args: Any, output: Any) -> Any:
        return _with_rows(output, lambda x: x[:, :1])


# ---- exact tail ------------------------------------------------------------------------------------------------------


def add_exact_tail(model: Any, reads: str | None, batch: Batch | None = None) -> bool:
    """Compute the last block only for the first token, where the head reads it, in place; return whether it holds.

    In training mode, and while the model is bound, all tokens are computed.

    Args:
        model: A transformers model that is not bound.
        reads: What the head reads, from `head_reads`.
        batch: Inputs for the trial that it is the same. Models of text and images need none.
    """
    layers, stack = encoder_layers(model, batch), encoder_blocks(model, batch)
    name, block = stack[-1]
    inside = [layer for layer in layers if layer.site.name.startswith(f"{name}.")]
    if reads != FIRST or tail_of(model) is not None or len(inside) != 1 or inside[0].layout is None:
        return False
    module, layout = inside[0].module, inside[0].layout
    config = getattr(module, "config", None)
    if not layout.heads or inside[0].is_pruned or getattr(config, "_attn_implementation", "sdpa") not in _KNOWN:
        return False
    inputs = dict(batch) if batch is not None else _different_tokens(model)
    before = _outputs(model, inputs)
    give_first_query(module, layout)
    _keep(block, block.register_forward_pre_hook(_FirstOnly(type(block), module), with_kwargs=True))
    setattr(model.config, TAIL, {"blocks": 0, "reads": FIRST})
    if _is_close(before, _outputs(model, inputs)):
        return True
    remove_tail(model)
    return False


_KNOWN = ("sdpa", "eager", None)
_HANDLES = "_attendrop_tail"  # attribute of a block


class _FirstOnly:
    """Before the last block: the first token, which carries the others for the attention."""

    is_off = False

    def __init__(self, cls: type, attention: nn.Module) -> None:
        self.cls, self.attention = cls, attention

    def __call__(self, block: nn.Module, args: Any, kwargs: Any) -> Any:
        is_bound = isinstance(block, Seam) or isinstance(self.attention, Seam)
        if block.training or is_bound or self.is_off or is_traced(block):
            return None
        hidden, _ = _arguments(self.cls, args, kwargs)
        return _with_hidden(args, kwargs, cut_to_first(hidden))


def _keep(block: nn.Module, handle: Any) -> None:
    """Keep the handle of a hook at its block, for `remove_tail`; it is copied with the block."""
    block.__dict__.setdefault(_HANDLES, []).append(handle)


def remove_tail(model: Any) -> None:
    """Compute all tokens in all blocks again, in place.

    Args:
        model: A model that is not bound, with or without a tail.
    """
    for module in model.modules():
        for handle in module.__dict__.pop(_HANDLES, ()):
            handle.remove()
        if isinstance(module, FirstQuery):
            take_first_query(module)
        if isinstance(module, ConstantAttention):
            module.reads_summary = False
    if tail_of(model) is not None:
        setattr(model.config, TAIL, None)


@contextmanager
def all_tokens(model: nn.Module) -> Iterator[None]:
    """Turn the exact tail off in the block.

    Args:
        model: The model.
    """
    hooks = [h for m in model.modules() for h in m._forward_pre_hooks.values() if isinstance(h, _FirstOnly)]
    for hook in hooks:
        hook.is_off = True
    try:
        yield
    finally:
        for hook in hooks:
            hook.is_off = False


# ---- the arguments and the results of blocks -------------------------------------------------------------------------


def _arguments(cls: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return the hidden states and the mask of the call of a block of a class."""
    names = list(inspect.signature(cls.forward).parameters)[1:]
    given = dict(zip(names, args, strict=False)) | kwargs
    return given[names[0]], given.get("attention_mask")


def _with_hidden(args: tuple[Any, ...], kwargs: dict[str, Any], hidden: Tensor) -> tuple[Any, Any]:
    return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})


def _with_rows(output: Any, change: Any) -> Any:
    return change(output) if isinstance(output, Tensor) else (change(output[0]), *output[1:])
