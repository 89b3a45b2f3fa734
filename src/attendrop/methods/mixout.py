"""mixout: for one step, the weights of some inputs are the pretrained ones.

    W̃ = [(1 − m) ⊙ U + m ⊙ W − p U] / (1 − p),    m ~ Bernoulli(1 − p)    for each input, shared by all outputs

U is the weight with which training starts. E[W̃] = W, and the gradient is the true one, ∂L/∂W = m/(1 − p) ⊙ ∂L/∂W̃.
With p = 0.7, seven of ten inputs of every linear map run through pretrained weights.

Lee, Cho and Kang, "Mixout: Effective Regularization to Finetune Large-scale Pretrained Language Models", arXiv
1909.11299. `pattern="element"` draws m for each weight (mixconnect).
Differs from the paper in: the model's ordinary dropout stays as it is configured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from ..core.schedule import Strength
from ..core.step import Step
from ..model.seams import Seams
from ..utils.checks import check_choice
from ._shared.weights import PATTERNS, Map, MixedWeights, as_drop_probability, linear_maps


@dataclass
class Mixout(MixedWeights):
    """p is the probability that a weight is the pretrained one for the step.

    Args:
        p: a number from 0 to below 1, or a schedule
        pattern: "column": one draw for each input of a linear map; "element": one for each weight
    """

    name: ClassVar[str] = "mixout"

    p: Strength = 0.7
    pattern: str = "column"

    def __post_init__(self) -> None:
        self.p = as_drop_probability("Mixout", self.p)
        check_choice("Mixout.pattern", self.pattern, PATTERNS)
        self.reset()

    def reset(self) -> None:
        super().reset()
        self._pretrained: dict[str, Tensor] = {}
        self._first: Step | None = None

    def maps(self, model: nn.Module) -> list[Map]:
        # W + BA is pretrained where BA is zero, and (BA) ⊙ m = B(A ⊙ m) for an m over inputs: to mix A with zero is
        # mixout of the sum.
        return [of for of in linear_maps(model) if ".lora_B." not in of.name]

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        super().check(model, seams, epochs)
        if self.pattern == "element" and any(of.is_lora_a for of in self.maps(model)):
            raise ValueError(
                "Mixout.pattern is 'element', which the two factors of a LoRA adapter cannot follow; it must be "
                "'column' here."
            )

    def target(self, of: Map, step: Step) -> Tensor | None:
        if of.is_lora_a:
            return None
        if step is self._first or of.name not in self._pretrained:
            self._pretrained[of.name] = of.weight.detach().clone()
        elif self._pretrained[of.name].device != of.weight.device:
            self._pretrained[of.name] = self._pretrained[of.name].to(of.weight.device)
        return self._pretrained[of.name]

    def on_step_begin(self, step: Step) -> None:
        if not self._pretrained:
            self._first = step  # in which a method that comes later in the list may still move the weights
        super().on_step_begin(step)

    def on_close(self) -> None:
        super().on_close()
        self.reset()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return dict(self._pretrained), {}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self._pretrained = tensors
