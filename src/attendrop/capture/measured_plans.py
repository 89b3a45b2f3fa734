"""The plans of steps that are logged: methods such as AD-DROP measure their masks in them.

A graph of the usual plan measures nothing. The plan of a logged step is made again with its metrics, and its masks are
copied to where the pass reads those of the usual plan. It is a graph too where its shape comes up again and its masks
are small: an eager plan of a small model takes as long as ten captured steps, and what a graph needs to measure large
masks would stay in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import replace

from torch import Tensor, nn

from ..core.engine import Engine
from ..core.step import MicroBatch
from ..kernels.attention_mask import tensors_of
from ..model.plan import Plan
from ..random import preserved
from .draws import StaticMicroBatch
from .errors import NotCaptured
from .graphs import Graphs

LARGEST_MASK = 1 << 22  # positions; to measure them takes a graph about 100 MB


class MeasuredPlans:
    """Makes the plans of logged steps.

    Args:
        model: the model that is trained.
        graphs: where plans are captured.
    """

    def __init__(self, model: nn.Module, graphs: Graphs) -> None:
        self._model, self._graphs = model, graphs
        self._made: Counter[Hashable] = Counter()  # how many plans, by their keys

    def write_masks(self, into: Plan, engine: Engine, key: Hashable, batch: MicroBatch, work: StaticMicroBatch) -> None:
        """Add the metrics of the step to it, and copy the masks that they describe.

        Args:
            into: the usual plan of the step.
            engine: the engine whose methods plan.
            key: names the shape and the kind of the step.
            batch: the micro-batch.
            work: the same for work that is captured.
        """
        key = ("measured plan", key)
        self._made[key] += 1
        plan = self._captured(engine, key, batch, work) if self._may_capture(key, into) else engine.plan(batch)
        if plan.keep.keys() != into.keep.keys():
            raise NotCaptured("a measured step has another plan")
        for site, mask in plan.keep.items():
            for target, new in zip(tensors_of(into.keep[site]), tensors_of(mask), strict=True):
                target.copy_(new)

    def _may_capture(self, key: Hashable, plan: Plan) -> bool:
        """Return whether the plan is a graph, or becomes one.

        The first of a shape is eager: another one may not come.
        """
        if self._graphs.has(key):
            return True
        if self._made[key] == 1 or key in self._graphs.failure_of or self._graphs.is_full:
            return False
        return all(isinstance(mask, Tensor) and mask.numel() <= LARGEST_MASK for mask in plan.keep.values())

    def _captured(self, engine: Engine, key: Hashable, batch: MicroBatch, work: StaticMicroBatch) -> Plan:
        def measure() -> tuple[Plan, dict[str, Tensor]]:
            step = replace(work.step, measure=True, metrics={})
            return engine.plan(replace(work, step=step)), step.metrics

        with preserved(self._graphs.device):
            plan, metrics = self._graphs.run(key, measure, batch=batch, forward_of=self._model, may_fail=True)
        batch.step.metrics.update({name: value.clone() for name, value in metrics.items()})
        captured: Plan = plan
        return captured
