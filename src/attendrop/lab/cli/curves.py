"""`attendrop curves`: the losses and scores of several finished runs in one figure."""

from __future__ import annotations

from typing import Annotated

import typer

from .console import checked_figure, console, shown


def command(
    folders: Annotated[list[str], typer.Argument(help="Folders that `attendrop train` wrote, one for each line.")],
    output: Annotated[str, typer.Option(help="PNG or PDF to write.")] = "curves.png",
    metric: Annotated[str | None, typer.Option(help="Score to draw; by default that of the task.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it exists.")] = False,
) -> None:
    from ..runs.curves import plot_runs

    path = checked_figure(output, overwrite)
    plot_runs(folders, path, metric)
    console.print(f"the curves are in {shown(path)}", soft_wrap=True)
