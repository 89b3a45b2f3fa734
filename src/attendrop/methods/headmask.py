"""HeadMask: in each step the same few heads of the whole model are masked for all examples.

    O_h ← 0 for n heads, no rescaling      drawn at random, or the n of highest importance
    I_h = E_x |Σ (∂L(x)/∂O_h) · O_h|       on the batch itself, by a pass and a backward before the one that trains

Sun et al., "Alleviating the Inequality of Attention Heads for Neural Machine Translation", arXiv 2009.09672.
Differs from the paper in: L(x) is the mean over the labels of x; the importance is that of the micro-batch, where a
step has several; at least one head of the model stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.regularizer import Regularizer
from ..core.schedule import Strength, as_strength, value_at
from ..core.step import MicroBatch, Step
from ..model.objective import example_scores, head_of
from ..model.plan import Plan
from ..model.seams import Seams
from ..utils.checks import check_choice, check_whole
from ..utils.distributed import sum_over_processes

CHOICES = ("random", "importance")


def importance(gradient: Tensor, output: Tensor, examples: int) -> Tensor:
    """Σ_x |Σ (∂L(x)/∂O_h) · O_h| for both [B, Q, H, d] of so many examples: [H]"""
    rows = (gradient.float() * output.float()).sum((1, 3))
    return rows.view(examples, -1, rows.shape[-1]).sum(1).abs().sum(0)


@dataclass
class HeadMask(Regularizer):
    """A few heads of the whole model are masked.

    Args:
        n: how many of the model's heads; a whole number of at least 0 and below all of them
        share: instead of n, where that is None: the share of them, a number from 0 to 1 or a schedule
        by: "random", or "importance": those that the loss leans on most
    """

    name: ClassVar[str] = "headmask"

    n: int | None = None
    share: Strength = 0.125
    by: str = "random"

    def __post_init__(self) -> None:
        if self.n is not None:
            check_whole("HeadMask.n", self.n, 0, ", or None")
        self.share = as_strength("HeadMask", "share", self.share, 0, 1)
        check_choice("HeadMask.by", self.by, CHOICES)

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        heads = sum(site.heads for site in seams.sites)
        if self.n is not None and self.n >= heads:
            raise ValueError(f"HeadMask.n is {self.n}; {seams.name} has {heads} heads, and it must be below that.")
        if self.by == "importance":
            head_of(model, {})

    def count(self, step: Step) -> int:
        heads = sum(site.heads for site in step.seams.sites)
        wanted = round(value_at(self.share, step.progress) * heads) if self.n is None else self.n
        return min(wanted, heads - 1)

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        count = self.count(step)
        if count == 0:
            return Plan()
        heads = [site.heads for site in step.seams.sites]
        if self.by == "random":
            # structure: every process, and every micro-batch of the step, must draw the same
            order = torch.randperm(sum(heads), generator=step.shared_generator(self.name))
        else:
            order = self._importance(batch).argsort(descending=True, stable=True)
        stays = torch.ones(sum(heads), device=step.device)
        stays[order[:count]] = 0
        return Plan(scale={site: part.view(1, 1, -1, 1) for site, part in enumerate(stays.split(heads))})

    def _importance(self, batch: MicroBatch) -> Tensor:
        """I_h of all heads, times the number of examples: the same on every process."""
        step, probe = batch.step, batch.probe()
        sites = list(range(len(step.seams.sites)))
        with probe.untracked():
            gradients, records = probe.gradients(
                Plan(), lambda outputs: -example_scores(step.model, probe.batch, outputs)[0].sum(), sites
            )
        scores = torch.cat([importance(gradients[i], records[i].output.detach(), batch.size) for i in sites])
        return sum_over_processes(scores, step.loop.world)
