"""Copies from the CPU to a device that do not block the CPU."""

from __future__ import annotations

import torch
from torch import Tensor


def to_device_async(x: Tensor, device: torch.device) -> Tensor:
    """Return a CPU tensor on `device`. A GPU copies it from pinned memory while the CPU continues."""
    return x.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else x.to(device)
