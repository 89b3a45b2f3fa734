"""Freezing: the embeddings and the first blocks keep their pretrained weights.

    w_t = w_0    for all weights of the embeddings and of the first n blocks

Frozen weights get no gradient, no weight decay and no state in the optimizer.

Lee, Tang and Lin, "What Would Elsa Do? Freezing Layers During Transformer Fine-Tuning", arXiv 1911.03090.
Differs from the paper in: nothing known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..core.capabilities import ScalesLearningRates
from ..core.hyper import hyper
from ..model.seams import Seams
from ._shared.depth import EMBEDDINGS, depths


@dataclass
class Freeze(ScalesLearningRates):
    """Pretrained weights that are not trained.

    Args:
        blocks: the number of blocks, counted from the first one; a whole number from 0
        embeddings: whether the embeddings are frozen too
    """

    name: ClassVar[str] = "freeze"

    blocks: int = hyper(1, search="1..6")
    embeddings: bool = hyper(True)

    def rate_factors(self, model: nn.Module, seams: Seams) -> dict[str, float]:
        count = len(seams.blocks)
        if self.blocks > count:
            raise ValueError(f"Freeze.blocks is {self.blocks}; it must be at most {count}, the blocks of {seams.name}.")
        if not self.blocks and not self.embeddings:
            return {}
        return {name: 0.0 for name, depth in depths("Freeze", model, seams).items() if self._is_frozen(depth)}

    def _is_frozen(self, depth: int) -> bool:
        return self.embeddings if depth == EMBEDDINGS else depth < self.blocks

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        if not any(parameter.requires_grad for parameter in model.parameters()):
            raise ValueError(
                f"Freeze.blocks is {self.blocks}, which leaves no weight of {seams.name} to train; it must be smaller, "
                "or weights above these blocks must be trained."
            )
