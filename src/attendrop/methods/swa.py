"""SWA: the final model is the mean of the weights in the last part of training.

    a = 1/n Σ_i w_{t_i},    t_i = T, T − every, T − 2 · every, …  while t_i > start · T

w_t are the weights after step t of T. Training itself is not changed; evaluations, checkpoints and the final model have
the mean of the weights so far, once there is one.

Izmailov, Podoprikhin, Garipov, Vetrov and Wilson, "Averaging Weights Leads to Wider Optima and Better Generalization",
arXiv 1803.05407.
Differs from the paper in: the learning rate follows the schedule of the run, not a constant or cyclical one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ..core.hyper import hyper
from ..core.step import Step
from ._shared.averages import WeightAverage


@dataclass
class SWA(WeightAverage):
    """A mean of the weights over the last part of training.

    Args:
        start: the share of training after which weights are averaged; a number from 0 to 1; 1 is plain training
        every: steps between weights that are averaged, a whole number from 1
    """

    name: ClassVar[str] = "swa"

    start: float = hyper(0.5, high=1, search="0..0.9")
    every: int = hyper(1, low=1)

    def is_averaged(self, step: Step) -> bool:
        done, total = step.progress.step + 1, step.progress.total_steps
        return self._past_start(step) > 0 and (total - done) % self.every == 0

    def share(self, step: Step) -> float:
        return 1 / math.ceil(self._past_start(step) / self.every)  # 1/n, this one counted

    def _past_start(self, step: Step) -> float:
        """Return the number of steps since averaging began."""
        return round(step.progress.step + 1 - self.start * step.progress.total_steps, 9)
