"""`attendrop predict`: predictions of a model that `attendrop train` wrote, for a few texts or a whole file."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import UserError
from .console import console, quiet_libraries, shown
from .signals import exits_on_interrupt


@quiet_libraries()
def command(
    folder: Annotated[str, typer.Argument(help="The folder that `attendrop train` wrote.")],
    texts: Annotated[list[str] | None, typer.Argument(help="Texts; for a task on pairs, two for each example.")] = None,
    file: Annotated[
        str | None, typer.Option(help="A file with the columns of the training file, in any of its formats.")
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="CSV or TSV file to write; by default next to the input file.")
    ] = None,
    batch_size: Annotated[int, typer.Option(help="Examples per batch.")] = 32,
    overwrite: Annotated[bool, typer.Option(help="Replace the output file if it exists.")] = False,
    encoding: Annotated[str | None, typer.Option(help="Encoding of the file, if it is not UTF-8.")] = None,
    separator: Annotated[str | None, typer.Option(help="Sign between its columns, or tab.")] = None,
) -> None:
    with exits_on_interrupt():
        from ..experiments.predict import predict_file, predict_texts
        from ..tasks.files import ReadOptions

    if bool(texts) == bool(file):
        raise UserError("give either texts or --file with many of them.")
    if file:
        options = ReadOptions(encoding, separator)
        predictions = predict_file(folder, file, output, batch_size, overwrite, options)
        for name, value in predictions.metrics.items():
            console.print(f"{name} {value:.4f}")
        console.print(f"{predictions.rows} predictions are in {shown(predictions.path)}", soft_wrap=True)
        return
    for text, answer in predict_texts(folder, texts or [], batch_size):
        console.print(f"[bold]{shown(answer)}[/bold]  {shown(text)}", soft_wrap=True)
