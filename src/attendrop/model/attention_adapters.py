"""Adapters for attention classes that do not call transformers' attention interface: MPNet and DeBERTa-v2.

An adapter is a class that comes before the class of the attention module. Under an empty plan the module's own code
runs, so that nothing changes; under a plan the same scores go through our attention function.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface

from .attention import projected
from .dry_run import is_traced


def _follows_plan(module: Any) -> bool:
    """Return whether our attention function must run: under a plan, and in the dry run that finds attention calls."""
    counter = getattr(module, "_attendrop", None)
    return is_traced(module) if counter is None else bool(counter.seams.plan)


def _with_factors(module: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return query, key and value with the plan's factors, for scores that the attention function does not compute."""
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
