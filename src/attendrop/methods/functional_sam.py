"""Functional SAM: as SAM, but the step uphill changes only how the logits depend on the weights, not the loss's slope.

    W ← W − η J(W + e)ᵀ s,    e = ρ g / ‖g‖,    g = J(W)ᵀ s = ∂L/∂W at W
    J = ∂z/∂W, the Jacobian of the logits z;    s = ∂L/∂z at W

SAM would take s at W + e too, and may then flatten the loss by the size of the logits alone.

Singh et al., "Avoiding spurious sharpness minimization broadens applicability of SAM", arXiv 2502.02407.
Differs from the paper in: e is computed for each micro-batch of each process; g and s are those of the model's own
loss, without the changes and penalties of other methods. The paper's preconditioned step is left out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.capabilities import RequiresModelLoss
from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Strength, largest, value_at
from ..core.step import MicroBatch
from ..model.plan import Plan
from ..model.probe import Probe
from ..model.seams import Seams
from ._shared.ascent import AscendsWeights
from ._shared.by_parts import at_least_float32
from ._shared.divergence import check_head
from ._shared.predictions import predictions_of


@dataclass
class FunctionalSAM(AscendsWeights, RequiresModelLoss):
    """Sharpness-aware minimization of the function, not of the loss's slope.

    Args:
        rho: length of the step away from the weights; a number from 0, or a schedule
    """

    name: ClassVar[str] = "functional_sam"

    rho: Strength = hyper(0.05, search="log:0.01..0.5")

    def reset(self) -> None:
        super().reset()
        self._slope: Tensor | None = None  # s of the micro-batch, for one view

    @property
    def requires_model_loss(self) -> tuple[str, str] | None:
        needs = "FunctionalSAM.rho replaces the slope of the model's own loss"
        return (needs, "use SAM, or choose one of them") if largest(self.rho) > 0 else None

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        super().check(model, seams, epochs)
        check_head("FunctionalSAM", model)

    def refuses(self, other: Regularizer) -> str | None:
        if isinstance(other, RequiresModelLoss) and other.requires_model_loss is not None and largest(self.rho) > 0:
            return "of which both replace a part of the model's own loss; choose one of them."
        return super().refuses(other)

    def plan(self, batch: MicroBatch) -> Plan:
        super().plan(batch)
        slope = self._slope
        if slope is None or value_at(self.rho, batch.step.progress) == 0:
            return Plan()

        def keep(x: Tensor) -> Tensor:
            batch.step.seams.kept[self.name] = slope
            return x

        return Plan(edits={-1: (keep,)})

    def ascent_loss(self, batch: MicroBatch, probe: Probe) -> Tensor:
        outputs, _ = probe.forward(Plan(), with_labels=True)
        own = predictions_of(outputs, replace(batch, inputs=probe.batch))
        logits = at_least_float32(own.logits).detach().requires_grad_()
        (self._slope,) = torch.autograd.grad(replace(own, logits=logits).loss(), [logits])
        loss: Tensor = outputs["loss"]
        return loss

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        step = batch.step
        slope = step.seams.kept.get(self.name)
        if value_at(self.rho, step.progress) == 0 or slope is None:
            return None
        own = predictions_of(outputs, batch)
        # Each view counts the same in the mean that is the loss.
        slope = slope.repeat(step.views, *[1] * (slope.dim() - 1)) / step.views
        linear, loss = (at_least_float32(own.logits) * slope).sum(), own.loss()
        # The value is 0, so that the loss is that at W + e; its gradient becomes that of ⟨z, s⟩.
        return (linear - linear.detach()) - (loss - loss.detach())
