"""Context managers for eval mode and for weights without gradients."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Put `network` into eval mode for the block, then restore the mode of each module."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextmanager
def frozen(network: nn.Module) -> Iterator[None]:
    """Turn off the gradients of all parameters of `network` for the block, so that a pass saves nothing for them.

    A network that is sharded over processes stays as it is: its wrappers read these flags when they gather weights.
    """
    trained = [] if is_sharded(network) else [p for p in network.parameters() if p.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter in trained:
            parameter.requires_grad_(True)


def is_sharded(network: nn.Module) -> bool:
    """Return whether the parameters are divided among processes (FSDP, DeepSpeed)."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    from torch.distributed.fsdp import FSDPModule, FullyShardedDataParallel

    is_wrapped = any(isinstance(module, (FSDPModule, FullyShardedDataParallel)) for module in network.modules())
    return is_wrapped or any(hasattr(parameter, "ds_id") for parameter in network.parameters())
