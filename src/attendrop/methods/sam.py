"""SAM: the gradient is computed at the weights nearby whose loss is highest, so that training finds flat minima.

    W ← W − η ∂L/∂W at W + e,    e = ρ g / ‖g‖,    g = ∂L/∂W at W        the norm is over all weights

Foret et al., "Sharpness-Aware Minimization for Efficiently Improving Generalization", arXiv 2010.01412.
Differs from the paper in: e is computed for each micro-batch of each process (m-sharpness, as on the paper's
accelerators); the first gradient is that of the model's own loss, without the changes and penalties of other methods.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.hyper import hyper
from ..core.schedule import Strength
from ._shared.ascent import AscendsWeights


@dataclass
class SAM(AscendsWeights):
    """Sharpness-aware minimization.

    Args:
        rho: length of the step away from the weights; a number from 0, or a schedule
    """

    name: ClassVar[str] = "sam"

    rho: Strength = hyper(0.05, search="log:0.01..0.5")
