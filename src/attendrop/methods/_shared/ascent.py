"""Methods that compute the gradient of a micro-batch at weights nearby, where its loss is higher.

    e = ρ · T² g / ‖T g‖,    g = ∂L/∂W at W        the tracked pass then runs at W + e, and its gradient updates W

T is a diagonal scale of the weights. g comes from a probe with the same ordinary dropout as the tracked pass. Before
the next micro-batch, or when the gradients of the step are computed, W is restored bit for bit.

Each micro-batch of each process has its own e. The SAM paper calls this m-sharpness, m being the size of a micro-batch,
and does the same on its accelerators. So nothing has to be kept for accumulation, and processes exchange nothing more.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ...core.capabilities import ProbesModel
from ...core.regularizer import Regularizer
from ...core.schedule import Strength, largest, value_at
from ...core.step import Loop, MicroBatch, Step
from ...kernels.foreach import ascend, restore
from ...model.plan import Plan
from ...model.probe import Probe
from ...model.seams import Seams
from .averages import ListedParameters, refuse_frozen
from .weights import RestoresWeights, in_graph, reason_against, refuse_sharded

# Half precision underflows below 6e-8. Only the direction of the gradient counts, so that its size may be any.
_SCALE = 1024.0


class _Weights(NamedTuple):
    """The weights, and the tensors that graphs read and write beside them, at fixed addresses."""

    weights: list[Tensor]
    trained: list[Tensor]  # W, while the weights are W + e
    is_moved: Tensor  # whether they are: 0-d bool tensor, on their device
    scaled: list[bool]  # whether T is not 1 for it

    @classmethod
    def of(cls, weights: dict[str, nn.Parameter]) -> _Weights:
        is_moved = torch.zeros((), dtype=torch.bool, device=next(iter(weights.values())).device)
        scaled = ["weight" in name for name in weights]
        return cls([*weights.values()], [torch.empty_like(weight) for weight in weights.values()], is_moved, scaled)

    def are(self, weights: Sequence[Tensor]) -> bool:
        """Return whether these are the weights, on the same device as before."""
        if len(weights) != len(self.weights):
            return False
        known = zip(weights, self.weights, self.trained, strict=True)
        return all(x is y and x.device == z.device for x, y, z in known)


class AscendsWeights(RestoresWeights, ProbesModel):
    """The base class of SAM and its variants. A subclass has `rho`, and may say what T is."""

    rho: Strength

    def reset(self) -> None:
        self._model: nn.Module | None = None  # the model whose weights may be W + e
        self._all: _Weights | None = None
        self._parameters = ListedParameters()

    @property
    def scale_offset(self) -> float | None:
        """T is |W| plus this number for parameters with "weight" in their name, and 1 for others; None: 1 for all."""
        return None

    def ascent_loss(self, batch: MicroBatch, probe: Probe) -> Tensor:
        """Return L at W, of which g is the gradient."""
        return probe.loss(Plan())

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        refuse_sharded(type(self).__name__, model)
        refuse_frozen(type(self).__name__, model, seams)

    def check_loop(self, model: nn.Module, loop: Loop) -> None:
        if largest(self.rho) > 0 and loop.gradient_scale != 1.0:
            raise ValueError(
                f"{type(self).__name__} computes a gradient in a separate pass, and the loss is scaled for float16 "
                "(fp16=True), which that pass is not; train with bf16=True or in float32."
            )

    def refuses(self, other: Regularizer) -> str | None:
        return reason_against(self, other)

    def capture_key(self, step: Step) -> Hashable:
        acts = value_at(self.rho, step.progress) > 0
        tensors = [*self._all.trained, self._all.is_moved] if acts and self._all is not None else []
        return acts, tuple(x.data_ptr() for x in tensors)

    def probes(self, step: Step) -> bool:
        return value_at(self.rho, step.progress) > 0

    def on_step_begin(self, step: Step) -> None:
        self.restore_weights()  # a step that was interrupted has left other weights
        if value_at(self.rho, step.progress) == 0:
            return
        weights = self._parameters.trained(step.model)
        if self._all is None or not self._all.are(list(weights.values())):
            refuse_sharded(type(self).__name__, step.model)
            self._all = _Weights.of(weights)

    def on_batch(self, batch: MicroBatch) -> None:
        self._restore(batch.step)
        if value_at(self.rho, batch.step.progress) == 0:
            return
        self._model = batch.step.model
        self.register(self._model)
        if batch.loop_loss is not None:  # `plan` is called for each call of the model
            self._ascend(batch)

    def plan(self, batch: MicroBatch) -> Plan:
        if value_at(self.rho, batch.step.progress) > 0 and batch.loop_loss is None:
            self._ascend(batch)
        return Plan()

    def _ascend(self, batch: MicroBatch) -> None:
        """Write W + e over W. It may run several times for one micro-batch: a captured plan first runs as a trial."""
        assert self._all is not None
        weights, trained, is_moved, scaled = self._all
        with torch.no_grad():
            restore(weights, trained, is_moved)
        probe = batch.probe()
        with probe.untracked(), torch.enable_grad():
            raw = torch.autograd.grad(self.ascent_loss(batch, probe) * _SCALE, weights, allow_unused=True)
        with torch.no_grad():
            gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(weights, raw, strict=True)]
            rho = batch.step.strength(f"{self.name} rho", self.rho)
            # In place, because a captured graph reads the weights at their addresses.
            ascend(weights, trained, gradients, rho, self.scale_offset, is_moved, scaled)

    def restore_weights(self) -> None:
        self._restore(None)

    def on_gradients(self, step: Step) -> None:
        self._restore(step)

    @torch.no_grad()
    def _restore(self, step: Step | None) -> None:
        """Write W over W + e; within a step, as a graph where steps are captured."""
        if self._model is None:
            return
        assert self._all is not None
        weights, trained, is_moved, _ = self._all
        if step is None:
            restore(weights, trained, is_moved)
        else:
            tensors = [*weights, *trained, is_moved]
            in_graph(step, (self.name, "restore"), tensors, lambda step: restore(weights, trained, is_moved))
        self.unregister(self._model)
        self._model = None

    def on_close(self) -> None:
        self.restore_weights()
