"""Cutoff: in a second view of each example, tokens, features or a span of tokens are cut from the embeddings.

    x_cut = x with some rows or columns set to 0            token, feature or span
    L = ½ (CE + CE_cut) + ½ λ · D(P, P_cut)                 half of the paper's CE + CE_cut + λ · D

No token attends to one that is cut, as in the public code. D is its divergence, ½ (KL(M‖P) + KL(M‖P_cut)) with the mean
M, or the textbook's Jensen–Shannon divergence, which has both KLs the other way round.

Shen et al., "A Simple but Tough-to-Beat Data Augmentation Approach for Natural Language Understanding and Generation",
arXiv 2009.13818.
Differs from the paper in: both losses and the divergence count half, so that the loss has the size of a plain one;
there is one augmented view; x is the input of the first block, after the sum with the positions, its norm and dropout;
a head that reads a mean over the tokens reads those that are cut, too.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import inf
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.capabilities import ComparesViews
from ..core.hyper import hyper
from ..core.schedule import Strength, largest, value_at
from ..core.step import MicroBatch, Step
from ..model.plan import Plan
from ..model.seams import Seams
from ..model.tokens import real_keys
from ._shared.divergence import check_head, pair_of

KINDS = ("token", "feature", "span")


def cut_of(draws: Tensor, real: Tensor, ratio: float | Tensor, kind: str) -> Tensor:
    """Return the cut positions, bool: max(1, ⌊ratio · n⌋) of each example's n real tokens, single ones or a run.

    [B, L]

    Args:
        draws: in [0, 1): one for each token, [B, L]; for a run the first of them alone counts.
        real: the tokens that are not padding, bool [B, L]; for "feature", ones for all features.
        ratio: the share.
        kind: "span" cuts a run; the others cut those with the smallest draws.
    """
    n = real.sum(-1, keepdim=True)
    # The small number makes 0.1 of 10 tokens 1, also where the product is rounded down.
    count = (n.double() * ratio + 1e-9).floor().long().clamp(min=1).minimum(n)
    if kind == "span":
        index = real.cumsum(-1) - 1  # of each token among the real ones
        start = (draws[:, :1] * (n - count + 1)).long().minimum(n - count)
        return real & (index >= start) & (index < start + count)
    rank = draws.masked_fill(~real, inf).argsort(dim=-1, stable=True).argsort(dim=-1)
    return real & (rank < count)


@dataclass
class Cutoff(ComparesViews):
    """A second view with cut embeddings, and a penalty that pulls the predictions of the views together.

    Args:
        ratio: share of the tokens or features that is cut; a number from 0 to 1, or a schedule
        kind: "token" (single tokens), "feature" (the same features of all tokens) or "span" (a run of tokens)
        weight: λ of the divergence; a number from 0, or a schedule
        divergence: "reference", that of the public code, or "js", the textbook's Jensen–Shannon divergence
    """

    name: ClassVar[str] = "cutoff"

    ratio: Strength = hyper(0.1, high=1, search="0.05..0.4")
    kind: str = hyper("span", choices=KINDS, search="token,feature,span")
    weight: Strength = hyper(1.0, search="log:0.1..10")
    divergence: str = hyper("reference", choices=("reference", "js"))

    @property
    def views(self) -> int:
        return 2 if largest(self.ratio) > 0 else 1

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        check_head("Cutoff", model)

    def capture_key(self, step: Step) -> Hashable:
        return value_at(self.ratio, step.progress) > 0, value_at(self.weight, step.progress) > 0

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if value_at(self.ratio, step.progress) == 0:
            return Plan()
        # In float64, in which the number of tokens is rounded down.
        ratio = step.strength(f"{self.name} ratio", self.ratio, torch.float64)

        def gone(real: Tensor) -> Tensor:
            """Return the cuts of both views."""
            shape = (real.shape[0], 1, 1, real.shape[1])
            draws = batch.uniform(-1, shape, real.device, self.name).reshape(real.shape)
            cut = cut_of(draws, real, ratio, self.kind)
            return torch.cat([torch.zeros_like(cut), cut])

        def cut_features(x: Tensor) -> Tensor:
            return x.masked_fill(gone(torch.ones_like(x.chunk(2)[1][:, 0], dtype=torch.bool)).unsqueeze(1), 0)

        if self.kind == "feature":
            return Plan(edits={-1: (cut_features,)})
        sites = step.seams.sites
        cut = gone(real_keys(step.model, sites[0], batch.examples))
        readers = [site.index for site in sites if site.kind == "cross" or site.stack == sites[0].stack]
        keep = dict.fromkeys(readers, ~cut[:, None, None])
        return Plan(keep=keep, edits={-1: (lambda x: x.masked_fill(cut.unsqueeze(-1), 0),)})

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        step = batch.step
        if self.views == 1 or value_at(self.weight, step.progress) == 0:
            return None
        weight = step.strength(f"{self.name} weight", self.weight)
        return 0.5 * weight * pair_of(outputs, batch).divergence("js" if self.divergence == "js" else "from_middle")
