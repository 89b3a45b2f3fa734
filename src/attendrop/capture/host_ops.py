"""Replaces and records the CPU operations of a forward while it is captured."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_DTYPES = {bool: torch.bool, int: torch.int64}


class HostOps(TorchFunctionMode):
    """Replaces copies of single numbers to the device, which a graph cannot have, and notes draws on the CPU.

    Many forwards write `torch.tensor(0.0, device=...)`. Inside, such a tensor is filled on the device. BART and its
    relatives draw a number on the CPU in each layer, also where no layer is ever skipped (`layerdrop` is 0).

    Args:
        device: the device.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        self.draws: list[tuple[Any, ...]] = []  # the arguments of `torch.rand` on the CPU

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and self._is_number_for_device(args, kwargs):
            value = args[0]
            dtype = kwargs.get("dtype") or _DTYPES.get(type(value), torch.get_default_dtype())
            return torch.full((), value, dtype=dtype, device=kwargs["device"])
        if func is torch.rand and not kwargs:
            self.draws.append(args)
        return func(*args, **kwargs)

    def _is_number_for_device(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        if len(args) != 1 or not isinstance(args[0], (bool, int, float)) or not set(kwargs) <= {"dtype", "device"}:
            return False
        device = kwargs.get("device")
        return device is not None and torch.device(device).type == self._device.type


def repeat(draws: list[tuple[Any, ...]]) -> None:
    """Advance the global generator of the CPU as these draws did."""
    for arguments in draws:
        torch.rand(*arguments)


def draws_only(draws: list[tuple[Any, ...]], before: Tensor) -> bool:
    """Return whether these draws alone have changed the CPU's generator, whose state was `before`."""
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    repeat(draws)
    return torch.equal(torch.get_rng_state(), after)
