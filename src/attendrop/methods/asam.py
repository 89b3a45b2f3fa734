"""ASAM: SAM whose step away from a weight is in proportion to the weight.

    W ← W − lr · ∂L/∂W at W + e,    e = ρ T² g / ‖T g‖,    T = |W| + η,    g = ∂L/∂W at W

T is 1 for biases, as in the public code: it scales the parameters with "weight" in their name.

The sharpness does not change where a layer is scaled up and the next one down.

Kwon et al., "ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural Networks",
arXiv 2102.11600.
Differs from the paper in: e is computed for each micro-batch of each process,
from the model's own loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.hyper import hyper
from ..core.schedule import Strength
from ._shared.ascent import AscendsWeights


@dataclass
class ASAM(AscendsWeights):
    """Adaptive sharpness-aware minimization.

    Args:
        rho: length of the step, relative to the weights; a number from 0, or a schedule
        eta: what is added to the size of each weight, so that weights of zero move too; a number from 0
    """

    name: ClassVar[str] = "asam"

    rho: Strength = hyper(0.5, search="log:0.05..2")
    eta: float = hyper(0.01)

    @property
    def scale_offset(self) -> float:
        return self.eta
