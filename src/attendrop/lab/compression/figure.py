"""A figure of a compression: the score of each stage against the time of a forward."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..records import CompressionRecord
from ..report.style import BLACK, BLUE, VERMILION, saved


def plot_compression(record: CompressionRecord, path: str | Path | None = None) -> Any:
    """Draw one panel for each shape: the score on the selection against milliseconds.

    Args:
        record: The record of the compression.
        path: The image file; None = none is written.
    """
    from matplotlib.figure import Figure

    shapes = list(record.stages[0].milliseconds)
    figure = Figure(figsize=(4.2 * len(shapes), 3.4), layout="constrained")
    panels = figure.subplots(1, len(shapes), sharey=True, squeeze=False)[0]
    for axes, shape in zip(panels, shapes, strict=True):
        times = [stage.milliseconds[shape] for stage in record.stages]
        scores = [stage.score for stage in record.stages]
        axes.plot(times[:-1], scores[:-1], color=BLUE, marker="o", markersize=4, label="after each edit")
        axes.plot(times[-1:], scores[-1:], color=VERMILION, marker="D", linestyle="", label="final")
        axes.plot([record.stages[0].stock[shape]], scores[:1], color=BLACK, marker="s", linestyle="", label="stock")
        for stage, time in zip(record.stages[1:-1], times[1:-1], strict=True):
            axes.annotate(stage.edit, (time, stage.score), fontsize=6, xytext=(3, 3), textcoords="offset points")
        axes.set_title(f"inputs {shape}", fontsize=10)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    figure.supxlabel("milliseconds", fontsize=10)
    figure.supylabel(f"{record.metric} on the selection", fontsize=10)
    panels[0].legend(frameon=False, fontsize=8, loc="lower right")
    return saved(figure, path, dpi=130)
