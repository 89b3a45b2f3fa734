"""Subclasses of the blocks, word embeddings, feed-forwards and linear layers of a model, which follow a plan.

An instance that is bound gets a subclass of its class, of the same name, so that copies, `isinstance` and `state_dict`
keys stay the same.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor

from .plan import Edit, Plan

# Our attributes on modules, each a CallCounter.
ATTENTION, BLOCK, FEED_FORWARD = "_attendrop", "_attendrop_block", "_attendrop_feed_forward"
LINEAR, WORDS = "_attendrop_linear", "_attendrop_words"

EMPTY = Plan()


class Seam:
    """The common base of the subclasses of blocks, feed-forwards and adapted attention modules."""

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        # As nn.Module copies itself. It is written out because pickling, which would do it, is refused.
        duplicate = type(self).__new__(type(self))
        memo[id(self)] = duplicate
        duplicate.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return duplicate

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise pickle.PicklingError(
            "the model is bound by attendrop and cannot be pickled; save model.state_dict(), use save_pretrained(), or "
            "call unbind() on its seams (engine.close()) first."
        )


class BlockSeam(Seam):
    """Comes before the class of a block: skips it or edits its hidden states, as the plan says."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        run = super().forward  # type: ignore[misc]
        counter = getattr(self, BLOCK, None)
        if counter is None or not counter.seams.plan:
            return run(*args, **kwargs)
        plan: Plan = counter.seams.plan
        block = counter.current
        if block in plan.instead:
            counter.seams.count_skipped(counter.advance())
            return plan.instead[block]()
        edits = _before_blocks(plan, counter.seams.words) if block == 0 else ()
        if edits:
            args, kwargs = _with_hidden_states(args, kwargs, _edited(_hidden_states(args, kwargs), edits))
        result = run(*args, **kwargs)
        counter.advance()
        if block not in plan.skip and block not in plan.skip_where and block not in plan.edits:
            return result
        after = result if isinstance(result, Tensor) else result[0]
        is_skipped = _is_skipped(plan, block, after.device)
        if is_skipped is not None:
            # The block has run and its result is dropped, so that the autograd graph is the same in every step, which
            # data-parallel and sharded training rely on.
            after = torch.where(is_skipped, _hidden_states(args, kwargs), after)
        after = _edited(after, plan.edits.get(block, ()))
        return after if isinstance(result, Tensor) else (after, *result[1:])


def _before_blocks(plan: Plan, words: str | None) -> tuple[Edit, ...]:
    """Return the edits of the first block's input: also those of the word embeddings, where there are none."""
    return (*(plan.words if words is None else ()), *plan.edits.get(-1, ()))


def _is_skipped(plan: Plan, block: int, device: torch.device) -> Tensor | None:
    """Return whether the block is skipped, 0-d bool tensor; None where the plan says nothing about it."""
    if block in plan.skip:
        return torch.ones((), dtype=torch.bool, device=device)
    return plan.skip_where.get(block)


def _hidden_states(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
    return args[0] if args else kwargs["hidden_states"]


def _with_hidden_states(
    args: tuple[Any, ...], kwargs: dict[str, Any], hidden: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return ((hidden, *args[1:]), kwargs) if args else (args, {**kwargs, "hidden_states": hidden})


def _edited(x: Tensor, edits: Iterable[Edit]) -> Tensor:
    for edit in edits:
        x = edit(x)
    return x


class WordsSeam(Seam):
    """Comes before the class of the word embeddings: edits their output, where a decoder shares them only the first."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        x = super().forward(*args, **kwargs)  # type: ignore[misc]
        counter = getattr(self, WORDS, None)
        if counter is None or not counter.seams.plan.words:
            return x
        return _edited(x, counter.seams.plan.words) if counter.advance() == 0 else x


class FeedForwardSeam(Seam):
    """Comes before the class of a feed-forward's last linear layer: edits its input and its output."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        run = super().forward  # type: ignore[misc]
        counter = getattr(self, FEED_FORWARD, None)
        if counter is None or not (counter.seams.plan.ffn or counter.seams.plan.inner):
            return run(x, *args, **kwargs)
        plan: Plan = counter.seams.plan
        x = run(_edited(x, plan.inner.get(counter.current, ())), *args, **kwargs)
        return _edited(x, plan.ffn.get(counter.current, ()))


class LinearSeam(Seam):
    """Comes before the class of a linear layer that a method has opened: edits its input and its output."""

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        run = super().forward  # type: ignore[misc]
        counter = getattr(self, LINEAR, None)
        plan: Plan = EMPTY if counter is None else counter.seams.plan
        name = "" if counter is None else counter.name
        x = run(_edited(x, plan.linear_inputs.get(name, ())), *args, **kwargs)
        return _edited(x, plan.linear_outputs.get(name, ()))


_subclasses: dict[tuple[type, type], type] = {}


def with_seam(cls: Any, seam: Any) -> type:
    """Return a subclass of the same name, as FSDP2 does: one per class, so that isinstance holds among blocks."""
    if "_attendrop_original" in vars(cls) and (cls.__bases__[-1], cls.__bases__[0]) not in _subclasses:
        raise ValueError(f"{cls.__name__} has an attribute '_attendrop_original' of its own; rename it.")
    if (cls, seam) not in _subclasses:
        body = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "_attendrop_original": cls}
        _subclasses[cls, seam] = type(cls.__name__, (seam, cls), body)
    return _subclasses[cls, seam]
