"""`attendrop evaluate`: evaluate a finished model on another file with labels."""

from __future__ import annotations

from typing import Annotated

import typer

from . import file_options, prediction_options
from .console import announced, console, print_sentence, progress_bar, quiet_libraries, shown
from .signals import exits_on_interrupt


@announced("loading the model")
@quiet_libraries()
def command(
    folder: prediction_options.Folder,
    file: Annotated[
        str, typer.Option(help="A file with the columns of the training file and with labels; - = standard input.")
    ],
    output: Annotated[
        str | None, typer.Option(help="Folder for tables and pictures; by default next to the input file.")
    ] = None,
    batch_size: prediction_options.BatchSize = 32,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the files of an earlier evaluation.")] = False,
    encoding: file_options.Encoding = None,
    separator: file_options.Separator = None,
    columns: file_options.Columns = None,
    drop_bad_rows: file_options.DropBadRows = False,
) -> None:
    with exits_on_interrupt():
        from ..runs.evaluate import evaluate_file
        from ..tasks.files import ReadOptions
        from .terminal import print_scores

    options = ReadOptions(encoding, separator, drop_bad_rows, columns=tuple(columns or ()))
    with progress_bar("evaluating") as progress:
        done = evaluate_file(folder, file, output, batch_size, overwrite, options, progress)
    print_scores(done.scores, {done.name: done.results}, console)
    for warning in [*done.notes, *done.results.warnings]:
        print_sentence(f"[yellow]warning:[/yellow] {shown(warning)}")
    console.print(f"tables and pictures are in {shown(done.folder)}", soft_wrap=True)
