"""The CSV files of results: rows are appended and never edited, each with the conditions of its measurement."""

from __future__ import annotations

import csv
import datetime
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def conditions(device: str, **more: Any) -> dict[str, Any]:
    """Date, machine and versions, for the first columns of a row.

    Args:
        device: "cpu" or "cuda".
        more: Further columns, before the versions.
    """
    import torch
    import transformers

    import attendrop

    return {
        "date": datetime.date.today().isoformat(),
        "device": torch.cuda.get_device_name() if device == "cuda" else platform.machine(),
        "threads": torch.get_num_threads(),
        **more,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "attendrop": attendrop.__version__,
    }


def append(path: Path, rows: list[dict[str, Any]], is_quiet: bool = False) -> None:
    """Appends rows to a CSV file, which is created if needed. Columns that are new in it stay empty in older rows."""
    path.parent.mkdir(parents=True, exist_ok=True)
    older: list[dict[str, Any]] = []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            older = list(csv.DictReader(file))
    columns = list(dict.fromkeys(name for row in [*older[:1], *rows] for name in row))
    is_new = not older or columns != list(older[0])
    with path.open("w" if is_new else "a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns, restval="", lineterminator="\r\n")
        if is_new:
            writer.writeheader()
        writer.writerows([*older, *rows] if is_new else rows)
    if not is_quiet:
        print(f"appended to {path}")


def spread_of(values: Sequence[float], median: float | None = None) -> float:
    """The difference of the largest and the smallest value, in percent of the median.

    Args:
        values: Of the rounds of a measurement.
        median: Theirs by default.
    """
    return round(100 * (max(values) - min(values)) / (median or statistics.median(values)), 1)
