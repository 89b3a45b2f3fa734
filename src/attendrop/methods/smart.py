"""SMART: two penalties keep the prediction the same near each input, and near the prediction of earlier weights.

    L = CE(x) + λ ℓ(f(x + δ), f(x)) + μ ℓ(f(x), f̃(x))           ℓ(P, Q) = KL(P‖Q) + KL(Q‖P); in regression (p − q)²

    δ ~ N(0, σ²), then K times  δ ← clamp(δ + η g / ‖g‖∞, −ε, ε),    g = ∂ℓ(f(x + δ), f(x))/∂δ
    θ̃ ← β θ̃ + (1 − β) θ after each step; f̃ is the model with the weights θ̃, which are θ when training starts

Jiang et al., "SMART: Robust and Efficient Fine-Tuning for Pre-trained Natural Language Models through Principled
Regularized Optimization", arXiv 1911.03437.
Differs from the paper in: δ is added to the input of the first block, after the sum with the positions, its norm and
dropout; the norm of g is that of one example; δ and f̃(x) are computed without ordinary dropout, which stays on in the
two views that train the model.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.capabilities import ComparesViews, KeepsState, ProbesModel, RequiresModelLoss, views_of
from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Strength, largest, value_at
from ..core.step import MicroBatch, Step
from ..model.plan import Plan
from ..model.probe import Probe
from ..model.seams import Seams
from ._shared.averages import WeightAverage
from ._shared.by_parts import at_least_float32
from ._shared.divergence import Pair, check_head, pair_of
from ._shared.dropping import draws_like
from ._shared.noise import noise_of
from ._shared.predictions import Predictions, predictions_of
from ._shared.weights import reason_against, refuse_sharded, trained_weights

REPLACES_LABELS = ("label_smoothing", "hidden_mixup")

_TEACHER = "smart teacher"
_SCALE = 1024.0  # half precision underflows below 6e-8, and only the direction of the gradient counts


def ascended(delta: Tensor, gradient: Tensor, step_size: float, epsilon: float) -> Tensor:
    """clamp(δ + η g / ‖g‖∞, −ε, ε); an example whose gradient is zero or not finite does not move before the clamp.

    Args:
        delta: δ, [B, ...].
        gradient: g, of the same shape.
        step_size: η.
        epsilon: ε.
    """
    size = gradient.flatten(1).abs().amax(1).view(-1, *[1] * (gradient.dim() - 1))
    is_usable = size.isfinite() & (size > 0)
    moved = delta + step_size * gradient / size.masked_fill(~is_usable, 1)
    return torch.where(is_usable, moved, delta).clamp(-epsilon, epsilon)


class Teacher(WeightAverage):
    """The average θ̃ of the weights."""

    name = _TEACHER

    def __init__(self, beta: Strength) -> None:
        self.beta = beta
        self.reset()

    def is_averaged(self, step: Step) -> bool:
        return True

    def share(self, step: Step) -> float:
        return 1 - value_at(self.beta, step.progress)

    def weights(self, model: nn.Module) -> dict[str, Tensor]:
        """θ̃ by the names of parameters, in their precision."""
        own = dict(model.named_parameters())
        return {name: average.to(own[name].dtype) for name, average in self.evaluated_weights(model).items()}

    def on_step_begin(self, step: Step) -> None:
        """θ̃ is the current weights where training starts. Graphs read it at its address on the device."""
        if not self.evaluated_weights(step.model):
            with trained_weights(step):
                self.begin_average(step.model)
        self._on_device(step.model)


@dataclass
class SMART(ProbesModel, ComparesViews, RequiresModelLoss, KeepsState):
    """Smoothness-inducing adversarial regularisation, and a momentum teacher.

    Args:
        weight: λ of the adversarial part; a number from 0, or a schedule. With 0 there is one view
        mu: μ of the teacher; a number from 0, or a schedule
        epsilon: ε, the largest size of a number of the perturbation; a number from 0
        sigma: σ, the standard deviation of the first noise; a number from 0
        steps: K, ascent steps; a whole number from 1
        step_size: η, the size of an ascent step; a number from 0
        beta: β, the share of the teacher's weights that is kept in each step; a number from 0 to 1, or a schedule
    """

    name: ClassVar[str] = "smart"

    weight: Strength = hyper(1.0, search="log:0.1..10")
    mu: Strength = hyper(1.0, search="log:0.1..10")
    epsilon: float = hyper(1e-5, search="log:1e-6..1e-1")
    sigma: float = hyper(1e-5)
    steps: int = hyper(1, low=1)
    step_size: float = hyper(1e-3)
    beta: Strength = hyper(0.99, high=1)

    def reset(self) -> None:
        self._teacher = Teacher(self.beta)

    @property
    def views(self) -> int:
        return 2 if largest(self.weight) > 0 else 1

    @property
    def requires_model_loss(self) -> tuple[str, str] | None:
        needs = "SMART.weight is not 0, for which the loss must be the model's own"
        return (needs, "set SMART(weight=0)") if self.views > 1 else None

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        check_head("SMART", model)
        if largest(self.mu) > 0:
            refuse_sharded("SMART", model)

    def refuses(self, other: Regularizer) -> str | None:
        if self.views > 1 and views_of(other) > 1:
            return (
                f"of which SMART trains on the first of two views alone and {type(other).__name__} on all; set "
                "SMART(weight=0), or choose one of them."
            )
        if self.views > 1 and other.name in REPLACES_LABELS:
            return (
                f"of which SMART trains on the model's own loss and {type(other).__name__} replaces its labels; set "
                "SMART(weight=0), or choose one of them."
            )
        return reason_against(self, other)

    def capture_key(self, step: Step) -> Hashable:
        return self._is_adversarial(step), self._has_teacher(step)

    def probes(self, step: Step) -> bool:
        return self._is_adversarial(step) or self._has_teacher(step)

    def _is_adversarial(self, step: Step) -> bool:
        return value_at(self.weight, step.progress) > 0

    def _has_teacher(self, step: Step) -> bool:
        return value_at(self.mu, step.progress) > 0

    def on_step_begin(self, step: Step) -> None:
        if largest(self.mu) > 0:
            if not self._teacher.evaluated_weights(step.model):
                refuse_sharded("SMART", step.model)
            self._teacher.on_step_begin(step)

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if not self.probes(step):
            return Plan()
        probe = batch.probe()
        delta = self._adversarial(probe, batch) if self._is_adversarial(step) else None
        taught = self._taught(probe, batch) if self._has_teacher(step) else None

        def perturb(x: Tensor) -> Tensor:
            if taught is not None:
                step.seams.kept[_TEACHER] = taught
            if delta is None:
                return x
            return torch.cat([x[: len(delta)], x[len(delta) :] + delta.to(x.dtype)])

        return Plan(edits={-1: (perturb,)})

    def _adversarial(self, probe: Probe, batch: MicroBatch) -> Tensor:
        """δ, for the examples of one view."""
        with probe.untracked(training=False):
            with torch.no_grad():
                clean = self._predictions(probe, batch, Plan())
            delta: Tensor | None = None
            for _ in range(self.steps):
                delta = self._step(probe, batch, clean, delta)
        assert delta is not None
        return delta

    def _step(self, probe: Probe, batch: MicroBatch, clean: Predictions, delta: Tensor | None) -> Tensor:
        """Return one ascent step from δ; None: from the first noise."""
        used: list[Tensor] = []

        def perturb(x: Tensor) -> Tensor:
            start = self._noise(x, batch) if delta is None else delta
            used.append(start.detach().requires_grad_())
            return x + used[0].to(x.dtype)

        with torch.enable_grad():
            noisy = self._predictions(probe, batch, Plan(edits={-1: (perturb,)}))
            pair = Pair(noisy.head, torch.cat([noisy.logits, clean.logits]), None, noisy.counted)
            (gradient,) = torch.autograd.grad(pair.both_ways() * _SCALE, used[:1])
        return ascended(used[0].detach(), gradient, self.step_size, self.epsilon)

    def _noise(self, x: Tensor, batch: MicroBatch) -> Tensor:
        one_view = replace(batch, step=replace(batch.step, views=1))
        noise = noise_of(draws_like(x, one_view, -1, self.name), self.sigma, "normal")
        return noise.to(torch.promote_types(x.dtype, torch.float32))

    def _taught(self, probe: Probe, batch: MicroBatch) -> Tensor:
        """Return the logits of the teacher."""
        with probe.untracked(training=False), torch.no_grad():
            return self._predictions(probe, batch, Plan(), self._teacher.weights(batch.step.model)).logits

    def _predictions(
        self, probe: Probe, batch: MicroBatch, plan: Plan, weights: dict[str, Tensor] | None = None
    ) -> Predictions:
        outputs, _ = probe.forward(plan, weights=weights)
        return predictions_of(outputs, replace(batch, inputs=probe.batch))

    def penalty(self, outputs: Any, batch: MicroBatch) -> Tensor | None:
        step = batch.step
        if self.views == 1 and not self._has_teacher(step):
            return None
        pair = pair_of(outputs, batch)
        total = pair.from_mean_to_first() if self.views > 1 else at_least_float32(pair.logits).new_zeros(())
        if self._is_adversarial(step):
            total = total + step.strength(f"{self.name} weight", self.weight) * pair.both_ways()
        taught = step.seams.kept.get(_TEACHER)  # none where the model has skipped its first block by itself
        if taught is not None:
            first = pair.logits.chunk(pair.views)[0]
            beside_teacher = Pair(pair.head, torch.cat([first, taught]), None, pair.counted)
            total = total + step.strength(f"{self.name} mu", self.mu) * beside_teacher.both_ways()
        return total

    def on_step_end(self, step: Step) -> None:
        if largest(self.mu) > 0:
            self._teacher.on_step_end(step)

    def on_close(self) -> None:
        self.reset()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return self._teacher.state()

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self._teacher.load_state(tensors, values)
