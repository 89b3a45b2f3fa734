"""Adapters for attention classes that do not call transformers' attention interface: MPNet and DeBERTa-v2.

An adapter is a class that comes before the class of the attention module. Under an empty plan the module's own code
runs, so that nothing changes; under a plan the same scores go through our attention function.

`capturable` is for models whose forward does something that a CUDA graph cannot: MPNet and DeBERTa-v2 copy numbers from
the CPU, and DeBERTa's head for classification looks for labels that are not negative; gradient checkpointing reads the
state of the random generator. It also lets a batch without padding go without a mask.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, masking_utils

from .attention import projected
from .dry_run import is_traced


def _follows_plan(module: Any) -> bool:
    """Whether our attention function is to run: under a plan, and in the dry run that finds the attention calls."""
    counter = getattr(module, "_attendrop", None)
    return is_traced(module) if counter is None else bool(counter.seams.plan)


def _with_factors(module: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with the plan's factors, for scores that the attention function does not compute."""
    counter = getattr(module, "_attendrop", None)
    return (q, k, v) if counter is None else projected(counter.seams.plan, counter.current, q, k, v)


def _attend(module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, scaling: float) -> Tensor:
    attend = AttentionInterface()["attendrop_sdpa"]
    dropout = module.dropout.p if module.training else 0.0
    output, _ = attend(module, q, k, v, mask, dropout=dropout, scaling=scaling, is_causal=False)
    return output.reshape(*output.shape[:2], -1)


class MPNet:
    """MPNet adds a relative position bias to the scores and projects its output inside the attention module."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_bias: Tensor | None = None,
        output_attentions: bool = False,
        **kwargs: Any,
    ) -> tuple[Tensor, ...]:
        if not _follows_plan(self):
            return super().forward(hidden_states, attention_mask, position_bias, output_attentions, **kwargs)  # type: ignore[misc]
        shape = (*hidden_states.shape[:-1], -1, self.attention_head_size)
        q, k, v = (project(hidden_states).view(shape).transpose(1, 2) for project in (self.q, self.k, self.v))
        bias = torch.zeros(1, 1, 1, 1, dtype=q.dtype, device=q.device) if position_bias is None else position_bias
        if attention_mask is not None:
            bias = bias + attention_mask
        return (self.o(_attend(self, q, k, v, bias.to(q.dtype), self.attention_head_size**-0.5)),)


class DebertaV2:
    """DeBERTa-v2 and v3 add content-to-position and position-to-content scores."""

    def forward(
        self: Any,
        hidden_states: Tensor,
        attention_mask: Tensor,
        output_attentions: bool = False,
        query_states: Tensor | None = None,
        relative_pos: Tensor | None = None,
        rel_embeddings: Tensor | None = None,
    ) -> tuple[Tensor, None]:
        if not _follows_plan(self):
            return super().forward(  # type: ignore[misc]
                hidden_states, attention_mask, output_attentions, query_states, relative_pos, rel_embeddings
            )
        heads = self.num_attention_heads
        query_states = hidden_states if query_states is None else query_states
        q, k, v = (
            self.transpose_for_scores(project(states), heads)
            for project, states in (
                (self.query_proj, query_states),
                (self.key_proj, hidden_states),
                (self.value_proj, hidden_states),
            )
        )
        scale_factor = 1 + sum(kind in self.pos_att_type for kind in ("c2p", "p2c"))
        bias = torch.zeros((), dtype=q.dtype, device=q.device)
        q, k, v = (x.view(-1, heads, *x.shape[1:]) for x in (q, k, v))
        if self.relative_attention:
            # the plan's factors change these scores too; the attention function applies them to q and k
            content_q, content_k = (x.flatten(0, 1) for x in _with_factors(self, q, k, v)[:2])
            bias = self.disentangled_attention_bias(
                content_q, content_k, relative_pos, self.pos_dropout(rel_embeddings), scale_factor
            )
        bias = bias.view(-1, heads, *bias.shape[1:]) if bias.dim() else bias.view(1, 1, 1, 1)
        bias = bias.masked_fill(~attention_mask.bool(), torch.finfo(q.dtype).min)
        return _attend(self, q, k, v, bias.to(q.dtype), (q.shape[-1] * scale_factor) ** -0.5), None


ADAPTERS: dict[tuple[str, str], type] = {
    ("transformers.models.mpnet.modeling_mpnet", "MPNetSelfAttention"): MPNet,
    ("transformers.models.deberta_v2.modeling_deberta_v2", "DisentangledSelfAttention"): DebertaV2,
}


@contextmanager
def capturable(model: nn.Module) -> Iterator[None]:
    """Inside, the forward of `model` does not read from the CPU or from the device, where an adapter can avoid that."""
    with ExitStack() as stack:
        stack.enter_context(_masks_left_out())
        for module in model.modules():
            adapter = _CAPTURABLE.get((type(module).__module__, type(module).__qualname__))
            if adapter is not None:
                stack.enter_context(adapter(module))
            contexts = _contexts.get()
            if contexts is not None and isinstance(getattr(module, "_gradient_checkpointing_func", None), partial):
                stack.enter_context(_random_state_not_read(module, contexts))
        yield


def _masks_left_out() -> AbstractContextManager[None]:
    """While a graph is captured, transformers does not look at the values of a padding mask, and makes the whole mask.

    Before version 5.18 it does so where there is no padding mask, too, and in a form for which PyTorch has no fast
    attention. Inside, nothing counts as traced where there is nothing to read.
    """
    is_tracing = masking_utils.is_tracing
    return _replaced(masking_utils, "is_tracing", lambda tensor=None: tensor is not None and is_tracing(tensor))


# The contexts of the two forwards of a block under gradient checkpointing.
Contexts = Callable[[], tuple[AbstractContextManager[None], AbstractContextManager[None]]]
_contexts: ContextVar[Contexts | None] = ContextVar("contexts", default=None)


@contextmanager
def recomputed_in(contexts: Contexts) -> Iterator[None]:
    """Gradient checkpointing in a model that is `capturable` inside leaves the generator to these contexts.

    Args:
        contexts: returns the contexts of the two forwards of a block. It is called before each first one.
    """
    token = _contexts.set(contexts)
    try:
        yield
    finally:
        _contexts.reset(token)


def _random_state_not_read(module: Any, contexts: Contexts) -> AbstractContextManager[None]:
    function = module._gradient_checkpointing_func
    changed = partial(function, use_reentrant=False, preserve_rng_state=False, context_fn=contexts)
    return _replaced(module, "_gradient_checkpointing_func", changed)


# Relative positions of an encoder, by lengths and device. They stay in memory, where graphs read them.
_positions: WeakKeyDictionary[nn.Module, dict[Any, Tensor]] = WeakKeyDictionary()


@contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """`owner` has this attribute inside; afterwards it is as before."""
    missing = object()
    before = vars(owner).get(name, missing)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is missing:
            delattr(owner, name)
        else:
            setattr(owner, name, before)


def _deberta_positions_kept(encoder: Any) -> AbstractContextManager[None]:
    """The relative positions of DeBERTa-v2 are computed once for each length, before a step is captured."""
    compute, kept = encoder.get_rel_pos, _positions.setdefault(encoder, {})

    def get_rel_pos(hidden_states: Tensor, query_states: Any = None, relative_pos: Any = None) -> Any:
        if query_states is not None or relative_pos is not None:
            return compute(hidden_states, query_states, relative_pos)
        key = hidden_states.size(-2), hidden_states.device
        if key not in kept:
            kept[key] = compute(hidden_states)
        return kept[key]

    return _replaced(encoder, "get_rel_pos", get_rel_pos)


def _mpnet_positions_kept(encoder: Any) -> AbstractContextManager[None]:
    """The same for MPNet: some versions of transformers compute its relative positions on the CPU."""
    compute, kept = encoder.relative_position_bucket, _positions.setdefault(encoder, {})
    device = next(encoder.parameters()).device

    def relative_position_bucket(relative_position: Tensor, **options: Any) -> Tensor:
        key = (*relative_position.shape, device, *sorted(options.items()))
        if key not in kept:
            kept[key] = compute(relative_position, **options).to(device)
        return kept[key]

    return _replaced(encoder, "relative_position_bucket", relative_position_bucket)


class _CrossEntropy(nn.CrossEntropyLoss):
    """In float32, in which DeBERTa computes it."""

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().forward(logits.float(), labels)


@contextmanager
def _deberta_labels_all_counted(head: Any) -> Iterator[None]:
    """With a problem type, DeBERTa's loss ignores labels of -100 instead of looking for those that are not negative."""
    if head.config.problem_type is not None or head.num_labels == 1:
        yield
        return
    with (
        _replaced(head.config, "problem_type", "single_label_classification"),
        _replaced(sys.modules[type(head).__module__], "CrossEntropyLoss", _CrossEntropy),
    ):
        yield


_DEBERTA = "transformers.models.deberta_v2.modeling_deberta_v2"
_CAPTURABLE: dict[tuple[str, str], Callable[[Any], AbstractContextManager[None]]] = {
    (_DEBERTA, "DebertaV2Encoder"): _deberta_positions_kept,
    (_DEBERTA, "DebertaV2ForSequenceClassification"): _deberta_labels_all_counted,
    ("transformers.models.mpnet.modeling_mpnet", "MPNetEncoder"): _mpnet_positions_kept,
}
