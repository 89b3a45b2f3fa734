"""L2-SP: a penalty pulls the weights towards the pretrained ones instead of zero.

    loss + α/2 ‖w − w⁰‖² + β/2 ‖v‖²

w are the weights of the pretrained part, w⁰ their values when training starts, v the weights of the new head. The
gradient of the penalty, α (w − w⁰) and β v, is added to that of the loss once for each optimizer step, before clipping.

Li, Grandvalet and Davoine, "Explicit Inductive Bias for Transfer Learning with Convolutional Networks", arXiv
1802.01483.
Differs from the paper in: biases and norms are penalised as all other weights are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.step import Step
from ..utils.checks import check_number
from ._shared.averages import trained_parameters
from ._shared.origin import RemembersOrigin
from ._shared.weights import in_graph


@dataclass
class L2SP(RemembersOrigin):
    """A penalty on the distance from the pretrained weights.

    Args:
        alpha: α, the strength of the pull to the pretrained weights; a number from 0
        beta: β, the strength of the pull of the head to zero; a number from 0
    """

    name: ClassVar[str] = "l2_sp"

    alpha: float = 0.1
    beta: float = 0.01

    def __post_init__(self) -> None:
        check_number("L2SP.alpha", self.alpha)
        check_number("L2SP.beta", self.beta)
        self.reset()

    def origin(self, name: str, parameter: nn.Parameter) -> Tensor:
        """Zero for the factors of a LoRA adapter."""
        return torch.zeros_like(parameter) if ".lora_" in name else parameter.detach().clone()

    @torch.no_grad()
    def on_gradients(self, step: Step) -> None:
        if self.alpha == self.beta == 0:
            return
        targets = self.remember(step)
        # A weight without a gradient has not been used in this step, and the optimizer leaves it as it is.
        used = [(p, p.grad, targets.get(name)) for name, p in trained_parameters(step.model).items()]
        weights = [(p, gradient, target) for p, gradient, target in used if gradient is not None]

        def work(step: Step) -> None:
            scale = step.number((self.name, "scale"), lambda step: step.loop.gradient_scale)
            for parameter, gradient, target in weights:
                pull = self.beta * parameter if target is None else self.alpha * (parameter - target)
                gradient.add_((pull * scale).to(gradient.dtype))

        tensors = [tensor for weight in weights for tensor in weight if tensor is not None]
        in_graph(step, (self.name, "pull"), tensors, work)
        if step.measure:
            distances = [(p - target).float().square().sum() for p, _, target in weights if target is not None]
            if distances:
                step.metrics["l2_sp/distance"] = torch.stack(distances).sum().sqrt()
