"""LP-FT: linear probing, then fine-tuning. The head is trained alone first, then all weights.

    t ≤ n    v_t = v_{t−1} − step(∂L/∂v),    w_t = w_0
    t > n    all weights are trained

v are the weights of the head, w those of the pretrained part. A fresh head would send large and random gradients into
the pretrained part. In the first n steps the pretrained part has no gradient, no weight decay and no state in the
optimizer, whose moments and counters of these weights begin with step n + 1. The backward ends after the last block in
these steps, which makes them about three times as fast.

Kumar, Raghunathan, Jones, Ma and Liang, "Fine-Tuning can Distort Pretrained Features and Underperform
Out-of-Distribution", arXiv 2202.10054.
Differs from the paper in: both parts share one schedule of the learning rate and one optimizer, and the head is trained
for a number of steps, with the model's dropout, and not until it is best.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import floor
from typing import ClassVar

from torch import Tensor, nn

from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.step import MicroBatch, Step
from ..model.plan import Plan
from ..model.seams import Seams
from ..model.sites import pretrained_part, unwrapped
from ._shared.weights import reason_against


@dataclass
class LPFT(Regularizer):
    """The head alone first, then all weights.

    Args:
        share: the share of training in which the head is trained alone; a number from 0 to below 1; 0 is plain training
        steps: the number of steps instead, a whole number from 0; -1: `share` decides
    """

    name: ClassVar[str] = "lp_ft"

    share: float = hyper(0.2, below=1, search="0.05..0.5")
    steps: int = hyper(-1, low=-1)

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        if not (self.share if self.steps < 0 else self.steps):
            return
        inside = {id(parameter) for parameter in pretrained_part(model).parameters()}
        trained = [id(parameter) in inside for parameter in model.parameters() if parameter.requires_grad]
        if all(trained):
            raise ValueError(f"{seams.name} has no head whose weights are trained, which LPFT would train first.")
        if not any(trained):
            raise ValueError(
                f"{seams.name} has no weight outside of its head that is trained, so LPFT has nothing to train after "
                "the head."
            )

    def refuses(self, other: Regularizer) -> str | None:
        return reason_against(self, other)

    def _probing_steps(self, step: Step) -> int:
        total = step.progress.total_steps
        if self.steps < 0:
            return floor(round(self.share * total, 9))
        if self.steps >= total:
            raise ValueError(
                f"LPFT.steps is {self.steps}; it must be below {total}, the steps of the run, so that steps are left "
                "in which all weights are trained."
            )
        return self.steps

    def on_step_begin(self, step: Step) -> None:
        self._probing_steps(step)  # raises an error before the first step

    def _trains_head(self, step: Step) -> bool:
        """Return whether the head is trained alone in this step."""
        return step.progress.step < self._probing_steps(step)

    def capture_key(self, step: Step) -> Hashable:
        return self._trains_head(step)

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if not self._trains_head(step) or not may_end_backward(step):
            return Plan()
        return Plan(edits={len(step.seams.blocks) - 1: (Tensor.detach,)})

    def on_gradients(self, step: Step) -> None:
        """Drop the gradients of the pretrained part: an optimizer passes over weights that have none."""
        if self._trains_head(step):
            for parameter in pretrained_part(step.model).parameters():
                parameter.grad = None


def may_end_backward(step: Step) -> bool:
    """Return whether the backward may end after the last block, so that all weights before it get no gradient.

    Not where another method reads gradients there, nor with several processes, of which each waits for the gradients
    of all weights. And not where weights outside of the transformers model are trained: those of PEFT's prompts come
    before the blocks.
    """
    inside = {id(parameter) for parameter in unwrapped(step.model).parameters()}
    is_whole = all(id(p) in inside for p in step.model.parameters() if p.requires_grad)
    return is_whole and not step.reads_gradients and step.loop.world == 1
