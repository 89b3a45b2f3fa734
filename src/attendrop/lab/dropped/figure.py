"""A figure of what is dropped: how often, by distance and kind of token, in each layer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..report.style import saved
from .measure import DISTANCE, TAG, TOKEN, Dropped, DropShare

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_TITLES = {DISTANCE: "distance of query and key, in tokens", TOKEN: "token of the key", TAG: "tag of the key"}


def plot_dropped(result: Dropped, path: str | Path | None = None) -> Figure:
    """Draw one panel for distances, one for tokens, and one for tags where there are some, with a line for each layer.

    Args:
        result: The result of `measure_dropped`.
        path: The image file to write; None = none.
    """
    from matplotlib.figure import Figure

    panels = {by: groups for by in _TITLES if (groups := result.of(by))}
    widths = [max(4.0, 0.55 * len(groups)) for groups in panels.values()]
    figure = Figure(figsize=(sum(widths), 4.2), layout="constrained")
    grid = figure.subplots(1, len(panels), squeeze=False, width_ratios=widths)[0]
    for axes, (by, groups) in zip(grid, panels.items(), strict=True):
        _draw(axes, groups, result.layers)
        axes.set_title(_TITLES[by], fontsize=10)
    grid[0].set_ylabel("dropped, as a multiple of the layer's mean", fontsize=9)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 8), frameon=False, fontsize=8)
    figure.suptitle(f"{result.source}, {result.examples:,} examples", fontsize=10)
    return saved(figure, path, dpi=130)


def _draw(axes: Any, groups: dict[str, list[DropShare]], layers: list[str]) -> None:
    """Draw a line for each layer: dark the first, bright the last."""
    import matplotlib

    colors = matplotlib.colormaps["viridis"]
    axes.axhline(1, color="0.6", linewidth=1, linestyle=":")
    for number, layer in enumerate(layers):
        by_layer = [next((share.ratio for share in of if share.layer == layer), float("nan")) for of in groups.values()]
        color = colors(0.9 * number / max(1, len(layers) - 1))
        axes.plot(range(len(groups)), by_layer, color=color, marker="o", markersize=4, label=layer.replace("_", " "))
    axes.set_xticks(range(len(groups)), list(groups), rotation=30, ha="right", fontsize=8)
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
