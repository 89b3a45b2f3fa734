"""`attendrop dropped`: what AD-DROP or a trained generator drops, as a table and a figure."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import track

from ...errors import UserError
from .console import checked_figure, console, plain_table, quiet_libraries, shown


@quiet_libraries()
def command(
    folder: Annotated[str, typer.Argument(help="The folder that `attendrop train` wrote.")],
    file: Annotated[
        str | None, typer.Option(help="A file with other examples; by default the validation data of the run.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(help="AD-DROP with its fields; by default the generator of an AttendOut run, or addrop as it is."),
    ] = None,
    max_samples: Annotated[int, typer.Option(help="Use at most this number of examples, drawn at random.")] = 500,
    batch_size: Annotated[int, typer.Option(help="Examples per batch.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the draw of examples.")] = 0,
    output: Annotated[
        str | None, typer.Option(help="PNG or PDF to write; the numbers go beside it as CSV. [FOLDER/dropped.png]")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the files if they exist.")] = False,
) -> None:
    from ..dropped.figure import plot_dropped
    from ..dropped.run_folder import dropped_of_run
    from ..runs.folder import read_record

    read_record(folder)  # refuses a folder without a run
    figure = checked_figure(output or Path(folder, "dropped.png"), overwrite)
    table = figure.with_suffix(".csv")
    for name, number in (("max_samples", max_samples), ("batch_size", batch_size)):
        if number < 1:
            raise UserError(f"{name} is {number}; it must be at least 1.")
    result = dropped_of_run(
        folder, file, method=method, seed=seed, max_samples=max_samples, batch_size=batch_size, watch=_watched
    )
    plot_dropped(result, figure)
    result.write_csv(table)
    _print(result)
    console.print(f"the figure is {shown(figure)}, its numbers are in {shown(table)}", soft_wrap=True)


def _watched(batches: Iterable[Any]) -> Iterable[Any]:
    return track(batches, "batches", console=console, transient=True)


def _print(result: Any) -> None:
    """Print the share of each group, over all layers."""
    table = plain_table("", "positions", "dropped", "to the mean", align_right=True)
    mean = _mean([share for shares in result.of("distance").values() for share in shares])
    for by in ("distance", "token", "tag"):
        for group, shares in result.of(by).items():
            positions, dropped = sum(share.positions for share in shares), _mean(shares)
            ratio = f"{dropped / mean:.2f} ×" if mean else ""
            table.add_row(shown(f"{by}: {group}"), f"{positions:,}", f"{dropped:.1%}", ratio)
    console.print(f"{result.source}, {result.examples:,} examples, {len(result.layers)} layers", highlight=False)
    console.print(table)


def _mean(shares: list[Any]) -> float:
    """Return the share of the positions of several groups or layers."""
    return float(sum(share.positions * share.share for share in shares) / sum(share.positions for share in shares))
