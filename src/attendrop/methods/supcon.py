"""Supervised contrastive loss: texts of one class are drawn together, and those of other classes pushed away.

    L = (1 − λ) · CE + λ · SCL
    SCL = −1/N Σ_i 1/(N_i − 1) Σ_{j ≠ i, y_j = y_i} log softmax_{k ≠ i}(h_i · h_k / τ)_j

h is each text as one vector of length 1, N the examples of the batch, N_i those of the class of i. An example that is
alone in its class adds nothing.

Gunel et al., "Supervised Contrastive Learning for Pre-trained Language Model Fine-tuning", arXiv 2011.01403.
Differs from the paper in: SCL is a mean over the examples, as CE is; the paper's equation is a sum, which
`reduction="sum"` gives. h is what the head of the model reads, not always the first token.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core.hyper import hyper
from ..core.schedule import Strength
from ..model.objective import IGNORED
from ._shared.metric_loss import MetricLoss

REDUCTIONS = ("mean", "sum")


def contrastive(h: Tensor, labels: Tensor, tau: float) -> Tensor:
    """Return the term of each example, [N].

    Args:
        h: vectors of length 1, [N, d].
        labels: their classes, [N]; those that are ignored belong to no class and are nobody's negatives.
        tau: τ.
    """
    counted = labels != IGNORED
    others = ~torch.eye(len(h), dtype=torch.bool, device=h.device) & counted
    # Not −∞, whose softmax is undefined in a batch of one.
    log_p = (h @ h.T / tau).masked_fill(~others, torch.finfo(h.dtype).min).log_softmax(-1)
    positive = others & (labels.unsqueeze(-1) == labels)
    return -log_p.masked_fill(~positive, 0).sum(-1) / positive.sum(-1).clamp(min=1)


@dataclass
class SupCon(MetricLoss):
    """A supervised contrastive loss beside the cross-entropy.

    Args:
        weight: λ, the share of the contrastive loss; a number from 0 to 1, or a schedule. With 1 the head is left alone
        tau: τ, the temperature; a number above 0
        reduction: "mean" over the examples of the batch, or their "sum" as in the paper's equation
    """

    name: ClassVar[str] = "supcon"

    weight: Strength = hyper(0.9, high=1, search="0.1..0.9", paper="0.1,0.3,0.5,0.7,0.9")
    tau: float = hyper(0.3, above=0, search="0.1..0.7", paper="0.1,0.3,0.5,0.7")
    reduction: str = hyper("mean", choices=REDUCTIONS)

    def metric_loss(self, h: Tensor, labels: Tensor) -> Tensor:
        total = contrastive(h, labels, self.tau).sum()
        return total if self.reduction == "sum" else total / (labels != IGNORED).sum().clamp(min=1)
