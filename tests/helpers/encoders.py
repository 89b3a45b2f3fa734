"""BERTs with several blocks, for what is done with blocks."""

from __future__ import annotations

import copy
from typing import Any

import torch

from . import zoo


def logits(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    batch = {name: x.to(model.dtype) if x.is_floating_point() else x for name, x in batch.items()}
    with torch.no_grad():
        return model(**batch).logits


def deep(kind: str, layers: int = 4, **fields: Any) -> Any:
    """A BERT of this kind of head, with several blocks."""
    model = zoo.make_model(kind)
    config = copy.deepcopy(model.config)
    config.num_hidden_layers = layers
    for name, value in fields.items():
        setattr(config, name, value)
    torch.manual_seed(1)
    made = type(model)(config).eval()
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if parameter.dim() == 2 and "embed" not in name:
                parameter.mul_(5)
    return made
