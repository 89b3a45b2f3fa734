"""HeadMask: in each step, a few heads of the whole model are masked, the same ones for all examples.

    O_h ← 0 for n heads, no rescaling      drawn at random, or the n of highest importance
    I_h = E_x |Σ (∂L(x)/∂O_h) · O_h|       on the batch itself, in a probe before the pass that trains

Sun et al., "Alleviating the Inequality of Attention Heads for Neural Machine Translation", arXiv 2009.09672.
Differs from the paper in: L(x) is the mean over the labels of x; importance is measured on the micro-batch, where a
step has several; at least one head of the model is not masked.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.capabilities import ProbesModel
from ..core.hyper import hyper
from ..core.schedule import Strength, value_at
from ..core.step import Loop, MicroBatch, Step
from ..model.objective import example_scores, head_of
from ..model.plan import Plan
from ..model.seams import Seams
from ..utils.distributed import sum_over_processes

CHOICES = ("random", "importance")


def head_importance(gradient: Tensor, output: Tensor, examples: int) -> Tensor:
    """Σ_x |Σ (∂L(x)/∂O_h) · O_h|, [H], from gradient and output, both [B, Q, H, d], with B rows for all examples."""
    rows = (gradient.float() * output.float()).sum((1, 3))
    return rows.view(examples, -1, rows.shape[-1]).sum(1).abs().sum(0)


@dataclass
class HeadMask(ProbesModel):
    """Masks of whole heads.

    Args:
        n: number of heads that are masked, a whole number from 0 to below the number of the model's heads, or None
        share: where n is None, the share of the heads that are masked; a number from 0 to 1, or a schedule
        by: "random", or "importance": the heads that the loss depends on most
    """

    name: ClassVar[str] = "headmask"

    n: int | None = hyper(None, also=[None])
    share: Strength = hyper(0.125, high=1, search="0.05..0.5")
    by: str = hyper("random", choices=CHOICES, search="random,importance")

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        heads = sum(site.heads for site in seams.sites)
        if self.n is not None and self.n >= heads:
            raise ValueError(f"HeadMask.n is {self.n}; {seams.name} has {heads} heads, and it must be below that.")

    def check_loop(self, model: nn.Module, loop: Loop) -> None:
        if self.by == "importance" and not loop.calls_model:
            head_of(model, {})

    def count(self, step: Step) -> int:
        """Return the number of heads that are masked in this step."""
        heads = sum(site.heads for site in step.seams.sites)
        count = round(value_at(self.share, step.progress) * heads) if self.n is None else self.n
        return min(count, heads - 1)

    def capture_key(self, step: Step) -> Hashable:
        return self.count(step) > 0

    def probes(self, step: Step) -> bool:
        return self.by == "importance" and self.count(step) > 0

    def on_batch(self, batch: MicroBatch) -> None:
        if batch.loop_loss is not None and self.probes(batch.step):
            batch.probe().gradients_of_loop_loss(range(len(batch.step.seams.sites)))

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if self.count(step) == 0:
            return Plan()
        heads = [site.heads for site in step.seams.sites]
        if self.by == "random":
            factors = step.values(f"{self.name} factors", self._random_factors)
        else:
            order = self._importance(batch).argsort(descending=True, stable=True)
            factors = (order.argsort() >= step.number(f"{self.name} count", self.count)).float()
        return Plan(scale={site: factor.view(1, 1, -1, 1) for site, factor in enumerate(factors.split(heads))})

    def _random_factors(self, step: Step) -> Tensor:
        """0 for the heads that are masked, else 1, the same for every process and micro-batch of the step."""
        heads = sum(site.heads for site in step.seams.sites)
        order = torch.randperm(heads, generator=step.shared_generator(self.name))
        factors = torch.ones(heads)
        factors[order[: self.count(step)]] = 0
        return factors

    def _importance(self, batch: MicroBatch) -> Tensor:
        """I_h of all heads, times the number of examples. It is the same on every process."""
        step, probe = batch.step, batch.probe()
        sites = list(range(len(step.seams.sites)))
        if probe.loop_loss is not None:
            gradients, records = probe.gradients_of_loop_loss(sites)
        else:
            with probe.untracked():
                gradients, records = probe.gradients(
                    Plan(), lambda outputs: -example_scores(step.model, probe.batch, outputs)[0].sum(), sites
                )
        scores = [torch.zeros(site.heads, device=step.device) for site in step.seams.sites]
        for site, gradient in gradients.items():  # without the layers that the model has skipped by itself
            scores[site] = head_importance(gradient, records[site].output.detach(), batch.size)
        return sum_over_processes(torch.cat(scores), step.loop.world)
