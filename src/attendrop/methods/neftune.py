"""NEFTune: uniform noise on the embeddings of each training example.

    x̃ = x + α / √(L d) · z,    z ~ U(−1, 1)        L: the tokens of the example that are not padding, d: the width

Jain et al., "NEFTune: Noisy Embeddings Improve Instruction Finetuning", arXiv 2310.05914.
Differs from the paper in: L does not count padding. In a model that reads no token ids the noise is added to the input
of the first block.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Strength, value_at
from ..core.step import Loop, MicroBatch, Step
from ..model.plan import Plan
from ..model.tokens import text_lengths
from ._shared.dropping import draws_like
from ._shared.noise import noise_of


@dataclass
class NEFTune(Regularizer):
    """Uniform noise on the embeddings, scaled by the length of the text.

    Args:
        alpha: size of the noise; a number from 0, or a schedule. The noise of an example has about the length α / √3
    """

    name: ClassVar[str] = "neftune"

    alpha: Strength = hyper(5.0, search="log:0.5..15")

    def check_loop(self, model: nn.Module, loop: Loop) -> None:
        own = getattr(loop.arguments, "neftune_noise_alpha", None)
        if own:
            raise ValueError(
                f"args.neftune_noise_alpha is {own}, with which the Trainer adds the noise of NEFTune too; set it to "
                "None, or leave NEFTune out of the regularisers."
            )

    def capture_key(self, step: Step) -> Hashable:
        return value_at(self.alpha, step.progress) > 0

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if value_at(self.alpha, step.progress) == 0:
            return Plan()
        alpha = step.strength(f"{self.name} alpha", self.alpha)
        lengths = text_lengths(step.model, step.seams.sites[0], batch.examples).clamp(min=1)

        def add_noise(x: Tensor) -> Tensor:
            draws = draws_like(x, batch, -1, self.name)
            area = lengths.repeat(step.views, 1).view(len(x), -1, *[1] * (x.dim() - 2)) * x.shape[-1]
            return x + (alpha * noise_of(draws, 1.0) / area.to(draws.dtype).sqrt()).to(x.dtype)

        return Plan(words=(add_noise,))
