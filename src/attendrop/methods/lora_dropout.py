"""LoRA Dropout: inputs and outputs of the low-rank change of each weight are dropped; the loss is a mean over N masks.

    W x + s · diag(m_B) B A diag(m_A) x,    m ~ Bernoulli(1 − p) / (1 − p)        s: LoRA's scaling
    L = 1/N Σ_n CE(masks n)

A diag(m_A) drops columns of A: numbers of the layer's input. diag(m_B) B drops rows of B: numbers of its output. The
rank stays as it is, and so does the pretrained weight W. A mask is the same for all examples and tokens of a step.

Lin et al., "LoRA Dropout as a Sparsity Regularizer for Overfitting Control", arXiv 2404.09610.
Differs from the paper in: what is kept is divided by 1 − p (`rescale=False`: not), because the model is evaluated with
the whole adapter; the paper's ensemble of several masks at test time is not part of it.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from ..core.regularizer import Regularizer
from ..core.schedule import Strength, as_strength, largest, value_at
from ..core.step import MicroBatch, Step
from ..kernels.draws import as_factors, uniform
from ..model.plan import Edit, Plan
from ..model.seams import Seams
from ..utils.checks import check_choice, check_whole


@dataclass(frozen=True)
class Factors:
    """The names of the two factors of a low-rank change."""

    a: str
    b: str


def lora_factors(model: nn.Module) -> list[Factors]:
    """The trained factors of all LoRA layers, in the order of the modules; of peft's ordinary linear layers alone."""
    modules = dict(model.named_modules())
    found = []
    for name, module in modules.items():
        layer, separator, adapter = name.partition(".lora_A.")
        if separator and isinstance(module, nn.Linear) and module.weight.requires_grad:
            found.append(Factors(name, f"{layer}.lora_B.{adapter}"))
    return [pair for pair in found if isinstance(modules.get(pair.b), nn.Linear)]


def variant_of(model: nn.Module) -> str | None:
    """The name of a LoRA layer that is of another kind, such as DoRA; None where all are ordinary."""
    return next((name for name, module in model.named_modules() if getattr(module, "lora_variant", None)), None)


@dataclass
class LoRADropout(Regularizer):
    """Dropout of the inputs and outputs of LoRA's factors.

    Args:
        p: probability that an input of A, or an output of B, is dropped; a number from 0 to below 1, or a schedule
        samples: N, the masks that the loss is a mean over; a whole number from 1
        rescale: whether what is kept is divided by 1 − p
    """

    name: ClassVar[str] = "lora_dropout"

    p: Strength = 0.5
    samples: int = 1
    rescale: bool = True

    def __post_init__(self) -> None:
        self.p = as_strength("LoRADropout", "p", self.p, 0, 1, is_below=True)
        check_whole("LoRADropout.samples", self.samples, 1)
        check_choice("LoRADropout.rescale", self.rescale, (True, False))
        self.reset()

    def reset(self) -> None:
        self._factors: list[Factors] = []

    @property
    def views(self) -> int:
        return self.samples if largest(self.p) > 0 else 1

    def check(self, model: nn.Module, seams: Seams, epochs: int | None) -> None:
        self._factors = lora_factors(model)
        if not self._factors:
            raise ValueError(
                f"{seams.name} has no LoRA layer that is trained, so LoRADropout has nothing to drop; add adapters "
                "with peft's get_peft_model first."
            )
        variant = variant_of(model)
        if variant is not None:
            raise ValueError(
                f"{variant} of {seams.name} is a variant of LoRA such as DoRA, for which LoRADropout is not defined; "
                "use peft's ordinary LoraConfig."
            )
        seams.open_linear(model, [name for pair in self._factors for name in (pair.a, pair.b)])

    def refuses(self, other: Regularizer) -> str | None:
        if 2 < self.views != other.views > 1:
            return (
                f"of which {type(other).__name__} compares two views and LoRADropout draws {self.views}; set "
                "LoRADropout.samples to 1 or 2."
            )
        return None

    def capture_key(self, step: Step) -> Hashable:
        return value_at(self.p, step.progress) > 0

    def plan(self, batch: MicroBatch) -> Plan:
        step = batch.step
        if value_at(self.p, step.progress) == 0:
            return Plan()
        p = step.strength(f"{self.name} p", self.p)
        return Plan(
            linear_inputs={pair.a: (self._drop(step, site, "A", p),) for site, pair in enumerate(self._factors)},
            linear_outputs={pair.b: (self._drop(step, site, "B", p),) for site, pair in enumerate(self._factors)},
        )

    def _drop(self, step: Step, site: int, factor: str, p: float | Tensor) -> Edit:
        """An edit that multiplies x, [views · rows, ..., d], by one mask of width d for each view."""
        key = step.key(site, f"{self.name} {factor}")

        def drop(x: Tensor) -> Tensor:
            views = torch.arange(step.views, device=x.device)
            draws = uniform(key, views, (x.shape[-1],), x.device)
            mask = as_factors(draws, p) if self.rescale else draws >= p
            return (x.reshape(step.views, -1, x.shape[-1]) * mask.unsqueeze(1).to(x.dtype)).view(x.shape)

        return drop
