"""Executors run the workers of a study: as local processes, as actors of a Ray cluster, or in the current process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from ....errors import UserError
from ....utils.checks import check_choice, check_number, check_whole
from ....utils.deprecation import warn_renamed
from ....utils.limits import MOST_WORKERS
from ...records import StudyRecord
from ..spec import RunSpec

WORKER = "attendrop.lab.studies.worker:Worker"  # the class of the workers
PATIENCE = 3600.0  # seconds; long enough to load a large model and tokenise its data

NextSpec = Callable[[], RunSpec | None]
OnProgress = Callable[[dict[str, Any]], bool]


class Executor(Protocol):
    """Executes runs on workers."""

    def results(self, next_spec: NextSpec, on_progress: OnProgress | None = None) -> Iterator[StudyRecord]:
        """Yield the record of each run when it ends.

        Args:
            next_spec: Asked for the next run whenever a worker is free. None means no run for now: it is called again
                after the next result. The iterator ends when there is no next run and none is running.
            on_progress: Called with the report of a run after each of its evaluations, and as a heartbeat, without a
                score, in between. True stops that run.
        """
        ...

    def close(self) -> None:
        """Kill all workers. Their current runs are lost."""
        ...


def make_executor(
    name: str = "local",
    workers: int | None = None,
    address: str | None = None,
    *,
    device: str | None = None,
    gpus_per_worker: float | None = None,
    cpus_per_worker: float = 1,
    make_worker: str = WORKER,
    patience: float | None = PATIENCE,
) -> Executor:
    """Make an executor. Workers are started when the first run is submitted.

    Args:
        name: "local" for processes on this machine, "ray" for actors of a Ray cluster.
        workers: How many; None = as many as fit. 0 runs everything in this process, for debugging and notebooks.
        address: The address of the head node of a Ray cluster, `host:port`; None starts Ray on this machine.
        device: "cpu" or "cuda"; None = the GPUs if there are any.
        gpus_per_worker: The share of a GPU that a Ray worker reserves, such as 0.25; at most 1. None = one GPU if the
            cluster has any, otherwise none.
        cpus_per_worker: How many processors a Ray worker reserves.
        make_worker: The import path of the worker class, `module:name`.
        patience: Seconds after which a worker that shows no progress (no training step, no evaluation) is killed, and
            its run has failed; None = never. A run in this process (`workers=0`) is never killed.

    Example:
        ```python
        specs, executor = iter(list_of_specs), make_executor("local", workers=4)
        for record in executor.results(lambda: next(specs, None)):
            print(record.id, record.status)
        executor.close()
        ```
    """
    check_choice("engine", name, ("local", "ray"))
    check_choice("device", device, (None, "cpu", "cuda"))
    if workers is not None:
        check_whole("workers", workers, 0)
        if name == "local" and workers > MOST_WORKERS:
            raise UserError(f"workers is {workers}; it must be at most {MOST_WORKERS} on this machine.")
    if patience is not None:
        check_number("patience", patience, is_above=True)
    if name == "ray":
        if workers == 0:
            raise UserError(
                "workers is 0, which runs everything in this process; with --engine ray it must be above 0."
            )
        check_number("cpus_per_worker", cpus_per_worker)
        if gpus_per_worker is not None:
            check_number("gpus_per_worker", gpus_per_worker, high=1)
        from .ray import RayExecutor

        wanted_gpus = 0.0 if device == "cpu" else gpus_per_worker
        return RayExecutor(workers, address, wanted_gpus, cpus_per_worker, make_worker, patience)
    for flag, value in (("address", address), ("gpus_per_worker", gpus_per_worker)):
        if value is not None:
            raise UserError(
                f"{flag} is {value!r}, which only --engine ray uses; add it, or leave --{flag.replace('_', '-')} out."
            )
    if workers == 0:
        from .inline import InlineExecutor

        return InlineExecutor(device, make_worker)
    from .local import LocalExecutor

    return LocalExecutor(workers, device, make_worker, patience)


def make_engine(*args: Any, **kwargs: Any) -> Executor:
    """Call `make_executor`; this name is deprecated."""
    warn_renamed("make_engine", "make_executor")
    return make_executor(*args, **kwargs)
