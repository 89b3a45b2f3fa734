"""HyPe: a little noise on the hidden states that enter each layer.

    h̃ = h + z,    z ~ N(0, σ²) or U(0, σ)         h: the input of a layer, the embeddings included

Yuan et al., "HyPe: Better Pre-trained Language Model Fine-tuning with Hidden Representation Perturbation",
arXiv 2212.08853.
U(0, σ) is the uniform noise of the authors' code. It is meant for a model whose own dropout is 0.
Differs from the paper in: in a model with an encoder and a decoder the input of the decoder's first layer gets no
noise.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Strength, value_at
from ..core.step import MicroBatch, Step
from ..model.plan import Edit, Plan
from ..model.seams import Seams
from ._shared.dropping import draws_like
from ._shared.noise import NOISES, noise_of


def before_layers(seams: Seams) -> list[int]:
    """Return the blocks whose output is the input of another block of the same stack; −1 is the embeddings."""
    stacks = {site.block: site.stack for site in seams.sites}
    return [-1, *(block for block in stacks if stacks.get(block + 1) == stacks[block])]


@dataclass
class HyPe(Regularizer):
    """Noise on the input of each layer.

    Args:
        sigma: size of the noise: the standard deviation of the normal, or the width of the uniform distribution; a
            number from 0, or a schedule
        noise: "normal" or "uniform"
    """

    name: ClassVar[str] = "hype"

    sigma: Strength = hyper(1e-5, search="log:1e-6..1e-2")
    noise: str = hyper("normal", choices=NOISES, search="normal,uniform")

    def capture_key(self, step: Step) -> Hashable:
        return value_at(self.sigma, step.progress) > 0

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if value_at(self.sigma, step.progress) == 0:
            return Plan()
        sigma = step.strength(f"{self.name} sigma", self.sigma)

        def add_noise(block: int) -> Edit:
            def edit(x: Tensor) -> Tensor:
                draws = draws_like(x, batch, block, self.name)
                noise = sigma * draws if self.noise == "uniform" else noise_of(draws, sigma, self.noise)
                return x + noise.to(x.dtype)

            return edit

        return Plan(edits={block: (add_noise(block),) for block in before_layers(step.seams)})
