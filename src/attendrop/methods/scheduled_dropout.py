"""Scheduled dropout: random scores dropout whose probability for each layer is a function of the training step.

    S'_ij = −∞ with probability p_l(t), before the softmax          t: the share of the training that is over

p_l is piecewise linear: `start` plus a slope for each layer, or curves fitted to a finished AttendOut run by
`fit_schedule`, which are then replayed on another task at no extra cost.

Wu, Zhao and Zhang, "Not All Attention Is All You Need", arXiv 2104.04692 v2, section 7.
Differs from the paper in: the paper starts at 0.6 on every layer and gives no numbers for the slopes. 0.6 is too much
for small models (see docs/results.md), so the default starts at 0.1, the usual dropout rate. As in the paper, lower
layers have the higher probabilities: by default the first layer stays at 0.1 and the last one falls to 0. One mask for
each example, view and layer is shared by the heads, as in AttendOut.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Schedule
from ..core.step import MicroBatch, Step
from ..errors import UserError, on_one_line
from ..model.plan import Plan
from ..model.seams import Seams
from ..model.sites import map_shape
from ..utils.files import load_json

_RUN_FILE = "attendout_run.json"


def _schedules(curves: Any) -> list[Schedule]:
    try:
        return [_schedule(curve) for curve in curves]
    except (TypeError, ValueError):
        raise ValueError(
            f"ScheduledDropout.curves is {curves!r:.60}; it must have a probability, or a list of (share of training, "
            "probability) points, for each layer."
        ) from None


def _schedule(curve: Any) -> Schedule:
    if isinstance(curve, (int, float)):
        curve = [(0, curve), (1, curve)]
    return curve if isinstance(curve, Schedule) else Schedule(curve)


@dataclass
class ScheduledDropout(Regularizer):
    """Bernoulli scores dropout with a schedule for each layer.

    Args:
        start: drop probability of every layer at the start of the training; a number from 0 to 1
        slopes: change of this probability over the whole training, for the first and the last layer; two numbers, with
            evenly spaced values for the layers between them. The probability is cut to 0 … 1
        curves: instead of start and slopes: for each layer a probability, or a list of (share of the training,
            probability) points with shares rising from 0 to 1; or None
        run: instead of curves: the folder of an AttendOut run, or its `attendout_run.json`, whose curves
            `fit_schedule` fits; or None
    """

    name: ClassVar[str] = "scheduled_dropout"

    start: float = hyper(0.1, high=1, search="0.05..0.6")
    slopes: Sequence[float] = (0.0, -0.1)
    curves: Sequence[Any] | None = None
    run: str | Path | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        is_pair = isinstance(self.slopes, (list, tuple)) and len(self.slopes) == 2
        if not is_pair or not all(isinstance(slope, (int, float)) for slope in self.slopes):
            raise ValueError(
                f"ScheduledDropout.slopes is {self.slopes!r}; it must be two numbers, for the first and the last layer."
            )
        self.slopes = tuple(self.slopes)
        if self.run is not None:
            if self.curves is not None:
                raise UserError(
                    f"ScheduledDropout.run is {str(self.run)!r} and curves are given; leave one of them out."
                )
            self.curves, self.run = _curves_of(self.run), None  # what is saved needs the file no more
        if self.curves is not None:
            self.curves = _schedules(self.curves)
            if not all(0 <= value <= 1 for curve in self.curves for _, value in curve.points):
                raise ValueError("ScheduledDropout.curves has a probability outside of 0 to 1.")

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        layers = 1 + max(site.layer for site in seams.sites)
        if self.curves is not None and len(self.curves) != layers:
            raise ValueError(
                f"ScheduledDropout.curves has {len(self.curves)} layers; {seams.name} has {layers}. "
                "A schedule can be replayed on models of the same depth."
            )

    def probability(self, layer: int, layers: int, fraction: float) -> float:
        """p_l(t), the drop probability of a layer at a share of the training."""
        if self.curves is not None:
            return float(self.curves[layer](fraction))
        first, last = self.slopes
        slope = first + (last - first) * (layer / (layers - 1) if layers > 1 else 0.0)
        return min(1.0, max(0.0, self.start + slope * fraction))

    def capture_key(self, step: Step) -> Hashable:
        return bool(self._probabilities(step).any())

    def _probabilities(self, step: Step) -> Tensor:
        """Return the probability of each site, float64 [sites]."""
        layers = 1 + max(site.layer for site in step.seams.sites)
        of_sites = [self.probability(site.layer, layers, step.progress.fraction) for site in step.seams.sites]
        return torch.tensor(of_sites, dtype=torch.float64)

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        # A captured plan has all sites: a probability may become zero in a later step, and then all is kept.
        acts = [True] * len(step.seams.sites) if step.is_captured else (self._probabilities(step) > 0).tolist()
        keep = {}
        for site, p in zip(step.seams.sites, step.values(f"{self.name} p", self._probabilities), strict=True):
            if acts[site.index]:
                rows, queries, keys = map_shape(site, batch.examples)
                draws = batch.uniform_of_views(site.index, (rows, 1, queries, keys), step.device, self.name)
                keep[site.index] = draws >= p
        return Plan(keep=keep)

    def to_dict(self) -> dict[str, Any]:
        curves = None if self.curves is None else [[list(point) for point in curve.points] for curve in self.curves]
        described = {**super().to_dict(), "slopes": list(self.slopes), "curves": curves}
        del described["run"]
        return described


def _curves_of(path: str | Path) -> Sequence[Any] | None:
    """Return the fitted curves of a saved AttendOut run."""
    given = f"ScheduledDropout.run is {str(path)!r}"
    file = Path(path, _RUN_FILE) if Path(path).is_dir() else Path(path)
    if not file.is_file():
        raise UserError(f"{given}, which has no {_RUN_FILE}; it must be that of an AttendOut run, or its folder.")
    try:
        return fit_schedule(file).curves
    except (OSError, ValueError, TypeError, KeyError, AttributeError, IndexError) as error:
        raise UserError(
            f"{given}, which is no {_RUN_FILE} with at least 2 dropout steps ({on_one_line(error)})."
        ) from None


def fit_schedule(run: Any, knots: int = 5) -> ScheduledDropout:
    """Return a schedule that follows the learned curves of an AttendOut run: the least-squares fit for each layer.

    Args:
        run: the `AttendOut` object after training, its `history`, or the path of a saved `attendout_run.json`.
        knots: the number of evenly spaced points of each piecewise-linear curve, from 2; not more than the run has
            dropout steps.

    Example:
        schedule = fit_schedule("first_task/attendout_run.json")
        trainer = RegularizedTrainer(model=model, args=args, train_dataset=train, regularizers=[schedule])
    """
    if isinstance(run, (str, Path)):
        run = load_json(run)
    history = run if isinstance(run, list) else run.history
    if len(history) < 2:
        raise ValueError(f"the run has {len(history)} dropout steps; a schedule needs at least 2.")
    knots = min(knots, len(history))
    if knots < 2:
        raise ValueError(f"knots is {knots}; it must be at least 2.")
    steps = np.array([entry["step"] for entry in history], dtype=float)
    times = steps / steps[-1]
    knot_times = np.linspace(0, 1, knots)
    # Column k is the piecewise-linear function that is 1 at knot k and 0 at all others.
    basis = np.maximum(0, 1 - np.abs(times[:, None] - knot_times[None]) * (knots - 1))
    learned = np.array([entry["drop_probability"] for entry in history])
    # A small penalty on the second difference determines the knots that no dropout step is near.
    smoothness = np.zeros((max(0, knots - 2), knots))
    for row in range(len(smoothness)):
        smoothness[row, row : row + 3] = (1e-3, -2e-3, 1e-3)
    system = np.vstack([basis, smoothness])
    target = np.vstack([learned, np.zeros((len(smoothness), learned.shape[1]))])
    values = np.linalg.lstsq(system, target, rcond=None)[0].clip(0, 1)
    return ScheduledDropout(
        curves=[[(float(t), float(v)) for t, v in zip(knot_times, of_layer, strict=True)] for of_layer in values.T]
    )
