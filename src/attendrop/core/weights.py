"""Weights of a model that are replaced in place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn


@torch.no_grad()
def write_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Write `weights` over the parameters of the same names, whose addresses stay.

    Args:
        model: the model.
        weights: values by the names of parameters, on any device and in any precision.
    """
    if not weights:
        return
    parameters = dict(model.named_parameters())
    for name, values in weights.items():
        parameters[name].copy_(values)


@contextmanager
def replaced_weights(model: nn.Module, weights: Mapping[str, Tensor]) -> Iterator[None]:
    """Give the model `weights` for the block, and its own again after it, bit for bit.

    Args:
        model: the model.
        weights: values by the names of parameters.
    """
    parameters = dict(model.named_parameters()) if weights else {}
    own = {name: parameters[name].detach().clone() for name in weights}
    try:
        write_weights(model, weights)
        yield
    finally:
        write_weights(model, own)
