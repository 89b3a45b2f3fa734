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
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.regularizer import Regularizer
from ..core.step import Step
from ..model.seams import Seams
from ..utils.checks import check_number
from ._shared.averages import refuse_frozen, trained_parameters
from ._shared.weights import end_mixing, in_graph, pretrained_part, reason_against, refuse_sharded


@dataclass
class L2SP(Regularizer):
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

    def reset(self) -> None:
        self._pretrained: dict[str, Tensor] = {}
        self._is_on_device = False

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        refuse_sharded("L2SP", model)
        refuse_frozen("L2SP", model, seams)

    def refuses(self, other: Regularizer) -> str | None:
        return reason_against(self, other)

    @torch.no_grad()
    def on_gradients(self, step: Step) -> None:
        if self.alpha == self.beta == 0:
            return
        end_mixing(step)
        targets = self._targets(step.model)
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

    def _targets(self, model: nn.Module) -> dict[str, Tensor]:
        """w⁰, on the device of the model. Where training starts, the present weights."""
        parameters = trained_parameters(model)
        if not self._pretrained:
            refuse_sharded("L2SP", model)
            inside = {id(parameter) for parameter in pretrained_part(model).parameters()}
            self._pretrained = {name: _origin(name, p) for name, p in parameters.items() if id(p) in inside}
        elif not self._is_on_device:
            self._pretrained = {name: x.to(parameters[name].device) for name, x in self._pretrained.items()}
        self._is_on_device = True
        return self._pretrained

    def on_close(self) -> None:
        self.reset()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return dict(self._pretrained), {}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self._pretrained, self._is_on_device = dict(tensors), False


def _origin(name: str, parameter: nn.Parameter) -> Tensor:
    """The value of a weight at which the model is the pretrained one: zero for the factors of a LoRA adapter."""
    return torch.zeros_like(parameter) if ".lora_" in name else parameter.detach().clone()
