"""Methods that compute the gradient of a micro-batch at weights nearby, where its loss is higher.

    e = ρ · T² g / ‖T g‖,    g = ∂L/∂W at W        the tracked pass then runs at W + e, and its gradient updates W

T is a diagonal scale of the weights. g comes from a probe with the same ordinary dropout as the tracked pass. Before
the next micro-batch, or when the gradients of the step are there, W is restored bit for bit.

Each micro-batch of each process has its own e. The SAM paper calls this m-sharpness, m being the size of a micro-batch,
and does the same on its accelerators. So nothing has to be kept for accumulation, and processes exchange nothing more.
"""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor, nn

from ...core.regularizer import Regularizer
from ...core.schedule import Strength, largest, value_at
from ...core.step import Loop, MicroBatch, Step
from ...model.plan import Plan
from ...model.seams import Seams
from .averages import refuse_frozen
from .weights import EditsWeights, reason_against, refuse_sharded

# Half precision underflows below 6e-8. Only the direction of the gradient counts, so that its size may be any.
_SCALE = 1024.0


def climbed(
    weights: list[Tensor], gradients: list[Tensor], scales: list[Tensor] | None, rho: float | Tensor
) -> list[Tensor]:
    """W + e for each weight; W itself where the gradient is zero or not finite.

    Args:
        weights: W.
        gradients: g, of the same shapes.
        scales: T, of the same shapes; None: 1.
        rho: ρ.
    """
    scaled = gradients if scales is None else [t * g for t, g in zip(scales, gradients, strict=True)]
    norm = torch.stack(torch._foreach_norm(scaled)).norm()
    is_usable = norm.isfinite() & (norm > 0)
    factor = rho / norm.masked_fill(~is_usable, 1)
    steps = scaled if scales is None else [t * g for t, g in zip(scales, scaled, strict=True)]
    return [
        torch.where(is_usable, weight + (factor * step).to(weight.dtype), weight)
        for weight, step in zip(weights, steps, strict=True)
    ]


class ClimbsWeights(EditsWeights):
    """The base class of SAM and its variants. A subclass has `rho`, and may say what T is."""

    rho: Strength

    def reset(self) -> None:
        self._model: nn.Module | None = None
        self._weights: list[Tensor] = []
        self._trained: list[Tensor] = []  # their trained values, in memory that stays where it is: graphs read it
        self._is_changed = False

    def scales(self, weights: list[Tensor]) -> list[Tensor] | None:
        """T for each weight; None: 1."""
        return None

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        refuse_sharded(type(self).__name__, model)
        refuse_frozen(type(self).__name__, model, seams)

    def check_loop(self, model: nn.Module, loop: Loop) -> None:
        if largest(self.rho) > 0 and loop.gradient_scale != 1.0:
            raise ValueError(
                f"{type(self).__name__} computes a gradient in a pass of its own, and the loss is scaled for float16 "
                "(fp16=True), which that pass is not; train with bf16=True or in float32."
            )

    def refuses(self, other: Regularizer) -> str | None:
        return reason_against(self, other)

    def capture_key(self, step: Step) -> Hashable:
        acts = value_at(self.rho, step.progress) > 0
        return acts, tuple(x.data_ptr() for x in self._trained) if acts else ()

    def probes(self, step: Step) -> bool:
        return value_at(self.rho, step.progress) > 0

    def on_step_begin(self, step: Step) -> None:
        self.restore_weights()  # a step that was interrupted has left other weights
        if value_at(self.rho, step.progress) == 0:
            return
        weights: list[Tensor] = [parameter for parameter in step.model.parameters() if parameter.requires_grad]
        is_known = [id(x) for x in weights] == [id(x) for x in self._weights]
        if not is_known or any(x.device != y.device for x, y in zip(weights, self._trained, strict=True)):
            refuse_sharded(type(self).__name__, step.model)
            self._weights, self._trained = weights, [torch.empty_like(weight) for weight in weights]

    @torch.no_grad()
    def on_batch(self, batch: MicroBatch) -> None:
        self.restore_weights()
        if value_at(self.rho, batch.step.progress) == 0:
            return
        torch._foreach_copy_(self._trained, self._weights)
        self._is_changed = True
        self._model = batch.step.model
        self.register(self._model)
        if batch.loop_loss is not None:  # `plan` is called for each call of the model
            self._climb(batch)

    def plan(self, batch: MicroBatch) -> Plan:
        if value_at(self.rho, batch.step.progress) > 0 and batch.loop_loss is None:
            self._climb(batch)
        return Plan()

    def _climb(self, batch: MicroBatch) -> None:
        """Writes W + e over W. It may run several times for one micro-batch: a captured plan first runs as a trial."""
        with torch.no_grad():
            torch._foreach_copy_(self._weights, self._trained)
        probe = batch.probe()
        with probe.untracked(), torch.enable_grad():
            found = torch.autograd.grad(probe.loss(Plan()) * _SCALE, self._weights, allow_unused=True)
        with torch.no_grad():
            gradients = [torch.zeros_like(x) if g is None else g for x, g in zip(self._trained, found, strict=True)]
            rho = batch.step.strength(f"{self.name} rho", self.rho)
            climbing = climbed(self._trained, gradients, self.scales(self._trained), rho)
            # In place, because a captured graph reads the weights at their addresses.
            torch._foreach_copy_(self._weights, climbing)

    @torch.no_grad()
    def restore_weights(self) -> None:
        if self._is_changed:
            torch._foreach_copy_(self._weights, self._trained)
            self._is_changed = False
        if self._model is not None:
            self.unregister(self._model)
            self._model = None

    def on_gradients(self, step: Step) -> None:
        self.restore_weights()

    def on_close(self) -> None:
        self.restore_weights()
