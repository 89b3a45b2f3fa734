"""The flags of all commands that run a study: where its runs are trained.

def command(engine: EngineName = "local", workers: Workers = None, address: Address = None,
            gpus_per_worker: GpusPerWorker = None, cpus_per_worker: CpusPerWorker = 1) -> None: ...
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

_PANEL = "Workers"  # of these options in --help


def _option(help_text: str, *names: str) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=_PANEL)


EngineName = Annotated[str, _option("Where runs are trained: local, on this machine, or ray, on a Ray cluster.")]
Workers = Annotated[int | None, _option("Runs at the same time; by default as many as fit. 0 = in this process.")]
Address = Annotated[str | None, _option("Ray: host:port of the head node, or auto. By default, this machine alone.")]
GpusPerWorker = Annotated[float | None, _option("Ray: the share of a GPU that a worker reserves, such as 0.25.")]
CpusPerWorker = Annotated[float, _option("Ray: the processors that a worker reserves.")]
RetryFailed = Annotated[bool, _option("Run the runs again that failed in an earlier start.", "--retry-failed")]
