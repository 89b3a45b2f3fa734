"""mixout: in each step, the weights of some inputs are the pretrained ones.

    W̃ = [(1 − m) ⊙ U + m ⊙ W − p U] / (1 − p),    m ~ Bernoulli(1 − p)    for each input, shared by all outputs

U is the weight with which training starts. E[W̃] = W, and the gradient is exact: ∂L/∂W = m/(1 − p) ⊙ ∂L/∂W̃. With
p = 0.7, seven of ten inputs of every linear layer are multiplied by pretrained weights.

Lee, Cho and Kang, "Mixout: Effective Regularization to Finetune Large-scale Pretrained Language Models", arXiv
1909.11299. `pattern="element"` draws m for each weight (mixconnect).
Differs from the paper in: the model's ordinary dropout stays on as it is configured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from ..core.capabilities import KeepsState
from ..core.hyper import hyper
from ..core.schedule import Strength
from ..core.step import Step
from ..model.seams import Seams
from ._shared.weights import PATTERNS, LinearWeight, MixedWeights, linear_weights


@dataclass
class Mixout(MixedWeights, KeepsState):
    """Pretrained weights in the place of trained ones.

    Args:
        p: probability that a weight is the pretrained one for the step; a number from 0 to below 1, or a schedule
        pattern: "column": one draw for each input of a linear layer; "element": one for each weight
    """

    name: ClassVar[str] = "mixout"

    p: Strength = hyper(0.7, high=1, search="0.1..0.9", paper="0.7,0.8,0.9")
    pattern: str = hyper("column", choices=PATTERNS)

    def reset(self) -> None:
        super().reset()
        self._pretrained: dict[str, Tensor] = {}
        self._first_step: Step | None = None

    def weights(self, model: nn.Module) -> list[LinearWeight]:
        # With LoRA the weight is W + BA, which is pretrained where BA is zero, and (BA) ⊙ m = B(A ⊙ m) for an m over
        # inputs. Mixing A with zero is therefore mixout of the sum.
        return [linear for linear in linear_weights(model) if ".lora_B." not in linear.name]

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        super().check(model, seams, epochs)
        if self.pattern == "element" and any(linear.is_lora_a for linear in self.weights(model)):
            raise ValueError(
                "Mixout.pattern is 'element', which the two factors of a LoRA adapter cannot represent; it must be "
                "'column' here."
            )

    def target(self, linear: LinearWeight, step: Step) -> Tensor | None:
        if linear.is_lora_a:
            return None
        name, weight = linear.name, linear.weight
        if step is self._first_step or name not in self._pretrained:
            self._pretrained[name] = weight.detach().clone()
        elif self._pretrained[name].device != weight.device:
            self._pretrained[name] = self._pretrained[name].to(weight.device)
        return self._pretrained[name]

    def on_step_begin(self, step: Step) -> None:
        if not self._pretrained:
            self._first_step = step  # a method that comes later in the list may still change the weights in it
        super().on_step_begin(step)

    def on_close(self) -> None:
        super().on_close()
        self.reset()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return dict(self._pretrained), {}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self._pretrained = tensors
