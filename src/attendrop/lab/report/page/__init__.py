"""The report of a study: one self-contained HTML page, Markdown, CSV tables, and a section for a model card.

All of them are made from one `Analysis` (`attendrop.lab.studies.analysis.analyse`).
"""

from ..analysis import Analysis, checked_analysis
from .document import render_page
from .files import write_figure, write_report, write_table
from .forest import plot_differences
from .latex import latex_table, markdown_results
from .markdown import card_section, render_markdown
from .tables import comparisons_csv, runs_csv
from .words import headline

__all__ = [
    "Analysis",
    "card_section",
    "checked_analysis",
    "comparisons_csv",
    "headline",
    "latex_table",
    "markdown_results",
    "plot_differences",
    "render_markdown",
    "render_page",
    "runs_csv",
    "write_figure",
    "write_report",
    "write_table",
]
