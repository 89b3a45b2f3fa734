"""The flags of all commands that run a study: the executor of its runs.

def command(executor: EngineOptions = LOCAL) -> None:
    made = executor.make(settings)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from ...errors import UserError
from ..studies.executors import PATIENCE, Executor, make_executor

_PANEL = "Workers"  # of these options in --help
_LONGEST = 1e6  # minutes, two years


def _option(help_text: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=_PANEL)


RetryFailed = Annotated[bool, _option("Retry failed runs.", "--retry-failed")]


@dataclass(frozen=True)
class EngineOptions:
    """Where runs are trained. `with_flags` makes a flag of each field."""

    engine: Annotated[str, _option("Where runs are trained: local, on this machine, or ray, on a Ray cluster.")] = (
        "local"
    )
    workers: Annotated[
        int | None, _option("Runs at the same time; by default as many as fit. 0 = in this process.")
    ] = None
    address: Annotated[
        str | None, _option("Ray: host:port of the head node, or auto. By default, this machine alone.")
    ] = None
    gpus_per_worker: Annotated[
        float | None, _option("Ray: the share of a GPU that a worker reserves, such as 0.25.")
    ] = None
    cpus_per_worker: Annotated[float, _option("Ray: the processors that a worker reserves.")] = 1
    worker_timeout: Annotated[
        float,
        _option("Minutes without progress after which a worker is killed and its run has failed; 0 = never."),
    ] = PATIENCE / 60

    def make(self, settings: Mapping[str, Any]) -> Executor:
        """Make the executor.

        Args:
            settings: The settings of the runs; `use_cpu` decides the device.
        """
        # healthy runs report every few seconds
        if self.worker_timeout != 0 and not 1 <= self.worker_timeout <= _LONGEST:
            raise UserError(
                f"worker_timeout is {self.worker_timeout:g}; it must be 0 (never), or a number from 1 to "
                f"{_LONGEST:g} minutes."
            )
        return make_executor(
            self.engine, self.workers, self.address, device="cpu" if settings.get("use_cpu") else None,
            gpus_per_worker=self.gpus_per_worker, cpus_per_worker=self.cpus_per_worker,
            patience=60 * self.worker_timeout or None,
        )  # fmt: skip


LOCAL = EngineOptions()
