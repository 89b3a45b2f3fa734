"""ASAM: SAM whose step away from a weight is in proportion to the weight.

    W ← W − lr · ∂L/∂W at W + e,    e = ρ T² g / ‖T g‖,    T = |W| + η,    g = ∂L/∂W at W

The sharpness does not change where a layer is scaled up and the next one down.

Kwon et al., "ASAM: Adaptive Sharpness-Aware Minimization for Scale-Invariant Learning of Deep Neural Networks",
arXiv 2102.11600.
Differs from the paper in: T is |W| + η for biases and norms too; e is computed for each micro-batch of each process,
from the model's own loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import ClassVar

from ..core.schedule import Strength, as_strength
from ..utils.checks import check_number
from ._shared.ascent import AscendsWeights


@dataclass
class ASAM(AscendsWeights):
    """Adaptive sharpness-aware minimization.

    Args:
        rho: length of the step, relative to the weights; a number from 0, or a schedule
        eta: what is added to the size of each weight, so that weights of zero move too; a number from 0
    """

    name: ClassVar[str] = "asam"

    rho: Strength = 0.5
    eta: float = 0.01

    def __post_init__(self) -> None:
        self.rho = as_strength("ASAM", "rho", self.rho, 0, inf)
        check_number("ASAM.eta", self.eta)
        self.reset()

    @property
    def scale_offset(self) -> float:
        return self.eta
