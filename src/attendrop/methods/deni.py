"""DENI: delayed ensemble with noisy interpolation. For parts of training, noisy copies are trained beside the model.

    copy        θ_k = θ + s · std(θ) · ε_k,    ε_k ~ N(0, 1),    k = 2 … K
    train       all K networks take the same steps, on the same examples
    aggregate   θ = 1/K Σ_k θ_k

Noisy interpolation: from `start` to `end` of training, copies are made, trained for a period, and aggregated; in the
next period the model is trained alone; and so on. s² is the variance divided by the number of the step. Delayed
ensemble: at `ensemble` the last copies are made, s² is the variance, and all are trained until the end.

Pecher, Cegin, Belanec, Simko, Srba and Bielikova, "Fighting Randomness with Randomness: Mitigating Optimisation
Instability of Fine-Tuning using Delayed Ensemble and Noisy Interpolation", arXiv 2406.12471.
Differs from the paper in: at the end the weights are averaged too, where the paper lets the K models vote, so that the
result is one ordinary model; copies begin with the optimizer's state of the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.capabilities import AveragesWeights, KeepsState
from ..core.hyper import hyper
from ..core.networks import TrainsNetworks
from ..core.regularizer import Regularizer
from ..core.schedule import Progress
from ..core.state import load_optimizer_tensors, optimizer_tensors
from ..core.step import MicroBatch, Step
from ..model.seams import Seams
from ..model.sites import pretrained_part
from ..random import key_of
from ._shared.averages import refuse_frozen, trained_parameters
from ._shared.noise import noise_of
from ._shared.twin import Twin
from ._shared.weights import draws, reason_against, refuse_sharded

NOISE_ON = ("head", "trained")
ENSEMBLE = -1  # the round of the delayed ensemble; those of the interpolation are 0, 1, …


@dataclass
class DENI(TrainsNetworks, AveragesWeights, KeepsState):
    """Noisy copies that are trained beside the model and averaged with it.

    Args:
        models: K, the networks that are trained at a time, the model counted; a whole number from 1; 1: plain training
        noise: the variance of the noise, as a share of the variance of each weight; a number from 0
        noise_on: the weights that get noise: "head", or "trained", all weights that are trained
        start: the share of training after which noisy interpolation begins; a number from 0 to 1
        end: the share of training after which no more copies are made for it; a number from 0 to 1
        every: the length of a period, as a share of training; a number above 0 and at most 1
        ensemble: the share of training after which the delayed ensemble begins; a number from 0 to 1; 1: there is none
    """

    name: ClassVar[str] = "deni"
    competes: ClassVar[bool] = False

    models: int = hyper(10, low=1, search="2..10")
    noise: float = hyper(0.15, search="log:0.01..0.5")
    noise_on: str = hyper("head", choices=NOISE_ON)
    start: float = hyper(0.3, high=1)
    end: float = hyper(0.6, high=1)
    every: float = hyper(0.1, above=0, high=1)
    ensemble: float = hyper(0.9, high=1)

    def reset(self) -> None:
        self._copies: list[Twin] = []  # they stay for the whole run: captured graphs refer to them
        self._is_averaged = False  # whether the copies are trained now
        self._loaded: dict[str, Tensor] = {}

    # ---- what it needs -----------------------------------------------------------------------------------------

    def networks(self) -> dict[str, nn.Module]:
        return {f"copy_{number}": twin.network for number, twin in enumerate(self._copies)}

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        refuse_sharded("DENI", model)
        if self.models == 1:
            return
        refuse_frozen("DENI", model, seams)
        if not any(True for _ in self._noisy(model)):
            raise ValueError(
                f"DENI.noise_on is {self.noise_on!r}, and {seams.name} has no head whose weights are trained; it must "
                "be 'trained'."
            )

    def refuses(self, other: Regularizer) -> str | None:
        return super().refuses(other) or reason_against(self, other)

    def _noisy(self, model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the weights that get noise."""
        inside = {id(parameter) for parameter in pretrained_part(model).parameters()}
        for name, parameter in trained_parameters(model).items():
            if self.noise_on == "trained" or id(parameter) not in inside:
                yield name, parameter

    # ---- when --------------------------------------------------------------------------------------------------

    def _round(self, progress: Progress) -> int | None:
        """Return the round to which a step belongs; None: the model is trained alone."""
        total = progress.total_steps
        start, end, ensemble = (round(share * total) for share in (self.start, self.end, self.ensemble))
        if self.models == 1 or progress.step >= total:
            return None
        if progress.step >= ensemble:
            return ENSEMBLE
        period = max(1, round(self.every * total))
        number, since = divmod(progress.step - start, 2 * period)
        is_inside = number >= 0 and start + number * 2 * period < end
        return number if is_inside and since < period else None

    def _neighbour(self, progress: Progress, by: int) -> int | None:
        """Return the round of the step before (-1) or after (1)."""
        return self._round(Progress(progress.step + by, progress.total_steps)) if progress.step + by >= 0 else None

    # ---- the step ----------------------------------------------------------------------------------------------

    def on_step_begin(self, step: Step) -> None:
        number = self._round(step.progress)
        if self._loaded:
            self._restore(step)
        elif number is not None and number != self._neighbour(step.progress, -1):
            self._make_copies(step, number)
        self._is_averaged = number is not None and bool(self._copies)

    def _make_copies(self, step: Step, number: int) -> None:
        refuse_sharded("DENI", step.model)
        if not self._copies:
            self._copies = [Twin(step) for _ in range(self.models - 1)]
        else:
            for twin in self._copies:
                twin.make_equal(step, to_model=False)
        variance = self.noise if number == ENSEMBLE else self.noise / (step.progress.step + 1)
        for copy, twin in enumerate(self._copies):
            for name, parameter in self._noisy(twin.network):
                add_noise(parameter, variance**0.5, step, f"{self.name} {copy} {name}")

    def on_batch(self, batch: MicroBatch) -> None:
        if self._is_averaged:
            step = batch.step
            for copy, twin in enumerate(self._copies):
                # Other draws of dropout for each copy, process and micro-batch.
                twin.backward(batch, key_of(step.seed, step.progress.step, batch.first_position, f"deni {copy}"))

    def on_gradients(self, step: Step) -> None:
        if self._is_averaged:
            for twin in self._copies:
                twin.step(step)

    @torch.no_grad()
    def on_step_end(self, step: Step) -> None:
        number = self._round(step.progress)
        if self._is_averaged and number != ENSEMBLE and number != self._neighbour(step.progress, 1):
            parameters = trained_parameters(step.model)
            for name, mean in self._means(step.model).items():
                parameters[name].copy_(mean)
            self._is_averaged = False

    # ---- the average -------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _means(self, model: nn.Module) -> dict[str, Tensor]:
        """1/K Σ_k θ_k, in float32 at least."""
        others = [dict(twin.network.named_parameters()) for twin in self._copies]
        means = {}
        for name, parameter in trained_parameters(model).items():
            total = parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32), copy=True)
            for weights in others:
                total += weights[name]
            means[name] = total / self.models
        return means

    def evaluated_weights(self, model: nn.Module) -> dict[str, Tensor]:
        return self._means(model) if self._is_averaged else {}

    # ---- checkpoints -------------------------------------------------------------------------------------------

    def on_close(self) -> None:
        self.reset()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        tensors: dict[str, Tensor] = {}
        for number, twin in enumerate(self._copies if self._is_averaged else ()):
            weights = trained_parameters(twin.network)
            tensors |= {f"{number}.weight.{name}": parameter.detach() for name, parameter in weights.items()}
            tensors |= {f"{number}.optimizer.{name}": x for name, x in optimizer_tensors(twin.optimizer).items()}
        return tensors, {}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self._loaded = dict(tensors)  # the copies are made when the first step begins: now there is no optimizer

    @torch.no_grad()
    def _restore(self, step: Step) -> None:
        self._copies = [Twin(step) for _ in range(self.models - 1)]
        for number, twin in enumerate(self._copies):
            for name, parameter in trained_parameters(twin.network).items():
                parameter.copy_(self._loaded[f"{number}.weight.{name}"])
            prefix = f"{number}.optimizer."
            state = {name.removeprefix(prefix): x for name, x in self._loaded.items() if name.startswith(prefix)}
            load_optimizer_tensors(twin.optimizer, state)
        self._loaded = {}


@torch.no_grad()
def add_noise(weight: Tensor, scale: float, step: Step, stream: str) -> None:
    """Add scale · std(W) · ε to a weight, ε ~ N(0, 1). Every process draws the same."""
    size = scale * weight.to(torch.promote_types(weight.dtype, torch.float32)).std(correction=0)
    rows = weight.view(1) if weight.dim() == 0 else weight
    for part, uniform in draws(step, stream, rows.shape, weight.device):
        rows[part] += noise_of(uniform, size, "normal").to(weight.dtype)
