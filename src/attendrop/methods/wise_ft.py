"""WiSE-FT: the final model is between the pretrained and the fine-tuned weights.

    θ(α) = (1 − α) θ_pretrained + α θ_tuned

Training itself is not changed; evaluations, checkpoints and the final model have θ(α). α is fixed, or the Trainer
chooses it at each evaluation from a grid, by the score on the development set. The head has no pretrained weights: it
is that of the tuned model. Of a LoRA adapter, whose pretrained weights are a change of zero, α scales the change.

Wortsman, Ilharco, Kim, Li, Kornblith, Roelofs, Gontijo Lopes, Hajishirzi, Farhadi, Namkoong and Schmidt, "Robust
fine-tuning of zero-shot models", arXiv 2109.01903.
Differs from the paper in: the head is not interpolated, because it is new.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.capabilities import ChoosesOnDevelopment
from ..core.hyper import hyper
from ..core.step import Step
from ..errors import UserError
from ..utils.checks import check_number
from ._shared.origin import RemembersOrigin

AUTO = "auto"


@dataclass
class WiSEFT(RemembersOrigin, ChoosesOnDevelopment):
    """Weights between the pretrained and the tuned ones.

    Args:
        alpha: α, the share of the tuned weights; a number from 0 to 1; 1 is plain training; or "auto": the value of
            `grid` with the best score on the development set
        grid: the values of α that are compared with alpha="auto"; numbers from 0 to 1
    """

    name: ClassVar[str] = "wise_ft"

    alpha: float | str = hyper(0.5, high=1, also=[AUTO], search="0.1..0.9")
    grid: tuple[float, ...] = (0.2, 0.4, 0.6, 0.8, 1.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.grid, (list, tuple)) or not self.grid:
            raise UserError(f"WiSEFT.grid is {self.grid!r}; it must be a list of numbers from 0 to 1.")
        for value in self.grid:
            check_number("WiSEFT.grid", value, 0, 1)
        self.grid = tuple(self.grid)

    def reset(self) -> None:
        super().reset()
        # Before the first choice the tuned weights are the safest.
        self._alpha: float = 1.0 if isinstance(self.alpha, str) else self.alpha

    # ---- the choice of α ---------------------------------------------------------------------------------------

    @property
    def choices(self) -> Sequence[float]:
        """The values to compare. Of equal scores the first wins: the one closer to the tuned weights."""
        return sorted(set(self.grid), reverse=True) if self.alpha == AUTO else ()

    def choose(self, value: float) -> None:
        self._alpha = value

    # ---- the weights -------------------------------------------------------------------------------------------

    def origin(self, name: str, parameter: nn.Parameter) -> Tensor | None:
        """Scale only the second factor of a LoRA adapter: scaling both would give α²."""
        if ".lora_A." in name or ".lora_embedding_A." in name:
            return None
        if ".lora_B." in name or ".lora_embedding_B." in name:
            return torch.zeros_like(parameter)
        return parameter.detach().clone()

    def on_gradients(self, step: Step) -> None:
        if self.alpha != 1 and not self._is_on_device:
            self.remember(step)

    @torch.no_grad()
    def evaluated_weights(self, model: nn.Module) -> dict[str, Tensor]:
        if self._alpha == 1:
            return {}
        parameters = dict(model.named_parameters())
        return {name: interpolated(origin, parameters[name], self._alpha) for name, origin in self._origin.items()}

    # ---- checkpoints -------------------------------------------------------------------------------------------

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors, values = super().state()
        return tensors, {**values, "alpha": self._alpha} if tensors else {}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        super().load_state(tensors, values)
        self._alpha = values["alpha"]


def interpolated(pretrained: Tensor, tuned: Tensor, alpha: float) -> Tensor:
    """(1 − α) · pretrained + α · tuned, in float32 at least."""
    wide = torch.promote_types(tuned.dtype, torch.float32)
    return torch.lerp(pretrained.to(tuned.device, wide), tuned.detach().to(wide), alpha)
