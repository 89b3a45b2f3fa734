"""`attendrop study`: the progress of a study."""

from __future__ import annotations

import time
from typing import Annotated

import typer
from rich.live import Live

from ..studies.status import Status, read_status
from .console import console, shown
from .study_view import study_view

_PAUSE = 2.0  # seconds between two updates


def command(
    folder: Annotated[str, typer.Argument(help="The folder of `attendrop compare` or `attendrop tune`.")],
    watch: Annotated[bool, typer.Option("--watch", help="Keep showing it until the study ends.")] = False,
) -> None:
    status = read_status(folder)
    if watch and status.is_active:
        with Live(study_view(status), console=console, auto_refresh=False) as live:
            while status.is_active:
                time.sleep(_PAUSE)
                status = read_status(folder)
                live.update(study_view(status), refresh=True)
    else:
        console.print(study_view(status))
    console.print(shown(_next_step(status)), soft_wrap=True)


def _next_step(status: Status) -> str:
    """Return the user's next steps."""
    if status.is_active:
        return "the study is running"
    failed = " (with --retry-failed to retry the failed runs)" if status.of("failed") else ""
    if status.left is None or status.left or not status.records:
        return f"the study is not running; rerun its command to continue{failed}"
    again = "; rerun its command with --retry-failed to retry the failed runs" if failed else ""
    return f"the study is complete{again}; show it with: attendrop report {status.folder}"
