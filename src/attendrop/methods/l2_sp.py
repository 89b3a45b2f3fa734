"""L2-SP: a penalty pulls the weights towards the pretrained ones instead of zero.

    loss + α/2 ‖w − w⁰‖² + β/2 ‖v‖²

w are the weights of the pretrained part, w⁰ their values when training starts, v the weights of the new head. The
gradient of the penalty, α (w − w⁰) and β v, is added to that of the loss once for each optimizer step, before clipping.

Li, Grandvalet and Davoine, "Explicit Inductive Bias for Transfer Learning with Convolutional Networks", arXiv
1802.01483.
Differs from the paper in: biases and norms are penalised as all other weights are.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.hyper import hyper
from ..core.step import Loop, Step
from ..kernels.foreach import pull
from ._shared.origin import RemembersOrigin
from ._shared.weights import in_graph

logger = logging.getLogger(__name__)


@dataclass
class L2SP(RemembersOrigin):
    """A penalty on the distance from the pretrained weights.

    Args:
        alpha: α, the strength of the pull to the pretrained weights; a number from 0
        beta: β, the strength of the pull of the head to zero; a number from 0
    """

    name: ClassVar[str] = "l2_sp"

    alpha: float = hyper(0.1, search="log:1e-4..1")
    beta: float = hyper(0.01, search="log:1e-4..1")

    def origin(self, name: str, parameter: nn.Parameter) -> Tensor:
        """Zero for the factors of a LoRA adapter."""
        return torch.zeros_like(parameter) if ".lora_" in name else parameter.detach().clone()

    def check_loop(self, model: nn.Module, loop: Loop) -> None:
        decay = getattr(loop.arguments, "weight_decay", 0)
        if decay and (self.alpha or self.beta):
            logger.warning(
                "weight_decay is %g, which pulls the weights to zero while L2-SP pulls them to the pretrained ones; "
                "the authors' is 0.",
                decay,
            )

    @torch.no_grad()
    def on_gradients(self, step: Step) -> None:
        if self.alpha == self.beta == 0:
            return
        targets = self.remember(step)
        # A weight without a gradient has not been used in this step, and the optimizer leaves it as it is.
        used = [(name, p, p.grad) for name, p in self.trained(step.model).items() if p.grad is not None]
        pretrained = [(gradient, p, targets[name]) for name, p, gradient in used if name in targets]
        head = [(gradient, p) for name, p, gradient in used if name not in targets]

        def work(step: Step) -> None:
            scale = step.number((self.name, "scale"), lambda step: step.loop.gradient_scale)
            for rows, strength in ((pretrained, self.alpha), (head, self.beta)):
                if rows:
                    gradients, weights, *targets = zip(*rows, strict=True)
                    pull(gradients, weights, targets[0] if targets else None, strength * scale)

        in_graph(step, (self.name, "pull"), [x for row in (*pretrained, *head) for x in row], work)
        if step.measure:
            distances = [(p - target).float().square().sum() for _, p, target in pretrained]
            if distances:
                step.metrics["l2_sp/distance"] = torch.stack(distances).sum().sqrt()
