"""EMA: the final model is an exponential moving average of the weights during training.

    a_1 = w_1,    a_t = β_t a_{t−1} + (1 − β_t) w_t,    β_t = min(β, t / (9 + t))

w_t are the weights after step t. Training itself is not changed; evaluations, checkpoints and the final model have a_t.
β_t is small at first, so that early weights are soon forgotten. `warmup=False` uses β from the beginning.

Polyak and Juditsky, "Acceleration of Stochastic Approximation by Averaging", SIAM Journal on Control and Optimization
30(4), 1992; the exponential form is that of Tarvainen and Valpola, arXiv 1703.01780.
Differs from the papers in: the warm-up of β, which is that of TensorFlow's ExponentialMovingAverage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core.hyper import hyper
from ..core.step import Step
from ._shared.averages import WeightAverage


@dataclass
class EMA(WeightAverage):
    """An exponential moving average of the weights.

    Args:
        decay: β, the share of the old average that is kept in each step; a number from 0 to below 1; 0: plain training
        warmup: whether β is smaller in the first steps: t / (9 + t)
    """

    name: ClassVar[str] = "ema"

    decay: float = hyper(0.99, below=1, search="0.9,0.98,0.99,0.995,0.999")
    warmup: bool = hyper(True)

    def is_averaged(self, step: Step) -> bool:
        return self.decay > 0

    def share(self, step: Step) -> float:
        t = step.progress.step + 1
        return 1 - (min(self.decay, t / (9 + t)) if self.warmup else self.decay)
