"""An outcome as Markdown: the paper's numbers beside ours, the claims, and the settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .entry import PROTOCOLS, Entry
from .outcome import NOT_TRANSCRIBED, Cell, Outcome
from .registry import find_entry

_RATIOS = ("cost",)
READING = (
    "The content of this table or figure is our reading: the documents of this project do not say what the paper shows "
    "under this number."
)


def markdown_of(outcome: Outcome, figure: str | None = None) -> str:
    """Return the page of an outcome.

    Args:
        outcome: The outcome.
        figure: The file of its figure, relative to the page; None = it has none.
    """
    return f"# {outcome.heading}: {outcome.title}\n\n{body_of(outcome, figure)}"


def body_of(outcome: Outcome, figure: str | None = None) -> str:
    """Return the page of an outcome without its heading.

    Args:
        outcome: The outcome.
        figure: The file of its figure, relative to the page; None = it has none.
    """
    entry = find_entry(outcome.entry)
    parts = _introduction(outcome)
    if figure is not None:
        parts.append(f"![{outcome.title}]({figure})")
    parts.append(table_of(outcome, entry))
    if outcome.verdicts:
        rows = [[v.text, v.source, v.ours, f"**{v.verdict}**"] for v in outcome.verdicts]
        parts.append(_table(["the paper says", "where", "ours, with 95 % interval", "verdict"], rows))
    if outcome.failed:
        parts.append(f"{len(outcome.failed)} of {outcome.runs} runs failed; the first: {outcome.failed[0]}")
    if outcome.command:
        parts.append(f"    {outcome.command}")
    return "\n\n".join(parts) + "\n"


def _introduction(outcome: Outcome) -> list[str]:
    model = Path(outcome.model).name
    own = "the paper's model" if outcome.papers_model else "not a model of the paper"
    data = "; ".join(f"{task}: {examples}" for task, examples in outcome.examples.items())
    seeds = f"{outcome.seeds} seed" + ("" if outcome.seeds == 1 else "s")
    facts = f"{model} ({own}), {outcome.scale} scale, {seeds}, {outcome.runs} runs, {outcome.minutes:.1f} minutes on "
    facts += f"{outcome.device or 'an unknown device'}. {data}."
    if outcome.changed:
        facts += f" Changed: {', '.join(f'{name} = {value}' for name, value in outcome.changed.items())}."
    protocols = "; ".join(f"{name}: {PROTOCOLS[name]}" for name in outcome.protocols)
    lines = [facts, f"{outcome.setting} Protocols: {protocols}."]
    if outcome.scale == "small":
        lines.append("Small scale shows that the experiment runs. Its numbers say nothing about the paper.")
    return lines + ([READING] if outcome.is_reading else [])


def table_of(outcome: Outcome, entry: Entry) -> str:
    """Return the numbers as a Markdown table: rows, and a column for each column and protocol.

    Args:
        outcome: The outcome.
        entry: Its entry.
    """
    header, rows = table_rows(outcome, entry)
    return _table(header, rows)


def table_rows(outcome: Outcome, entry: Entry) -> tuple[list[str], list[list[str]]]:
    """Return the header and the rows of the table.

    Args:
        outcome: The outcome.
        entry: Its entry.
    """
    places = list(dict.fromkeys((cell.column, x) for cell in outcome.cells for x in _shown_places(outcome, cell)))
    rows = []
    for column, x in places:
        for row in dict.fromkeys(cell.row for cell in outcome.cells):
            cells = {p: outcome.find(row, column, p, x) for p in outcome.protocols}
            if all(cell is None for cell in cells.values()):
                continue
            where = column if x is None else f"{column}, {entry.axis} = {x:g}"
            rows.append([where, row, _published(entry, row, column), *(_cell(c, entry) for c in cells.values())])
    return ["", "row", "paper", *(f"ours, {protocol} protocol" for protocol in outcome.protocols)], rows


def _shown_places(outcome: Outcome, cell: Cell) -> list[float | None]:
    """Return the places of a line that the table shows: all of a few, otherwise the first, the middle and the last."""
    places = sorted({c.x for c in outcome.cells if c.column == cell.column and c.x is not None})
    if not places:
        return [None]
    chosen: list[float | None] = [*places] if len(places) <= 6 else [places[0], places[len(places) // 2], places[-1]]
    return [None, *chosen] if any(c.x is None for c in outcome.cells if c.column == cell.column) else chosen


def _published(entry: Entry, row: str, column: str) -> str:
    numbers = [n for n in entry.numbers if n.row == row and n.column.removeprefix("glue/") == column]
    return ", ".join(f"{n.value:.4g} ({n.model})" for n in numbers) or NOT_TRANSCRIBED


def _cell(cell: Cell | None, entry: Entry) -> str:
    if cell is None:
        return ""
    text = f"{cell.mean:.4f}" if entry.measure not in _RATIOS else f"{cell.mean:.2f} ×"
    if entry.measure == "deviation" and cell.deviation is not None:
        text += f" ± {cell.deviation:.4f}"
    elif cell.interval is not None:
        text += f" [{cell.interval[0]:.4f}, {cell.interval[1]:.4f}]"
    if cell.difference is not None and entry.measure not in _RATIOS:
        text += f"; {cell.difference:+.4f}"
        if cell.difference_interval is not None:
            text += f" [{cell.difference_interval[0]:+.4f}, {cell.difference_interval[1]:+.4f}]"
    return text


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
