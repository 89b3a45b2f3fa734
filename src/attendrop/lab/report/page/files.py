"""Writes the files of a report, atomically, and never over a file that no report wrote."""

from __future__ import annotations

import os
from pathlib import Path

from ....errors import UserError
from ....utils.files import write_whole
from ..analysis import Analysis, checked_analysis
from .document import MARK as HTML_MARK
from .document import render_page
from .forest import PDF_MARK, plot_differences
from .latex import LATEX_MARK, latex_table, markdown_results
from .latex import MARKDOWN_MARK as MARKDOWN_TABLE_MARK
from .markdown import MARK as MARKDOWN_MARK
from .markdown import render_markdown
from .tables import COMPARISON_COLUMNS, RUN_COLUMNS, comparisons_csv, runs_csv

# Each file, its renderer, and the marker in its first lines.
_FILES = {
    "report.html": (render_page, HTML_MARK),
    "report.md": (render_markdown, MARKDOWN_MARK),
    "report.csv": (runs_csv, ",".join(RUN_COLUMNS)),
    "comparisons.csv": (comparisons_csv, ",".join(COMPARISON_COLUMNS)),
}


# Tables for a paper, which are written where they are asked for.
_TABLES = {
    "latex": ("results.tex", latex_table, LATEX_MARK),
    "markdown": ("results.md", markdown_results, MARKDOWN_TABLE_MARK),
}


def write_table(analysis: Analysis, folder: str | Path, kind: str) -> Path:
    """Write the verdicts on the score as a table for a paper, and return its path.

    Args:
        analysis: The analysis of a study.
        folder: The folder to write to.
        kind: "latex" or "markdown".
    """
    name, render, mark = _TABLES[kind]
    path = Path(folder, name)
    _check_own(path, mark)
    write_whole(path, render(analysis), flush=False)
    return path


def write_figure(analysis: Analysis, folder: str | Path) -> Path:
    """Write the differences on the score as a figure for a paper, `results.pdf`, and return its path.

    Args:
        analysis: The analysis of a study.
        folder: The folder to write to.
    """
    path = Path(folder, "results.pdf")
    _check_own(path, PDF_MARK)
    plot_differences(analysis, path)
    return path


def write_report(analysis: Analysis, folder: str | Path) -> Path:
    """Write `report.html`, `report.md`, `report.csv` and `comparisons.csv`, and return the path of the page.

    Earlier reports are replaced. A file of one of these names that no report wrote is refused, before anything is
    written.

    Args:
        analysis: The analysis of a study.
        folder: The folder to write to; it is created if it does not exist.
    """
    analysis, folder = checked_analysis(analysis), Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, (_, mark) in _FILES.items():
            _check_own(folder / name, mark)
        for name, (render, _) in _FILES.items():
            write_whole(folder / name, render(analysis), flush=False)
    except OSError as error:
        raise UserError(
            f"output is {str(folder)!r}, which cannot be written to ({error.strerror or error}); choose another folder "
            "with --output."
        ) from None
    return folder / "report.html"


def _check_own(path: Path, mark: str) -> None:
    if not os.path.lexists(path):
        return
    if path.is_file():
        with path.open("rb") as file:
            if mark.encode() in (file.read() if path.suffix == ".pdf" else file.read(2000)):
                return
    raise UserError(
        f"{str(path)!r} exists and was not written by `attendrop report`; move it away, or choose another folder with "
        "--output."
    )
