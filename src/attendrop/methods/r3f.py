"""R3F: a penalty pulls together the predictions on the embeddings and on the embeddings with a little noise.

    L = CE(x) + λ · (KL(P‖P̃) + KL(P̃‖P))        P̃ = P(x + z),  z ~ U(−ε, ε) or N(0, ε²)

Aghajanyan et al., "Better Fine-Tuning by Reducing Representational Collapse", arXiv 2008.03156.
Differs from the paper in: the noise is added to the input of the first block, after the sum with the positions, its
norm and dropout. In regression the divergence is the squared difference. The gradient is that of L; the authors' code
for classification detaches x before it adds z (`detach=True`), their code for generation does not.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.capabilities import ComparesViews, RequiresModelLoss, views_of
from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Strength, largest
from ..core.step import MicroBatch, Step
from ..model.plan import Plan
from ..model.seams import Seams
from ._shared.divergence import check_head, pair_of
from ._shared.noise import NOISES, noise_of

LOSSES = ("clean", "both")


@dataclass
class R3F(ComparesViews, RequiresModelLoss):
    """Noise on the embeddings of the second view, and a penalty on the divergence between the views.

    Args:
        epsilon: size of the noise, a number from 0: half the width of the uniform, or the standard deviation of the
            normal distribution
        weight: λ; a number from 0, or a schedule
        noise: "uniform" or "normal"
        loss: "clean": the cross-entropy of the first view alone, as in the paper; "both": the mean of the two
        detach: True: no gradient flows from the noisy view into the embeddings, as in the authors' code for
            classification; False: the gradient of the loss as it is written
    """

    name: ClassVar[str] = "r3f"

    epsilon: float = hyper(1e-5, search="log:1e-6..1e-3")
    weight: Strength = hyper(1.0, search="log:0.1..5")
    noise: str = hyper("uniform", choices=NOISES)
    loss: str = hyper("clean", choices=LOSSES)
    detach: bool = hyper(False)

    @property
    def views(self) -> int:
        return 2 if largest(self.weight) > 0 else 1

    @property
    def requires_model_loss(self) -> tuple[str, str] | None:
        needs = "R3F.loss is 'clean', for which the loss must be the model's own"
        return (needs, "set R3F(loss='both')") if self.loss == "clean" and self.views > 1 else None

    def refuses(self, other: Regularizer) -> str | None:
        if self.loss == "clean" and self.views > 1 and views_of(other) > 1:
            return (
                f"of which R3F trains on the first view alone and {type(other).__name__} on both; set R3F(loss='both')."
            )
        return None

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        check_head("R3F", model)

    def capture_key(self, step: Step) -> Hashable:
        return self.views

    def plan(self, batch: MicroBatch) -> Plan:
        if self.views == 1:
            return Plan()

        def add_noise(x: Tensor) -> Tensor:
            clean, noisy = x.chunk(2)
            noisy = noisy.detach() if self.detach else noisy
            shape = (noisy.shape[0], 1, *noisy.shape[1:])
            draws = batch.uniform(-1, shape, x.device, self.name).reshape(noisy.shape)
            return torch.cat([clean, noisy + noise_of(draws, self.epsilon, self.noise).to(x.dtype)])

        return Plan(edits={-1: (add_noise,)})

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        if self.views == 1:
            return None
        pair = pair_of(outputs, batch)
        weight = batch.step.strength(f"{self.name} weight", self.weight)
        total = weight * pair.both_ways()
        if self.loss == "both":
            return total
        return total + pair.from_mean_to_first()
