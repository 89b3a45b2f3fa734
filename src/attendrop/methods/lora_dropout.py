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

from ..core.capabilities import ComparesViews, views_of
from ..core.hyper import hyper
from ..core.regularizer import Regularizer
from ..core.schedule import Strength, largest, value_at
from ..core.step import MicroBatch, Step
from ..kernels.draws import as_factors, uniform
from ..model.plan import Edit, Plan
from ..model.seams import Seams


@dataclass(frozen=True)
class Factor:
    """One of the two factors of a low-rank change.

    Args:
        name: the name of the module.
        width: of the dropped tensor: the inputs of A, the outputs of B.
    """

    name: str
    width: int


def lora_factors(model: nn.Module) -> list[tuple[Factor, Factor]]:
    """Return the trained factors of all LoRA layers, in module order; only of peft's ordinary linear layers."""
    modules = dict(model.named_modules())
    factors = []
    for name, a in modules.items():
        layer, separator, adapter = name.partition(".lora_A.")
        other = f"{layer}.lora_B.{adapter}"
        b = modules.get(other)
        if separator and isinstance(a, nn.Linear) and isinstance(b, nn.Linear) and a.weight.requires_grad:
            factors.append((Factor(name, a.in_features), Factor(other, b.out_features)))
    return factors


def variant_of(model: nn.Module) -> str | None:
    """Return the name of a LoRA layer that is of another kind, such as DoRA; None where all are ordinary."""
    return next((name for name, module in model.named_modules() if getattr(module, "lora_variant", None)), None)


@dataclass
class LoRADropout(ComparesViews):
    """Dropout of the inputs and outputs of LoRA's factors.

    Args:
        p: probability that an input of A, or an output of B, is dropped; a number from 0 to below 1, or a schedule
        samples: N, the masks that the loss is a mean over; a whole number from 1
        rescale: whether what is kept is divided by 1 − p
    """

    name: ClassVar[str] = "lora_dropout"

    p: Strength = hyper(0.5, below=1, search="0.1..0.7")
    samples: int = hyper(1, low=1, search="1,2,4")
    rescale: bool = hyper(True)

    def reset(self) -> None:
        self._factors: list[tuple[Factor, Factor]] = []

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
        seams.open_linear(model, [factor.name for pair in self._factors for factor in pair])

    def refuses(self, other: Regularizer) -> str | None:
        if 2 < self.views != views_of(other) > 1:
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
            linear_inputs=self._edits(step, "A", [a for a, _ in self._factors], p),
            linear_outputs=self._edits(step, "B", [b for _, b in self._factors], p),
        )

    def _edits(self, step: Step, stream: str, factors: list[Factor], p: float | Tensor) -> dict[str, tuple[Edit, ...]]:
        """Return the edit of each factor, by its name. Masks of the same width are drawn at once."""
        edits: dict[str, tuple[Edit, ...]] = {}
        views = torch.arange(step.views, device=step.device)
        for width in {factor.width: None for factor in factors}:
            sites = [site for site, factor in enumerate(factors) if factor.width == width]
            keys = step.keys(sites, f"{self.name} {stream}", step.device)
            draws = uniform(keys, views, (width,), step.device)  # [sites, views, width]
            masks = Masks(as_factors(draws, p) if self.rescale else draws >= p)
            edits |= {factors[site].name: (masks.drop(number),) for number, site in enumerate(sites)}
        return edits


class Masks:
    """Masks for several factors.

    Args:
        values: [factors, views, width].
    """

    def __init__(self, values: Tensor) -> None:
        self._values = values.unsqueeze(2)
        self._converted: dict[tuple[torch.device, torch.dtype], Tensor] = {}  # all at once

    def drop(self, number: int) -> Edit:
        """Return an edit that multiplies x, [views · rows, ..., width], by the masks of a factor."""

        def edit(x: Tensor) -> Tensor:
            kind = x.device, x.dtype
            if kind not in self._converted:
                self._converted[kind] = self._values.to(*kind)
            mask = self._converted[kind][number]
            return (x.reshape(len(mask), -1, x.shape[-1]) * mask).view(x.shape)

        return edit
