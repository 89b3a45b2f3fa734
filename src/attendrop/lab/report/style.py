"""Colours, line styles and markers that can be told apart by colour-blind readers and in grey print."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from ...utils.files import whole_file

# Okabe and Ito, "Color Universal Design", 2008, without its yellow, which is hard to see on white.
BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK = (
    "#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000",
)  # fmt: skip
COLORS = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK)
MARKERS = "osD^vPX*"


def line_style(number: int) -> dict[str, Any]:
    """Colour and marker of the line with this number. Marker and colour repeat after different counts.

    Args:
        number: The number of the line, from 0.
    """
    return {"color": COLORS[number % len(COLORS)], "marker": MARKERS[number % len(MARKERS)], "markersize": 4}


def saved(figure: Any, path: str | Path | None, dpi: int = 120) -> Any:
    """Return the figure, after writing it to a file if one is given.

    Args:
        figure: The matplotlib figure.
        path: The image file; None = none is written.
        dpi: Dots for each inch.
    """
    if path is not None:
        with whole_file(path) as file, warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph .* missing")  # of a label; it is drawn as a box
            figure.savefig(file, dpi=dpi, format=Path(path).suffix.removeprefix(".").lower() or "png")
    return figure
