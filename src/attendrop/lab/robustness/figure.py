"""A figure of robustness: the score of a trained model against the share of dropped attention positions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...utils.checks import check_choice
from ..report.style import BLUE, GREEN, VERMILION, saved
from .measure import TOGETHER, Robustness

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_STYLES: dict[str, dict[str, Any]] = {
    "high": {"color": VERMILION, "marker": "o", "linestyle": "-", "label": "highest attribution"},
    "low": {"color": BLUE, "marker": "s", "linestyle": "-", "label": "lowest attribution"},
    "random": {"color": GREEN, "marker": "^", "linestyle": "--", "label": "random"},
}
_WIDEST = 4  # panels side by side


def plot_robustness(result: Robustness, path: str | Path | None = None, value: str = "score") -> Figure:
    """Draw one panel for each layer, with one line for each order in which positions are dropped.

    Args:
        result: The result of `measure_robustness`.
        path: The image file to write; None = none.
        value: The value to draw: "score" or "loss".

    Example:
        ```python
        plot_robustness(measure_robustness(model, batches), "robustness.png")
        ```
    """
    from matplotlib.figure import Figure

    check_choice("value", value, ("score", "loss"))
    layers = result.layers
    columns = min(len(layers), _WIDEST)
    rows = math.ceil(len(layers) / columns)
    figure = Figure(figsize=(max(4.5, 2.7 * columns), 2.3 * rows + 1.0), layout="constrained")
    grid = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flatten()
    for axes, layer in zip(grid, layers, strict=False):
        _draw_layer(axes, result, layer, value)
    for axes in grid[len(layers) :]:
        axes.remove()
    for column in range(columns):  # the lowest panel of each column
        lowest = grid[max(place for place in range(len(layers)) if place % columns == column)]
        lowest.tick_params(labelbottom=True)
    figure.supxlabel("share of attention positions dropped", fontsize=10)
    figure.supylabel(result.metric if value == "score" else "loss", fontsize=10)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(handles), frameon=False, fontsize=9)
    return saved(figure, path, dpi=130)


def _draw_layer(axes: Any, result: Robustness, layer: str, value: str) -> None:
    whole = getattr(result.curve(layer, result.orders[0])[0], value)
    axes.axhline(whole, color="0.6", linewidth=1, linestyle=":", label="nothing dropped")
    for order in result.orders:
        points = result.curve(layer, order)
        axes.plot([p.rate for p in points], [getattr(p, value) for p in points], markersize=4, **_STYLES[order])
    axes.set_title("all of them together" if layer == TOGETHER else layer.replace("_", " "), fontsize=10)
    axes.grid(alpha=0.3)
