"""LLRD: layer-wise learning rate decay. The lower a layer is, the smaller is its learning rate.

    η_l = η · d^(L + 1 − l),    l = 0 embeddings, 1 … L blocks, L + 1 head

η is the learning rate of the run at the current step, and d the decay. The head, the pooler and the last norm have the
full rate. Every scheduler works as it does without this method: it multiplies all rates alike.

Howard and Ruder, "Universal Language Model Fine-tuning for Text Classification", arXiv 1801.06146 (discriminative
fine-tuning, d = 1/2.6); Zhang, Wu, Katiyar, Weinberger and Artzi, arXiv 2006.05987, use it for BERT.
Differs from the papers in: the embeddings are a separate layer below the first block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from ..core.capabilities import ScalesLearningRates
from ..core.hyper import hyper
from ..model.seams import Seams
from ._shared.depth import depths


@dataclass
class LLRD(ScalesLearningRates):
    """Smaller learning rates in lower layers.

    Args:
        decay: d, the factor from each layer to the one below it; a number above 0 and at most 1; 1 is plain training
    """

    name: ClassVar[str] = "llrd"

    decay: float = hyper(0.9, above=0, high=1, search="0.6..0.99")

    def rate_factors(self, model: nn.Module, seams: Seams) -> dict[str, float]:
        if self.decay == 1:
            return {}
        top = len(seams.blocks)
        return {name: self.decay ** (top - depth) for name, depth in depths("LLRD", model, seams).items()}
