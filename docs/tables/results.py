"""The rows of CSV files of results."""

from __future__ import annotations

import csv
from pathlib import Path

Row = dict[str, str]


def last_rows(path: Path, key: tuple[str, ...], **conditions: str) -> list[Row]:
    """The last row for each value of `key`, in the order in which the values first appear; none without results."""
    last: dict[tuple[str, ...], Row] = {}
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as lines:
        for row in csv.DictReader(lines):
            if all(row[name] == value for name, value in conditions.items()):
                last[tuple(row[name] for name in key)] = row
    return list(last.values())
