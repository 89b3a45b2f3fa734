"""Child-Tuning: in each step, only a part of the weights, the child network, is updated.

    F (task-free)    g ← g ⊙ M / p,  M ~ Bernoulli(p) for each weight and step
    D (task-driven)  g ← g ⊙ M,      M = 1 for the share p of the blocks' weights with the largest Fisher information
                     F_i = 1/|D| Σ_j (∂ log P(y_j | x_j) / ∂w_i)²,    computed once, when training starts

p is the share that is *trained*. With D, a weight outside of the child does not change, whatever the optimizer does
without a gradient: weight decay, for example.

Xu et al., "Raise a Child in Large Language Model: Towards Effective and Generalizable Fine-tuning", arXiv 2109.05687.
Differs from the paper in: weight decay does not move masked weights (D); F_i is estimated on `samples` examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..core.capabilities import KeepsState
from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Schedule, Strength, values_of
from ..core.step import Loop, Step
from ..kernels.random_scaling import dropout_
from ..model.modes import evaluating
from ..model.plan import Plan
from ..model.seams import Seams
from ..random import preserved
from ..utils.batches import batch_size, rows
from ..utils.distributed import sum_over_processes
from ._shared.selection import largest_share, parameters_of_blocks, refuse_without_blocks
from ._shared.weights import end_mixing, in_graph, reason_against, refuse_sharded

VARIANTS = ("F", "D")
_SCALE = 1024.0  # of the loss, against underflow in float16; a power of two, so that the division is exact
ChildWeight = tuple[nn.Parameter, Tensor, Tensor]  # a weight, its values before the optimizer's step, its child
_ALL = 1 << 62  # more examples than any data set has


def fisher(
    model: nn.Module, batches: Iterator[Mapping[str, Any]], parameters: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Return the sum over the batches of the squared gradient of their mean loss, for each element of `parameters`."""
    total = {name: torch.zeros_like(parameter, dtype=torch.float32) for name, parameter in parameters.items()}
    for batch in batches:
        loss = model(**batch)["loss"]
        gradients = torch.autograd.grad(loss * _SCALE, list(parameters.values()), allow_unused=True)
        for score, gradient in zip(total.values(), gradients, strict=True):
            if gradient is not None:
                score += (gradient.float() / _SCALE).square()
    return total


@dataclass
class ChildTuning(KeepsState):
    """Masked gradients.

    Args:
        p: share of the weights that is updated; a number above 0, to 1, or a schedule with variant "F"
        variant: "F": a random child network in each step; "D": the one that matters most for the task, chosen once
        samples: with "D": training examples for the Fisher information, a whole number from 0; 0: all of them
        fisher_batch: with "D": examples for each gradient that is squared, a whole number from 1; 1 is the paper's
    """

    name: ClassVar[str] = "child_tuning"

    p: Strength = hyper(0.3, high=1, search="0.1..0.5", paper="0.2,0.3,0.4")
    variant: str = hyper("F", choices=VARIANTS, search="F,D")
    samples: int = hyper(512)
    fisher_batch: int = hyper(1, low=1)

    def __post_init__(self) -> None:
        given: Any = self.p
        super().__post_init__()
        if 0 in values_of(self.p):
            raise ValueError(f"ChildTuning.p is {given!r}; it is the share of weights that train, and must be above 0.")
        if self.variant == "D" and isinstance(self.p, Schedule):
            raise ValueError(
                f"ChildTuning.p is {given!r}; with variant='D' the child is fixed, and p must be a number."
            )

    def reset(self) -> None:
        self._child: dict[str, Tensor] = {}  # True where a weight is trained
        self._weights: list[ChildWeight] = []
        self._before: list[ChildWeight] = []  # those whose values outside of the child are to be restored
        # Kept, because walking through a model takes longer than a captured step can wait.
        self._model: nn.Module | None = None
        self._parameters: list[tuple[str, nn.Parameter]] = []

    @property
    def _chooses_child(self) -> bool:
        return self.variant == "D" and self.p != 1

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        refuse_sharded("ChildTuning", model)
        if self._chooses_child:
            refuse_without_blocks("ChildTuning(variant='D')", model, seams)

    def check_loop(self, model: nn.Module, loop: Loop) -> None:
        if self._chooses_child and (loop.calls_model or loop.packs_examples):
            reason = "the loss calls the model by itself" if loop.calls_model else "rows hold several examples"
            raise ValueError(
                f"ChildTuning.variant is 'D', which needs the loss of small groups of examples, and in this trainer "
                f"{reason}; set variant='F'."
            )

    def refuses(self, other: Regularizer) -> str | None:
        return reason_against(self, other)

    def on_step_begin(self, step: Step) -> None:
        if self._model is not step.model:
            refuse_sharded("ChildTuning", step.model)
            self._model, self._parameters = step.model, list(step.model.named_parameters())
        if self._chooses_child and not self._child and step.loop.examples is None:
            raise ValueError(
                "ChildTuning.variant is 'D', which draws training examples, and the loop provides none; use "
                "RegularizedTrainer, pass Loop(examples=...), or set variant='F'."
            )

    @torch.no_grad()
    def on_gradients(self, step: Step) -> None:
        if self.p == 1:
            return
        end_mixing(step)
        if self.variant == "F":
            self._mask_at_random(step)
            return
        if not self._child:
            # Not in `on_step_begin`, where another method may still change the weights before training starts.
            self._child = self._choose_child(step)
        if not self._weights:
            parameters = dict(step.model.named_parameters())
            self._child = {name: child.to(parameters[name].device) for name, child in self._child.items()}
            self._weights = [
                (parameters[name], torch.empty_like(parameters[name]), child) for name, child in self._child.items()
            ]
        weights = self._weights
        gradients = [parameter.grad for parameter, _, _ in weights if parameter.grad is not None]
        tensors = [x for weight in weights for x in weight] + gradients
        in_graph(step, (self.name, "child"), tensors, lambda step: _mask_outside(weights))
        self._before = weights

    def _mask_at_random(self, step: Step) -> None:
        gradients = {name: p.grad for name, p in self._parameters if p.grad is not None}

        def work(step: Step) -> None:
            p = step.strength((self.name, "p"), self.p)
            for name, gradient in gradients.items():
                dropout_(gradient, p, step.key(0, f"child_tuning {name}"))

        in_graph(step, (self.name, "random"), list(gradients.values()), work)

    def _choose_child(self, step: Step) -> dict[str, Tensor]:
        assert step.loop.examples is not None
        assert not isinstance(self.p, Schedule)
        parameters = parameters_of_blocks(step.model, step.seams)
        batch = step.loop.examples("train", self.samples or _ALL, step.shared_generator(self.name))
        batches = _split(batch, self.fisher_batch, step.loop.world)
        device = step.device
        with preserved(device), evaluating(step.model), step.seams.applied(Plan()), torch.enable_grad():
            scores = fisher(step.model, batches, parameters)
        for score in scores.values():
            sum_over_processes(score, step.loop.world)
        return largest_share(scores, self.p)

    def on_step_end(self, step: Step) -> None:
        before = self._before
        tensors = [x for parameter, values, child in before for x in (parameter, values, child)]
        in_graph(step, (self.name, "undo"), tensors, lambda step: _undo(before))
        self._before = []

    def on_close(self) -> None:
        _undo(self._before)
        self.reset()

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        return dict(self._child), {}

    def load_state(self, tensors: dict[str, Tensor], values: dict[str, Any]) -> None:
        self._child = tensors


@torch.no_grad()
def _mask_outside(weights: list[ChildWeight]) -> None:
    """Set gradients outside of the child to zero, and keep the values of the weights."""
    for parameter, values, child in weights:
        if parameter.grad is not None:
            parameter.grad.mul_(child)
        values.copy_(parameter)


@torch.no_grad()
def _undo(weights: list[ChildWeight]) -> None:
    """Restore weights outside of the child to their values before the optimizer's step."""
    for parameter, values, child in weights:
        parameter.copy_(torch.where(child, parameter, values))


def _split(batch: Mapping[str, Any], size: int, world: int) -> Iterator[dict[str, Any]]:
    """Return part of `size` examples of the batch: all of them, or with several processes those of this process."""
    examples = batch_size(batch)
    rank = torch.distributed.get_rank() if world > 1 else 0
    for first in range(rank * size, examples, world * size):
        yield rows(batch, first, first + size, examples)
