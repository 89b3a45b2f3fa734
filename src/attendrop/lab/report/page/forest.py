"""The verdicts on the score as a figure for a paper: paired differences with their intervals."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ....utils.files import whole_file
from ...tasks.outcomes import SCORE
from ..analysis import Analysis, checked_analysis
from ..style import BLACK, BLUE
from .words import cells_of, labels_of, settings_of_cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_INCHES_OF_A_LINE = 0.3
PDF_MARK = "attendrop report"  # the creator of the PDF file


def plot_differences(analysis: Analysis, path: str | Path | None = None) -> Figure:
    """Draw the difference of each method from the baseline on each task, with its interval.

    Args:
        analysis: The analysis of a study.
        path: The PDF file to write; None = none.
    """
    from matplotlib.backends.backend_pdf import PdfPages
    from matplotlib.figure import Figure

    analysis = checked_analysis(analysis)
    labels, delta = labels_of(analysis), analysis.delta.get(SCORE.name)
    panels = {setting: _differences(analysis, setting) for setting in settings_of_cells(analysis)}
    panels = {setting: of for setting, of in panels.items() if of}
    count = max(1, len(panels))
    lines = sum(map(len, panels.values())) + 2 * count
    figure = Figure(figsize=(6, 0.6 + _INCHES_OF_A_LINE * lines), layout="constrained")
    ratios = [len(of) + 1 for of in panels.values()] or [1]
    axes = figure.subplots(count, 1, sharex=True, squeeze=False, height_ratios=ratios)[:, 0]
    for axis, (setting, methods) in zip(axes, panels.items(), strict=False):
        if delta:
            axis.axvspan(-delta, delta, color="0.92", zorder=0)
        axis.axvline(0, color=BLACK, linewidth=0.8)
        for line, (name, (difference, low, high)) in enumerate(methods.items()):
            axis.plot([low, high], [line, line], color=BLUE, linewidth=1.5)
            axis.plot(difference, line, "o", color=BLUE, markersize=5)
            place = {"xytext": (-6, 0), "xycoords": ("axes fraction", "data"), "textcoords": "offset points"}
            axis.annotate(labels[name], (0, line), ha="right", va="center", **place)
        axis.set_ylim(len(methods) - 0.5, -0.5)
        axis.set_yticks([])
        title = ", ".join(part for part in setting if part not in ("all", "validation"))
        axis.set_title(title, loc="left", fontsize=10)
    metric = SCORE.title(analysis.metric)
    interval = f"{100 * analysis.confidence:g} % intervals, paired by seed"
    axes[-1].set_xlabel(f"{metric}, difference from {labels[analysis.baseline]} ({interval})")
    if path is not None:
        with whole_file(path) as file, PdfPages(file, metadata={"Creator": PDF_MARK, "CreationDate": None}) as pages:
            pages.savefig(figure)
    return figure


def _differences(analysis: Analysis, setting: tuple[str, str, str]) -> dict[str, tuple[float, float, float]]:
    """Return the difference and the interval of each method that has them, on one task."""
    differences = {}
    for name, cell in cells_of(analysis, setting).items():
        comparison = cell.outcomes[SCORE.name].comparison if SCORE.name in cell.outcomes else None
        if comparison is not None and comparison.difference is not None and comparison.interval:
            low, high = comparison.interval
            differences[name] = (comparison.difference, low, high)
    return differences
