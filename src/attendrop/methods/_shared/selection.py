"""The weights that a method chooses from all of a model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ...model.seams import Seams


def parameters_of_blocks(model: nn.Module, seams: Seams) -> dict[str, nn.Parameter]:
    """Return the trained parameters inside of the model's blocks, by name."""
    inside = tuple(f"{block}." for block in seams.blocks)
    return {name: p for name, p in model.named_parameters() if p.requires_grad and name.startswith(inside)}


def refuse_without_blocks(owner: str, model: nn.Module, seams: Seams) -> None:
    """Raise a `ValueError` if no parameter in the model's blocks is trained."""
    if not parameters_of_blocks(model, seams):
        raise ValueError(
            f"{seams.name} has no parameter in its blocks that is trained, so {owner} has nothing to choose from."
        )


def largest_share(scores: Mapping[str, Tensor], p: float) -> dict[str, Tensor]:
    """Return True for the share p of all elements with the largest scores, and for ties with the smallest of these."""
    everything = torch.cat([score.flatten() for score in scores.values()])
    count = round(p * everything.numel())
    if count == 0:
        return {name: torch.zeros_like(score, dtype=torch.bool) for name, score in scores.items()}
    threshold = everything.kthvalue(everything.numel() - count + 1).values
    return {name: score >= threshold for name, score in scores.items()}
