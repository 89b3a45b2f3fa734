"""The text as one vector: what a method reads of the last block's output.

It is what the head of the model reads, where that is known: the pooling of a model of `model/pooled.py`, the mean in a
model with `classifier_pooling="mean"` or with an encoder and a decoder, the last token in a causal model, and otherwise
the first token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from ...core.step import MicroBatch, Step
from ...model.plan import Plan
from ...model.pooled import PooledModel
from ...model.pooled_config import pooling_of
from ...model.sites import Site, unwrapped
from ...model.tokens import real_keys
from .causality import is_causal


def pooled(hidden: Tensor, real: Tensor, how: str) -> Tensor:
    """Return the state of the "first" or "last" real token, or the "mean" over all: [B, d] from [B, L, d]."""
    if how == "mean":
        weights = real / real.sum(-1, keepdim=True).clamp(min=1)
        return (hidden * weights.unsqueeze(-1)).sum(1)
    index = real.int().argmax(-1) if how == "first" else real.shape[1] - 1 - real.flip(-1).int().argmax(-1)
    return hidden[torch.arange(len(hidden), device=hidden.device), index]


def pooling_for(model: nn.Module, site: Site) -> str:
    """Return how the text is pooled: "first", "last" or "mean".

    Args:
        model: the model.
        site: its last self attention.
    """
    config = unwrapped(model).config
    if getattr(config, "is_encoder_decoder", False) or getattr(config, "classifier_pooling", "") == "mean":
        return "mean"
    return "last" if is_causal(model, site) else "first"


def token_of_head(model: nn.Module, sites: Sequence[Site], real: Tensor) -> Tensor:
    """Return the one token of each text that the head reads; none where it reads a mean: bool [B, L].

    Args:
        model: the model.
        sites: its attention sites.
        real: the tokens that are not padding, bool [B, L].
    """
    inner, last = unwrapped(model), [site for site in sites if site.kind == "self"][-1]
    how = "first" if pooling_of(inner.config) == "cls" else pooling_for(model, last)
    if how == "mean" or pooling_of(inner.config) == "mean":
        return torch.zeros_like(real)
    count = real.cumsum(-1)
    return real & (count == (1 if how == "first" else count[:, -1:]))


def keep_last_block(step: Step, name: str) -> Plan:
    """Return a plan that keeps the output of the last block in `step.seams.kept` under this name."""

    def keep(x: Tensor) -> Tensor:
        step.seams.kept.setdefault(name, x)  # gradient checkpointing runs this again in the backward
        return x

    return Plan(edits={len(step.seams.blocks) - 1: (keep,)})


def features_of(batch: MicroBatch, name: str) -> Tensor | None:
    """Return the texts of all views as vectors, [views · B, d], from what `keep_last_block` has kept under this name.

    None where the model has skipped its last block by itself.
    """
    step = batch.step
    hidden = step.seams.kept.get(name)
    if hidden is None:
        return None
    site = [site for site in step.seams.sites if site.kind == "self"][-1]
    real = real_keys(step.model, site, batch.inputs)
    inner = unwrapped(step.model)
    if isinstance(inner, PooledModel):
        return inner.features(hidden, real)
    return pooled(hidden, real, pooling_for(step.model, site))
