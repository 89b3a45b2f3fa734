"""DropConnect: in each step, each weight is zero with probability p.

    W̃ = m ⊙ W / (1 − p),    m ~ Bernoulli(1 − p) for each weight

E[W̃] = W, and ∂L/∂W = m/(1 − p) ⊙ ∂L/∂W̃. It is mixout with `pattern="element"` and U = 0.

Wan, Zeiler, Zhang, LeCun and Fergus, "Regularization of Neural Networks using DropConnect", ICML 2013.
Differs from the paper in: all examples of a step share one draw; evaluation uses the mean weights W, where the paper
samples from a Gaussian.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.hyper import hyper
from ..core.schedule import Strength
from ._shared.weights import MixedWeights


@dataclass
class DropConnect(MixedWeights):
    """Dropout of weights.

    Args:
        p: probability that a weight is zero for the step; a number from 0 to below 1, or a schedule
    """

    name: ClassVar[str] = "dropconnect"

    p: Strength = hyper(0.1, high=1, search="0.02..0.5")
