"""Figures of an outcome: lines with bands, boxes over a grid, and a map of colours."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..report.style import BLACK, COLORS, line_style, saved
from .outcome import Cell, Outcome
from .registry import find_entry

_WIDEST = 3  # panels side by side
_ONE_UNIT = ("robustness", "gates")
_LINES = {"paper": "-", "honest": "--", "last": "-"}
_MOST_TICKS = 8  # places of lines that all have their number
_CHARACTERS = 13  # of a title, in an inch


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
    characters = int(figure.get_figwidth() * _CHARACTERS)
    title = textwrap.fill(f"{outcome.heading}: {outcome.title}", characters)
    figure.suptitle(f"{title}\n{_model(outcome)}", fontsize=9)
    return saved(figure, path)


def _model(outcome: Outcome) -> str:
    name = Path(outcome.model).name
    return f"{name}, {outcome.scale} scale, {outcome.seeds} seed{'' if outcome.seeds == 1 else 's'}"


def _panels(figure: Any, names: Sequence[str], is_one_unit: bool = False) -> dict[str, Any]:
    """Return a panel for each name; those of one unit have the same limits."""
    columns = min(len(names), _WIDEST)
    rows = math.ceil(len(names) / columns)
    figure.set_size_inches(max(5.0, 3.6 * columns), 2.8 * rows + 0.9)
    grid = figure.subplots(rows, columns, squeeze=False, sharey=is_one_unit).flatten()
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
    entry = find_entry(outcome.entry)
    columns = list(dict.fromkeys(cell.column for cell in outcome.cells))
    panels = _panels(figure, columns, is_one_unit=entry.measure in _ONE_UNIT)
    for column, axes in panels.items():
        axes.set_xlabel(entry.axis, fontsize=8)
        places = sorted({cell.x for cell in outcome.cells if cell.column == column and cell.x is not None})
        if len(places) <= _MOST_TICKS:
            axes.set_xticks(places, [f"{x:g}" for x in places])
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
    """One panel for each column; a box for each row and protocol, with all points of the grid."""
    panels = _panels(figure, list(dict.fromkeys(cell.column for cell in outcome.cells)))
    for column, axes in panels.items():
        cells = [cell for cell in outcome.cells if cell.column == column]
        every = [list(cell.values.values()) for cell in cells]
        boxes = axes.boxplot(every, patch_artist=True, widths=0.5, showfliers=False, medianprops={"color": BLACK})
        for number, (box, values) in enumerate(zip(boxes["boxes"], every, strict=True)):
            color = COLORS[number % len(COLORS)]
            box.set(facecolor=color, alpha=0.35)
            axes.plot([number + 1] * len(values), values, ".", color=color, alpha=0.6)
        names = [f"{cell.row.replace(' cross', chr(10) + 'cross')},\n{cell.protocol}" for cell in cells]
        axes.set_xticks(range(1, len(cells) + 1), names, fontsize=7)
        axes.set_ylabel("score", fontsize=8)


def _map(figure: Any, outcome: Outcome) -> None:
    """Tasks by layers, for each protocol; the colour is the score divided by the largest of its task (MaxAbsScaler).

    The first column is fine-tuning.
    """
    columns = list(dict.fromkeys(cell.column for cell in outcome.cells))
    places: list[float | None] = [None, *sorted({cell.x for cell in outcome.cells if cell.x is not None})]
    means = {p: [[outcome_mean(outcome, c, p, x) for x in places] for c in columns] for p in outcome.protocols}
    colors = {protocol: [max_abs_scaled(row) for row in rows] for protocol, rows in means.items()}
    shares = [share for rows in colors.values() for row in rows for share in row if not math.isnan(share)]
    limits = min(shares), max(shares) if max(shares) > min(shares) else min(shares) + 0.1
    figure.set_size_inches(max(5.0, 0.62 * len(places) + 2.0), len(means) * (0.5 * len(columns) + 0.9) + 0.8)
    panels = figure.subplots(len(means), 1, squeeze=False).flatten()
    for axes, (protocol, rows) in zip(panels, means.items(), strict=True):
        image = axes.imshow(colors[protocol], cmap="viridis", aspect="auto", vmin=limits[0], vmax=limits[1])
        axes.set_title(f"{protocol} protocol", fontsize=9)
        axes.set_xticks(range(len(places)), ["none", *(f"{x:g}" for x in places[1:])])
        axes.set_yticks(range(len(columns)), columns)
        for y, row in enumerate(rows):
            for x, value in enumerate(row):
                is_light = colors[protocol][y][x] > sum(limits) / 2
                color = "black" if is_light else "white"
                axes.text(
                    x, y, "" if math.isnan(value) else f"{value:.3f}", ha="center", va="center", fontsize=7, color=color
                )
    panels[-1].set_xlabel("layer with AD-DROP")
    figure.colorbar(image, ax=list(panels), label="score / largest of the task")


def outcome_mean(outcome: Outcome, column: str, protocol: str, x: float | None) -> float:
    """Return the mean of the cell of a column and protocol at a place; NaN if there is none."""
    wanted = (column, protocol, x)
    return next((cell.mean for cell in outcome.cells if (cell.column, cell.protocol, cell.x) == wanted), math.nan)


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
