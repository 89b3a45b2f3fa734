"""Findings about the user's data: errors that stop a run, warnings, and notes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

ERROR, WARNING, NOTE = "error", "warning", "note"


@dataclass(frozen=True)
class Finding:
    """One sentence about the data.

    Attributes:
        level: "error": the result would be wrong, so a run stops; "warning": should be checked; "note": a choice
            that was made.
        text: The sentence, without its full stop.
    """

    level: str
    text: str


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 word`, `2,000 words`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def listed(items: Iterable[object], most: int = 5) -> str:
    """Join the first items with commas, followed by the number of the others."""
    shown = [str(item) for item in items]
    rest = f" and {len(shown) - most:,} more" if len(shown) > most else ""
    return ", ".join(shown[:most]) + rest


def shortened(text: str, most: int = 40) -> str:
    """Return the beginning of a text, with an ellipsis if it is longer."""
    return text if len(text) <= most else f"{text[: most - 1].rstrip()}…"
