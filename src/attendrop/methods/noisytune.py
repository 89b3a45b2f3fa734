"""NoisyTune: a little noise is added to the weights once, before fine-tuning begins.

    w̃ = w + U(−λ/2, λ/2) · std(w)    for each parameter w of the pretrained model, with a draw for each element

Wu, Wu, Qi and Huang, "NoisyTune: A Little Noise Can Help You Finetune Pretrained Language Models Better", arXiv
2202.12024.
Differs from the paper in: nothing known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.capabilities import ChangesFirstWeights, KeepsState
from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.step import Step
from ..model.seams import Seams
from ..model.sites import pretrained_part
from ._shared.weights import draws, reason_against, refuse_sharded, trained_weights


def noise(uniform: Tensor, deviation: Tensor, strength: float) -> Tensor:
    """U(−λ/2, λ/2) · std, from draws in [0, 1)."""
    return (uniform - 0.5) * (strength * deviation)


@dataclass
class NoisyTune(ChangesFirstWeights, KeepsState):
    """Noise on the pretrained weights before training.

    Args:
        strength: λ, the width of the uniform noise in standard deviations of each parameter; a number from 0 to 1
    """

    name: ClassVar[str] = "noisytune"

    strength: float = hyper(0.15, high=1, search="0.05..0.5")

    def reset(self) -> None:
        self._is_done = self.strength == 0

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        refuse_sharded("NoisyTune", model)

    def refuses(self, other: Regularizer) -> str | None:
        return reason_against(self, other)

    @torch.no_grad()
    def on_step_begin(self, step: Step) -> None:
        if not self._is_done and step.progress.step == 0:
            refuse_sharded("NoisyTune", step.model)
            with trained_weights(step):
                self._add_noise(step)
        self._is_done = True

    def _add_noise(self, step: Step) -> None:
        pretrained = {id(parameter) for parameter in pretrained_part(step.model).parameters()}
        for name, parameter in step.model.named_parameters():
            if id(parameter) in pretrained and parameter.requires_grad and parameter.numel() > 1:
                deviation = parameter.float().std()
                for rows, uniform in draws(step, f"noisytune {name}", parameter.shape, parameter.device):
                    parameter[rows] += noise(uniform, deviation, self.strength).to(parameter.dtype)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return {}, {"done": self._is_done}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self._is_done = values["done"]
