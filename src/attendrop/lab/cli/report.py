"""`attendrop report`: the results of a study as a page, Markdown and CSV."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ...errors import UserError
from .console import console, shown


def command(
    folder: Annotated[str, typer.Argument(help="The folder of `attendrop compare` or `attendrop tune`.")],
    output: Annotated[str | None, typer.Option(help="Folder to write the report to. [FOLDER]")] = None,
    latex: Annotated[bool, typer.Option("--latex", help="Also write results.tex, a table for a paper.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Also write results.md, the same as Markdown.")] = False,
    pdf: Annotated[bool, typer.Option("--pdf", help="Also write results.pdf, a figure for a paper.")] = False,
) -> None:
    path = Path(folder)
    if not path.is_dir():
        raise UserError(f"FOLDER is {folder!r}, which is not a folder; it must be that of a study.")
    if not any(path.glob("runs/*.json")):
        raise UserError(
            f"{folder!r} has no records of runs (runs/*.json); it must be the folder of `attendrop compare` or "
            "`attendrop tune`."
        )
    from ..report.page import checked_analysis, headline, write_figure, write_report, write_table
    from ..studies.analysis import analyse

    analysis = checked_analysis(analyse(path))
    page = write_report(analysis, output or path)
    console.print(shown(headline(analysis)), soft_wrap=True)
    console.print(f"the page is {shown(page)}; report.md, report.csv and comparisons.csv are beside it", soft_wrap=True)
    for kind, is_wanted in (("latex", latex), ("markdown", markdown)):
        if is_wanted:
            table = write_table(analysis, output or path, kind)
            console.print(f"the table is {shown(table)}", soft_wrap=True)
    if pdf:
        figure = write_figure(analysis, output or path)
        console.print(f"the figure is {shown(figure)}", soft_wrap=True)
