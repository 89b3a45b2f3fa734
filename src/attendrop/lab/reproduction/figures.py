"""Figures of an outcome: lines with bands, boxes over a grid, and a map of colours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..report.style import COLORS, line_style, saved
from .outcome import Cell, Outcome

_WIDEST = 3  # panels side by side
_LINES = {"paper": "-", "honest": "--", "last": "-"}


def draw(outcome: Outcome, drawing: str, path: Path | None = None) -> Any:
    """Draw an outcome and return the matplotlib figure.

    Args:
        outcome: The outcome.
        drawing: "lines", "boxes" or "map".
        path: The image file to write; None = none.
    """
    from matplotlib.figure import Figure

    drawers = {"lines": _lines, "boxes": _boxes, "map": _map}
    figure = Figure(layout="constrained")
    drawers[drawing](figure, outcome)
    figure.suptitle(f"{outcome.heading}: {outcome.title}\n{_model(outcome)}", fontsize=9)
    return saved(figure, path)


def _model(outcome: Outcome) -> str:
    name = Path(outcome.model).name
    return f"{name}, {outcome.scale} scale, {outcome.seeds} seed{'' if outcome.seeds == 1 else 's'}"


def _panels(figure: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return a panel for each name."""
    columns = min(len(names), _WIDEST)
    rows = math.ceil(len(names) / columns)
    figure.set_size_inches(max(5.0, 3.6 * columns), 2.8 * rows + 0.9)
    grid = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes in grid[len(names) :]:
        axes.remove()
    panels = dict(zip(names, grid, strict=False))
    for name, axes in panels.items():
        axes.set_title(name, fontsize=9)
        axes.grid(alpha=0.3)
    return panels


def _lines(figure: Any, outcome: Outcome) -> None:
    """One panel for each column; a line for each row and protocol, with its 95 % interval."""
    rows = list(dict.fromkeys(cell.row for cell in outcome.cells))
    panels = _panels(figure, list(dict.fromkeys(cell.column for cell in outcome.cells)))
    for column, axes in panels.items():
        for number, row in enumerate(rows):
            for protocol in outcome.protocols:
                cells = _line(outcome.cells, row, column, protocol)
                if not cells:
                    continue
                at, style = [cell.x for cell in cells], line_style(number)
                label = row if len(outcome.protocols) == 1 else f"{row}, {protocol}"
                axes.plot(at, [cell.mean for cell in cells], linestyle=_LINES[protocol], label=label, **style)
                if bands := [cell.interval for cell in cells if cell.interval is not None]:
                    known = [cell.x for cell in cells if cell.interval is not None]
                    low, high = [band[0] for band in bands], [band[1] for band in bands]
                    axes.fill_between(known, low, high, color=style["color"], alpha=0.15, linewidth=0)
    _legend(figure, panels)


def _line(cells: Sequence[Cell], row: str, column: str, protocol: str) -> list[Cell]:
    own = [c for c in cells if (c.row, c.column, c.protocol) == (row, column, protocol) and c.x is not None]
    return sorted(own, key=lambda cell: cell.x or 0.0)


def _boxes(figure: Any, outcome: Outcome) -> None:
    """One panel for each column, a box for each row with all points of the grid."""
    panels = _panels(figure, list(dict.fromkeys(cell.column for cell in outcome.cells)))
    for column, axes in panels.items():
        cells = [cell for cell in outcome.cells if cell.column == column]
        boxes = axes.boxplot([cell.values for cell in cells], patch_artist=True, widths=0.5)
        for number, (box, cell) in enumerate(zip(boxes["boxes"], cells, strict=True)):
            box.set(facecolor=COLORS[number % len(COLORS)], alpha=0.35)
            axes.plot([number + 1] * len(cell.values), cell.values, ".", color=COLORS[number % len(COLORS)], alpha=0.6)
        axes.set_xticks(range(1, len(cells) + 1), [cell.row.replace(" cross", "\ncross") for cell in cells], fontsize=8)


def _map(figure: Any, outcome: Outcome) -> None:
    """Tasks by layers; the colour is the score divided by the largest of its task (MaxAbsScaler)."""
    cells = [cell for cell in outcome.cells if cell.x is not None]
    columns = list(dict.fromkeys(cell.column for cell in cells))
    layers = sorted({cell.x for cell in cells if cell.x is not None})
    means = [[outcome_mean(cells, column, layer) for layer in layers] for column in columns]
    figure.set_size_inches(max(5.0, 0.75 * len(layers) + 2.0), 0.6 * len(columns) + 1.8)
    axes = figure.subplots()
    image = axes.imshow([max_abs_scaled(row) for row in means], cmap="viridis", aspect="auto")
    axes.set_xticks(range(len(layers)), [f"{layer:g}" for layer in layers])
    axes.set_yticks(range(len(columns)), columns)
    axes.set_xlabel("layer with AD-DROP")
    for y, row in enumerate(means):
        for x, value in enumerate(row):
            axes.text(x, y, f"{value:.3f}", ha="center", va="center", fontsize=7, color="white")
    figure.colorbar(image, ax=axes, label="score / largest of the task")


def outcome_mean(cells: Sequence[Cell], column: str, x: float) -> float:
    """Return the mean of the cell of a column at a place; NaN if there is none."""
    return next((cell.mean for cell in cells if (cell.column, cell.x) == (column, x)), math.nan)


def max_abs_scaled(values: Sequence[float]) -> list[float]:
    """Divide values by the largest absolute one, as scikit-learn's MaxAbsScaler does with a column.

    Args:
        values: The values; all zero stay zero.
    """
    largest = max((abs(value) for value in values if not math.isnan(value)), default=0.0)
    return [value / largest if largest else value for value in values]


def _legend(figure: Any, panels: dict[str, Any]) -> None:
    handles, labels = next(iter(panels.values())).get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 3), frameon=False, fontsize=8)
