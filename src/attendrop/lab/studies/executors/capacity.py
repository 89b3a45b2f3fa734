"""Determines how many workers fit on the local devices."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ....errors import UserError
from ....utils.processes import cpu_count

_MOST_ON_ONE_GPU = 12  # more workers would contend for it
_MOST_ON_CPU = 8
_CPU_WORKER = 2 << 30  # bytes of memory that a worker with a small model needs
_GPU_CONTEXT = 1 << 30  # bytes on a GPU beside torch's own memory: the context, kernels, captured graphs
_KEPT_FREE = 0.1  # of the memory of a GPU


@dataclass
class Device:
    """A device and its capacity.

    Args:
        name: "cpu" or "cuda".
        visible: The value of CUDA_VISIBLE_DEVICES for its workers; None for the CPU.
        limit: The current estimate of the number of workers that fit.
        most: The upper bound of `limit`.
        is_measured: Whether the limit is derived from the measured memory of runs.
        workers: The number of running workers.
    """

    name: str
    visible: str | None
    limit: int
    most: int
    is_measured: bool = False
    workers: int = 0
    footprint: int = 0  # bytes of one worker on the GPU, the most that was seen
    foreign: int | None = None  # bytes that other programs use

    @property
    def torch_device(self) -> str:
        """The device name inside a worker, which sees one GPU."""
        return "cpu" if self.visible is None else "cuda:0"

    def learn(self, memory: dict[str, int] | None) -> None:
        """Update the limit from the memory of a run.

        Args:
            memory: The result of `gpu_memory` in the worker after the run.
        """
        if memory is None or not self.is_measured:
            return
        if self.foreign is None:  # the first run uses the GPU alone
            used = memory["total"] - memory["free"]
            self.foreign = max(0, used - memory["reserved"] - _GPU_CONTEXT)
        self.footprint = max(self.footprint, memory["peak"] + _GPU_CONTEXT)
        room = memory["total"] * (1 - _KEPT_FREE) - self.foreign
        self.limit = max(1, min(self.most, int(room / self.footprint)))

    def ran_out(self) -> None:
        """Lower the limit after a worker ran out of memory."""
        self.limit = self.most = max(1, min(self.limit, self.workers))


def find_devices(workers: int | None, device: str | None) -> tuple[list[Device], int]:
    """Find the devices of this machine.

    Args:
        workers: How many workers the user wants; None = as many as fit.
        device: "cpu" or "cuda"; None = the GPUs if there are any.

    Returns:
        The devices, and the number of threads for each worker.
    """
    gpus = [] if device == "cpu" else _visible_gpus()
    if device == "cuda" and not gpus:
        raise UserError("device is 'cuda', and this machine has no GPU that torch can use; it must be 'cpu' here.")
    cores = cpu_count()
    if not gpus:
        count = workers or _cpu_workers(cores)
        return [Device("cpu", None, count, count)], _threads(cores, count)
    total = workers or max(len(gpus), min(_MOST_ON_ONE_GPU * len(gpus), cores - 1))
    devices = []
    for number, gpu in enumerate(gpus):
        most = total // len(gpus) + (number < total % len(gpus))
        devices.append(Device("cuda", gpu, most if workers else 1, most, is_measured=workers is None))
    return [device for device in devices if device.most], _threads(cores, total)


def gpu_memory(device: str) -> dict[str, int] | None:
    """In a worker, after a run: bytes of its GPU, and of what torch has reserved there; None on another device."""
    if not device.startswith("cuda"):
        return None
    import torch

    free, total = torch.cuda.mem_get_info()
    return {
        "free": free, "total": total, "reserved": torch.cuda.memory_reserved(), "peak": torch.cuda.max_memory_reserved()
    }  # fmt: skip


def _visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    count = torch.cuda.device_count()
    named = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return named[:count] if named else [str(number) for number in range(count)]


def _cpu_workers(cores: int) -> int:
    by_memory = available_memory() // _CPU_WORKER
    return max(1, min(cores // _given_threads(1), _MOST_ON_CPU, by_memory))


def available_memory() -> int:
    """Bytes of available memory; enough for all workers where the system does not report it."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration, ValueError):
        return _MOST_ON_CPU * _CPU_WORKER


def _threads(cores: int, workers: int) -> int:
    return _given_threads(max(1, cores // workers))


def _given_threads(default: int) -> int:
    """Return the user's OMP_NUM_THREADS."""
    given: Any = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdigit() and int(given) > 0 else default
