"""The flags of all commands that run a study: where its runs are trained.

def command(engine: EngineName = "local", workers: Workers = None, address: Address = None,
            gpus_per_worker: GpusPerWorker = None, cpus_per_worker: CpusPerWorker = 1,
            worker_timeout: WorkerTimeout = TIMEOUT) -> None:
    made = engine_from_flags(settings, engine, workers, address, gpus_per_worker, cpus_per_worker, worker_timeout)
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Annotated, Any

import typer

from ...errors import UserError
from ..studies.executors import PATIENCE, Executor, make_executor

_PANEL = "Workers"  # of these options in --help


TIMEOUT = PATIENCE / 60


def _option(help_text: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=_PANEL)


EngineName = Annotated[str, _option("Where runs are trained: local, on this machine, or ray, on a Ray cluster.")]
Workers = Annotated[int | None, _option("Runs at the same time; by default as many as fit. 0 = in this process.")]
Address = Annotated[str | None, _option("Ray: host:port of the head node, or auto. By default, this machine alone.")]
GpusPerWorker = Annotated[float | None, _option("Ray: the share of a GPU that a worker reserves, such as 0.25.")]
CpusPerWorker = Annotated[float, _option("Ray: the processors that a worker reserves.")]
WorkerTimeout = Annotated[
    float,
    _option("Minutes without a training step after which a worker is ended and its run has failed; 0 = never."),
]
RetryFailed = Annotated[bool, _option("Retry failed runs.", "--retry-failed")]


def engine_from_flags(
    settings: Mapping[str, Any],
    engine: str,
    workers: int | None,
    address: str | None,
    gpus_per_worker: float | None,
    cpus_per_worker: float,
    worker_timeout: float,
) -> Executor:
    """Makes the executor that the flags describe.

    Args:
        settings: The settings of the runs; `use_cpu` decides the device.
        engine: The value of `--engine`.
        workers: The value of `--workers`.
        address: The value of `--address`.
        gpus_per_worker: The value of `--gpus-per-worker`.
        cpus_per_worker: The value of `--cpus-per-worker`.
        worker_timeout: The value of `--worker-timeout`.
    """
    if worker_timeout != 0 and not 1 <= worker_timeout < inf:  # healthy runs report every few seconds
        raise UserError(f"worker_timeout is {worker_timeout:g}; it must be 0 (never) or at least 1 minute.")
    return make_executor(
        engine, workers, address, device="cpu" if settings.get("use_cpu") else None, gpus_per_worker=gpus_per_worker,
        cpus_per_worker=cpus_per_worker, patience=60 * worker_timeout or None,
    )  # fmt: skip
