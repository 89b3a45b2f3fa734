"""`attendrop check`: report problems and unusual values in the user's files before training."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import UserError
from ...utils.shell import command_line
from .arguments import as_arguments
from .console import announced, console, print_error, print_sentence, quiet_libraries, shown
from .signals import exits_on_interrupt

if TYPE_CHECKING:
    from ..tasks import Finding


@announced("reading the files")
def command(
    files: Annotated[list[str], typer.Argument(help="The training file; then the validation and the test file.")],
    model: Annotated[
        str | None, typer.Option(help="Measure lengths in tokens for this model: a name on the Hub, or a folder.")
    ] = None,
    text: Annotated[str | None, typer.Option(help="Column with the text.")] = None,
    text_pair: Annotated[str | None, typer.Option(help="Column with the second text of a pair.")] = None,
    label: Annotated[
        str | None, typer.Option(help="Column with the label, or several with 0 and 1: anger,joy.")
    ] = None,
    kind: Annotated[str | None, typer.Option(help="Kind of task, as in `attendrop train`.")] = None,
    choices: Annotated[
        list[str] | None, typer.Option(help="Column with an answer of a multiple choice; may be repeated.")
    ] = None,
    label_separator: Annotated[
        str | None, typer.Option(help="Delimiter between several labels of one example.")
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="Encoding of the files, if it is not UTF-8.")] = None,
    separator: Annotated[str | None, typer.Option(help="Column delimiter, or 'tab'; detected by default.")] = None,
    columns: Annotated[
        list[str] | None, typer.Option(help="Names of the columns of a table without a header line: label,text.")
    ] = None,
    drop_bad_rows: Annotated[bool, typer.Option("--drop-bad-rows", help="Leave out rows that cannot be used.")] = False,
    max_length: Annotated[int | None, typer.Option(help="Texts are truncated to this number of tokens.")] = None,
) -> None:
    with exits_on_interrupt():
        from .. import tasks
        from .data_tables import balance_table, data_table

    if len(files) > 3:
        raise UserError(f"{len(files)} files are given; give a training file, then a validation and a test file.")
    options = tasks.ReadOptions(encoding, separator, drop_bad_rows, label_separator, tuple(columns or ()))
    inspection = tasks.inspect_files(
        *files, text=text, text_pair=text_pair, label=label, kind=kind, choices=choices or (),
        options=options,
    )  # fmt: skip
    findings = list(inspection.findings)
    if inspection.data is not None:
        with nullcontext() if model is None else quiet_libraries():  # which imports transformers
            tokenizer = None if model is None else tasks.load_processor(model, inspection.data.task)
            description = tasks.describe(inspection.data, tokenizer, max_length)
            console.print(data_table(description))
            if description.balance:
                console.print(balance_table(description))
            if model is not None and description.unit == "tokens":
                findings += tasks.examine_lengths(description, model, tasks.load_config(model), tokenizer)
                findings += tasks.examine_vocabulary(inspection.data, model, tokenizer)
    else:
        for part, rows in inspection.rows.items():
            console.print(f"{part}: {rows:,} rows")
    _print(findings)
    if inspection.errors:
        raise typer.Exit(2)
    given = {
        "model": model or "MODEL",
        **dict(zip(("train_file", "validation_file", "test_file"), files, strict=False)),
        "text": text, "text_pair": text_pair, "label": label, "kind": kind, "choices": choices,
        "label_separator": label_separator, "encoding": encoding, "separator": separator, "columns": columns,
        "max_length": max_length, "drop_bad_rows": drop_bad_rows or None,
    }  # fmt: skip
    words = as_arguments({name: value for name, value in given.items() if value is not None})
    console.print(f"next: {command_line('attendrop', 'train', *words)}", soft_wrap=True, markup=False)


def _print(findings: Sequence[Finding]) -> None:
    """Print the findings, and whether a run would accept the files."""
    for finding in findings:
        if finding.level == "error":
            print_error(f"{finding.text}.")
        else:
            colour = "yellow" if finding.level == "warning" else "dim"
            print_sentence(f"[{colour}]{finding.level}:[/{colour}] {shown(finding.text)}")
    counts = {level: sum(finding.level == level for finding in findings) for level in ("error", "warning")}
    totals = ", ".join(f"{count} {level}{'' if count == 1 else 's'}" for level, count in counts.items())
    verdict = "would stop" if counts["error"] else "would accept these files"
    console.print(f"{totals}: `attendrop train` {verdict}")
