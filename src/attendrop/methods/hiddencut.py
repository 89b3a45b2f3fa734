"""HiddenCut: in a second view of each example, a span of tokens is cut from the feed-forward output of every layer.

    FFN(h)_t = 0 for t in a span of max(1, ⌊ratio · n⌋) tokens, in view 2, before the residual connection
    L = ½ (CE + CE_cut) + ½ λ · JS(P, P_cut)                    half of the paper's CE + CE_cut + λ · JS

The span starts at a token drawn from the most important ones. A token's importance is, by "attention", the attention
that it receives in the layer, summed over heads and queries; by "gradient", the norm of ∂L/∂FFN(h) in a probe; by
"random", all tokens are equal. A span does not go beyond the end of the text.

Chen et al., "HiddenCut: Simple Data Augmentation for Natural Language Understanding with Better Generalization",
arXiv 2106.00149.
Differs from the paper in: both losses and the divergence count half, so that the loss has the size of a plain one; the
model's ordinary dropout stays on after the cut; the attention of padding queries is not counted.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.capabilities import ComparesViews, ProbesModel
from ..core.hyper import hyper
from ..core.schedule import Strength, largest, value_at
from ..core.step import MicroBatch, Step
from ..model.plan import Edit, Plan
from ..model.seams import Record, Seams
from ..model.sites import Layers, Site
from ..model.tokens import real_keys
from ._shared.divergence import check_head, pair_of

BY = ("attention", "gradient", "random")


def span(importance: Tensor, real: Tensor, draws: Tensor, ratio: float | Tensor, pool: float) -> Tensor:
    """Return the tokens that are cut, bool [B, L]: a run of each example's n real tokens.

    Args:
        importance: of each token, [B, L].
        real: the tokens that are not padding, bool [B, L].
        draws: one for each example, [B] in [0, 1).
        ratio: the length of the run is max(1, ⌊ratio · n⌋), or less where the text ends before.
        pool: the run starts at one of the max(1, ⌊pool · n⌋) most important tokens.
    """
    n = real.sum(-1, keepdim=True).clamp(min=1)
    best = importance.masked_fill(~real, -inf).argsort(dim=-1, descending=True, stable=True)
    choices = _share(n, pool)
    chosen = (draws.unsqueeze(-1) * choices).long().minimum(choices - 1)
    index = real.cumsum(-1) - 1  # of each token among the real ones
    start = index.gather(-1, best.gather(-1, chosen))
    return real & (index >= start) & (index < start + _share(n, ratio))


def _share(n: Tensor, share: float | Tensor) -> Tensor:
    # The small number makes 0.1 of 10 tokens 1, also where the product is rounded down.
    return (n.double() * share + 1e-9).floor().long().clamp(min=1)


def attention_received(record: Record, real: Tensor) -> Tensor:
    """Return the attention that each token receives, summed over heads and real queries: [B, L]."""
    return (record.attention() * real[:, None, :, None]).sum((1, 2))


def second_view(record: Record) -> Record:
    """Return the record of an attention call, restricted to the second of two views."""

    def half(x: Tensor) -> Tensor:
        return x if x.shape[0] == 1 else x.chunk(2)[1]

    return replace(
        record,
        query=half(record.query),
        key=half(record.key),
        value=half(record.value),
        output=half(record.output),
        valid=half(record.valid),
        bias=None if record.bias is None else half(record.bias),
    )


@dataclass
class HiddenCut(ProbesModel, ComparesViews):
    """Spans of tokens are cut in the second view, and a penalty pulls the predictions of the views together.

    Args:
        ratio: length of the span as a share of the text; a number from 0 to 1, or a schedule
        by: the measure of a token's importance: "attention", "gradient" or "random"
        pool: share of the tokens, the most important ones, where a span may start; a number from 0 to 1
        weight: λ of the divergence; a number from 0, or a schedule
        layers: the layers: "first", "all", a number, a list or a slice of numbers; in a model with an encoder and a
            decoder also "encoder" or "decoder"
    """

    name: ClassVar[str] = "hiddencut"

    ratio: Strength = hyper(0.1, high=1, search="0.05..0.4")
    by: str = hyper("attention", choices=BY)
    pool: float = hyper(0.4, high=1)
    weight: Strength = hyper(1.0, search="log:0.1..10")
    layers: Layers = "all"

    @property
    def views(self) -> int:
        return 2 if largest(self.ratio) > 0 else 1

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        check_head("HiddenCut", model)
        self._sites(seams)
        seams.needs_feed_forward("HiddenCut")

    def _sites(self, seams: Seams) -> list[Site]:
        """Return the selected self attention. A block is cut once, although it may have cross attention too."""
        selected = [seams.sites[site] for site in seams.select(self.layers, "HiddenCut.layers")]
        sites = [site for site in selected if site.kind == "self"]
        if not sites:
            raise ValueError(f"HiddenCut.layers is {self.layers!r}, which selects no self attention.")
        return sites

    def capture_key(self, step: Step) -> Hashable:
        return value_at(self.ratio, step.progress) > 0, value_at(self.weight, step.progress) > 0

    def probes(self, step: Step) -> bool:
        return self.by == "gradient" and value_at(self.ratio, step.progress) > 0

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if value_at(self.ratio, step.progress) == 0:
            return Plan()
        # In float64, in which the length of a span is rounded down.
        ratio = step.strength(f"{self.name} ratio", self.ratio, torch.float64)
        sites = self._sites(step.seams)
        gradients = {}
        if self.by == "gradient":
            gradients = batch.probe().loss_gradients("ffn", [site.block for site in sites])
        edits: dict[int, tuple[Edit, ...]] = {}
        for site in sites:
            if self.by == "gradient" and site.block not in gradients:
                continue  # the model has skipped this block by itself, and will skip it in the tracked pass too
            real = real_keys(step.model, site, batch.examples)
            draws = batch.uniform(site.index, (real.shape[0], 1, 1, 1), real.device, self.name).flatten()
            importance = gradients[site.block].norm(dim=-1) if gradients else None
            edits[site.block] = (self._cut(step, site.index, real, draws, importance, ratio),)
        record = frozenset(site.index for site in sites) if self.by == "attention" else frozenset()
        return Plan(ffn=edits, record=record)

    def _cut(
        self, step: Step, site: int, real: Tensor, draws: Tensor, importance: Tensor | None, ratio: float | Tensor
    ) -> Edit:
        def edit(x: Tensor) -> Tensor:
            if self.by == "random":
                cut = span(draws.new_zeros(real.shape), real, draws, ratio, 1.0)
            elif importance is not None:
                cut = span(importance, real, draws, ratio, self.pool)
            else:
                # Recorded by this pass; a recomputation under gradient checkpointing finds the same record.
                received = attention_received(second_view(step.seams.records[site]), real)
                cut = span(received, real, draws, ratio, self.pool)
            cut = torch.cat([torch.zeros_like(cut), cut]).unsqueeze(-1)
            return x.masked_fill(cut, 0)

        return edit

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        step = batch.step
        if self.views == 1 or value_at(self.weight, step.progress) == 0:
            return None
        weight = step.strength(f"{self.name} weight", self.weight)
        return 0.5 * weight * pair_of(outputs, batch).divergence("js")
