"""Tables and numbers in Markdown."""

from __future__ import annotations

NOT_YET = "Not measured yet.\n"  # in the place of a table without results


def table(titles: list[str], lines: list[list[str]]) -> str:
    """A table in Markdown."""
    return "".join(f"| {' | '.join(line)} |\n" for line in (titles, ["---"] * len(titles), *lines))


def two(value: str) -> str:
    return f"{float(value):.2f}" if value else ""


def percent(value: str | float | None) -> str:
    return "" if value in ("", None) else f"{float(value):.0f} %"  # type: ignore[arg-type]
