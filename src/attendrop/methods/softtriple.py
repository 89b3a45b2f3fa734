"""SoftTriple loss: each class has several learned centres, and a text is drawn to those of its class.

    L = (1 − λ) · CE + λ · (ST + τ R)
    s_ic = Σ_k softmax_k(h_i · w_ck / γ) h_i · w_ck                 a soft maximum over the K centres of class c
    ST = −mean_i log softmax_c(scale · (s_ic − δ [c = y_i]))_{y_i}
    R = 1/(C K (K − 1)) Σ_c Σ_{s<t} ‖w_cs − w_ct‖                   merges centres of a class that are not needed

h_i is each text and w_ck each centre as a vector of length 1. The centres learn with the method's own Adam.

Qian et al., "SoftTriple Loss: Deep Metric Learning Without Triplet Sampling", arXiv 1909.05235.
Differs from the paper in: it is a share of the loss beside the cross-entropy of the head, as Sosnowski et al. use it to
fine-tune language models (arXiv 2112.08462, 2211.15195); h is what the head of the model reads.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional

from ..core.hyper import hyper
from ..core.schedule import Strength, largest, value_at
from ..core.step import MicroBatch, Step
from ..model.objective import IGNORED
from ..model.pooled_config import encodes_apart
from ..model.sites import unwrapped
from ._shared.learned import LearnsParameter
from ._shared.metric_loss import MetricLoss


def soft_triple(h: Tensor, centers: Tensor, labels: Tensor, scale: float, gamma: float, margin: float) -> Tensor:
    """Return ST.

    Args:
        h: the texts, vectors of length 1, [N, d].
        centers: w, vectors of length 1, [C, K, d].
        labels: the classes of the texts, [N].
        scale: the scale of the similarities.
        gamma: γ.
        margin: δ.
    """
    similarity = torch.einsum("nd,ckd->nck", h, centers)
    relaxed = ((similarity / gamma).softmax(-1) * similarity).sum(-1)
    own = labels.unsqueeze(-1) == torch.arange(centers.shape[0], device=labels.device)
    return functional.cross_entropy(scale * (relaxed - margin * own), labels, ignore_index=IGNORED)


def spread(centers: Tensor) -> Tensor:
    """Return R, from vectors of length 1, [C, K, d]; zero for one centre a class."""
    classes, count = centers.shape[:2]
    if count == 1:
        return centers.new_zeros(())
    first, second = torch.triu_indices(count, count, offset=1, device=centers.device)
    cosines = (centers[:, first] * centers[:, second]).sum(-1)
    return (2 - 2 * cosines).clamp(min=1e-12).sqrt().sum() / (classes * count * (count - 1))


@dataclass
class SoftTriple(MetricLoss, LearnsParameter):
    """A loss on the similarity of texts to learned centres of the classes, beside the cross-entropy.

    Args:
        weight: λ, the share of the SoftTriple loss; a number from 0 to 1, or a schedule. With 1 the head learns nothing
        centers: K, the centres of each class; a whole number from 1
        scale: the scale of the similarities, the paper's λ; a number above 0
        gamma: γ, the temperature of the soft maximum; a number above 0
        margin: δ, by which the own class must be nearer; a number from 0
        tau: τ, the weight of the term that merges centres; a number from 0
        lr: the learning rate of the centres; a number from 0
    """

    name: ClassVar[str] = "softtriple"

    weight: Strength = hyper(0.5, high=1, search="0.1..0.9")
    centers: int = hyper(10, low=1, search="1,2,5,10")
    scale: float = hyper(20.0, above=0)
    gamma: float = hyper(0.1, above=0)
    margin: float = hyper(0.01)
    tau: float = hyper(0.2)
    lr: float = hyper(0.01, search="log:0.001..0.1")

    def first_value(self, step: Step) -> Tensor | None:
        if largest(self.weight) == 0:
            return None
        config = unwrapped(step.model).config
        width = config.hidden_size * (4 if encodes_apart(config) else 1)
        generator = step.shared_generator(self.name)
        return functional.normalize(torch.randn(config.num_labels, self.centers, width, generator=generator), dim=-1)

    def capture_key(self, step: Step) -> Hashable:
        return self.learned is not None, value_at(self.weight, step.progress) > 0

    def metric_loss(self, h: Tensor, labels: Tensor) -> Tensor:
        assert self.learned is not None
        centers = functional.normalize(self.learned, dim=-1)
        loss = soft_triple(h, centers.to(h.dtype), labels, self.scale, self.gamma, self.margin)
        return loss + self.tau * spread(centers)

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        replaced = super().penalty(outputs, batch)
        return None if replaced is None else replaced + self.unit
