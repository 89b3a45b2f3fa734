"""Losses that call the model by themselves: each call follows its own plan.

A contrastive loss may call the model once for the anchors, once for the positives and once for the negatives, with
texts of other lengths each time. A plan belongs to one call, so it is made when the call begins.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn

from .plan import Plan
from .seams import Record, Seams
from .sites import unwrapped

PlanOfCall = Callable[[int, dict[str, Any]], Plan]


@contextmanager
def planned_calls(model: nn.Module, seams: Seams, plan_of: PlanOfCall) -> Iterator[list[dict[int, Record]]]:
    """Give each call of the transformers model in the block its own plan. The backward belongs inside.

    Args:
        model: the bound model.
        seams: its seams.
        plan_of: the plan of a call, from its number and its inputs by name. It may run the model under another plan.

    Yields:
        What each call so far has recorded, by site.
    """
    records: list[dict[int, Record]] = []

    def begin(inputs: dict[str, Any]) -> None:
        plan = plan_of(len(records), inputs)
        records.append(seams.follow(plan))

    with seams.applied(Plan()), _watched(model, seams), _repeated(model, seams):
        seams.on_call = begin
        yield records


@contextmanager
def _watched(model: nn.Module, seams: Seams) -> Iterator[None]:
    """Pass the inputs of each call of the transformers model in the block to `Seams.on_call` before it runs.

    The attribute `forward` of the model is replaced: some libraries call it directly, so that hooks of the module would
    not run.
    """
    inner = unwrapped(model)
    run: Callable[..., Any] = inner.forward
    if getattr(run, "_attendrop_seams", None) is seams:  # a loss inside of a loss
        yield
        return
    own = vars(inner).get("forward")
    names = list(inspect.signature(run).parameters)

    @functools.wraps(run)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if seams.on_call is not None:
            seams.on_call({**dict(zip(names, args, strict=False)), **kwargs})
        return run(*args, **kwargs)

    forward._attendrop_seams = seams  # type: ignore[attr-defined]
    inner.forward = forward
    try:
        yield
    finally:
        if own is None:
            del inner.forward
        else:
            inner.forward = own


@contextmanager
def _repeated(model: nn.Module, seams: Seams) -> Iterator[None]:
    """Let blocks that gradient checkpointing reruns in the backward follow the plan of their own call."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _again(seams, (seams.plan, seams.records, seams.kept))

    functions: list[tuple[Any, Any]] = [
        (module, module._gradient_checkpointing_func)
        for module in model.modules()
        if getattr(module, "gradient_checkpointing", False) and hasattr(module, "_gradient_checkpointing_func")
    ]
    for module, function in functions:
        module._gradient_checkpointing_func = functools.partial(function, context_fn=contexts)
    try:
        yield
    finally:
        for module, function in functions:
            module._gradient_checkpointing_func = function


@contextmanager
def _again(seams: Seams, state: tuple[Plan, dict[int, Record], dict[str, Tensor]]) -> Iterator[None]:
    """Apply an earlier plan to passes in the block; its records are kept."""
    before = seams.plan, seams.records, seams.kept
    seams.plan, seams.records, seams.kept = state
    try:
        yield
    finally:
        seams.plan, seams.records, seams.kept = before
