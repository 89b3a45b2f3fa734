"""`attendrop robustness`: the robustness of a finished run's model to dropped attention, as numbers and a figure."""

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
        str | None, typer.Option(help="A file with labels; by default the validation data of the run.")
    ] = None,
    rates: Annotated[str, typer.Option(help="Shares to drop, from 0 to 1.")] = "0,0.2,0.4,0.6,0.8,1",
    layers: Annotated[
        str, typer.Option(help="Layers to measure: all, first, encoder, decoder, cross, or numbers such as 0,2,5.")
    ] = "all",
    attribution: Annotated[
        str, typer.Option(help="How positions are ordered: ga (gradient), iga (integrated gradient) or aa (attention).")
    ] = "ga",
    label: Annotated[str, typer.Option(help="The attributed label: pseudo (the prediction) or gold.")] = "pseudo",
    max_samples: Annotated[int, typer.Option(help="Use at most this number of examples, drawn at random.")] = 500,
    batch_size: Annotated[int, typer.Option(help="Examples per batch.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the random positions.")] = 0,
    output: Annotated[
        str | None, typer.Option(help="PNG or PDF to write; the numbers go beside it as CSV. [FOLDER/robustness.png]")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the files if they exist.")] = False,
) -> None:
    from ..robustness.figure import plot_robustness
    from ..robustness.run_folder import robustness_of_run
    from ..runs.folder import read_record

    read_record(folder)  # refuses a folder without a run
    figure = checked_figure(output or Path(folder, "robustness.png"), overwrite)
    table = figure.with_suffix(".csv")
    for name, number in (("max_samples", max_samples), ("batch_size", batch_size)):
        if number < 1:
            raise UserError(f"{name} is {number}; it must be at least 1.")
    result = robustness_of_run(
        folder, file, rates=_numbers("rates", rates, float), layers=_layers(layers), attribution=attribution,
        label=label, seed=seed, max_samples=max_samples, batch_size=batch_size, watch=_watched,
    )  # fmt: skip
    plot_robustness(result, figure)
    result.write_csv(table)
    _print(result)
    console.print(f"the figure is {shown(figure)}, its numbers are in {shown(table)}", soft_wrap=True)


def _numbers(name: str, text: str, kind: type) -> list[Any]:
    try:
        return [kind(part) for part in text.split(",")]
    except ValueError:
        what = "whole numbers" if kind is int else "numbers"
        raise UserError(f"{name} is {text!r}; it must be {what} with commas between them.") from None


def _layers(text: str) -> Any:
    return _numbers("layers", text, int) if text.replace(",", "").replace(" ", "").lstrip("-").isdigit() else text


def _watched(batches: Iterable[Any]) -> Iterable[Any]:
    return track(batches, "batches", console=console, transient=True)


def _print(result: Any) -> None:
    """Print the scores of each layer at the middle rate, where the orders differ most visibly."""
    rates = sorted({point.rate for point in result.points if point.rate > 0} or {0.0})
    rate = rates[(len(rates) - 1) // 2]
    table = plain_table(f"{result.metric}, {rate:g} dropped", *result.orders, align_right=True)
    for layer in result.layers:
        points = [p for order in result.orders for p in result.curve(layer, order) if p.rate == rate]
        table.add_row(layer, *(f"{point.score:.4f}" for point in points))
    whole = result.points[0].score
    console.print(table)
    console.print(f"nothing dropped: {whole:.4f} on {result.examples:,} examples")
