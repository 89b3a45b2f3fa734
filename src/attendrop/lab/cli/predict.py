"""`attendrop predict`: predictions of a model that `attendrop train` wrote, for a few texts or a whole file."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ...errors import UserError
from . import file_options, prediction_options
from .console import announced, console, errors, print_sentence, progress_bar, quiet_libraries, shown
from .signals import exits_on_interrupt


@announced("loading the model")
@quiet_libraries()
def command(
    folder: prediction_options.Folder,
    texts: Annotated[
        list[str] | None,
        typer.Argument(help="Texts; for a task on pairs, two for each example. - = the lines of standard input."),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(help="A file with the columns of the training file, in any of its formats; - = standard input."),
    ] = None,
    output: Annotated[
        str | None, typer.Option(help="File to write; by default next to the input file. - = standard output.")
    ] = None,
    form: Annotated[
        str | None,
        typer.Option("--format", help="csv, tsv, jsonl, parquet or xlsx; by default that of --output or of --file."),
    ] = None,
    batch_size: prediction_options.BatchSize = 32,
    temperature: prediction_options.Temperature = None,
    min_confidence: prediction_options.MinConfidence = None,
    target_accuracy: prediction_options.TargetAccuracy = None,
    coverage: prediction_options.Coverage = None,
    engine: prediction_options.Engine = "torch",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output file if it exists.")] = False,
    encoding: file_options.Encoding = None,
    separator: file_options.Separator = None,
    columns: file_options.Columns = None,
    drop_bad_rows: file_options.DropBadRows = False,
) -> None:
    with exits_on_interrupt():
        from ..runs.decisions import Required
        from ..runs.predict import done_sentences, predict_file, read_finished, text_columns
        from ..tasks.files import ReadOptions

    if bool(texts) == bool(file):
        raise UserError("give either texts or --file with many of them.")
    required = Required(min_confidence, target_accuracy, coverage)
    if file:
        options = ReadOptions(encoding, separator, drop_bad_rows, columns=tuple(columns or ()))
        with progress_bar("predicting") as progress:
            done = predict_file(
                folder, file, output, batch_size, overwrite, options, form=form, temperature=temperature,
                progress=progress, required=required, engine=engine,
            )  # fmt: skip
        screen = console if done.path is not None else errors  # the standard output holds the predictions
        for note in done.notes:
            print_sentence(f"[yellow]warning:[/yellow] {shown(note)}", screen)
        for name, value in done.scores.items():
            screen.print(f"{name} {value:.4f}")
        for sentence in done.decisions:
            print_sentence(shown(sentence), screen)
        how = f" ({done.form})" if done.form else ""
        where = f"in {shown(done.path)}{how}" if done.path is not None else "on the standard output"
        screen.print(
            f"{done.examples:,} {'prediction is' if done.examples == 1 else 'predictions are'} {where}", soft_wrap=True
        )
        return
    if output is not None:
        raise UserError(f"output is {output!r}; it is for --file, and the predictions of texts are printed.")
    predicted, task = text_columns(folder, _lines(texts or []), batch_size, temperature, required, engine)
    if form is None:
        _print_rows(predicted, task)
    else:
        _write(predicted, task, form)
    if required:
        for sentence in done_sentences(read_finished(folder, temperature, required), predicted):
            print_sentence(shown(sentence), errors)


def _lines(texts: list[str]) -> list[str]:
    """Return the texts; `-` stands for the lines of the standard input, whose pairs of texts are separated by tabs."""
    if texts != ["-"]:
        return texts
    lines = [line.rstrip("\n") for line in sys.stdin]
    parts = [part for line in lines if line.strip() for part in line.split("\t")]
    if not parts:
        raise UserError("the standard input has no text; give one on each line.")
    return parts


def _print_rows(columns: dict[str, list[Any]], task: Any) -> None:
    """One line for each example: the prediction, its probability and the text."""
    from ..tasks import as_text, kind_of

    for place, prediction in enumerate(columns["prediction"]):
        probability = columns.get(f"probability_{prediction}") if not isinstance(prediction, list) else None
        shares = "" if probability is None else f"  {probability[place]:.2f}"
        parts = [columns[name][place] for name in task.text if name in columns]
        text = " | ".join(" ".join(part) if isinstance(part, list) else part for part in parts)
        answer = as_text(task, prediction) or ("no label" if kind_of(task).has_several_labels else "(empty)")
        if "decision" in columns and columns["decision"][place] == "unsure":
            answer = f"unsure: {answer}"
        possible = f"  {{{shown(', '.join(columns['prediction_set'][place]))}}}" if "prediction_set" in columns else ""
        console.print(f"[bold]{shown(answer)}[/bold]{shares}{possible}  {shown(text)}", soft_wrap=True)


def _write(columns: dict[str, list[Any]], task: Any, form: str) -> None:
    from ...utils.checks import check_choice
    from ..evaluation.tables import BINARY_FORMATS, FORMATS, write_table

    check_choice("format", form, [name for name in FORMATS if name not in BINARY_FORMATS])
    write_table(None, columns, task, form)
