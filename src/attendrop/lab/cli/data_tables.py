"""Tables of the user's data: the examples of each part, their lengths, and how often each label occurs.

Nothing here imports torch, so that `attendrop check` starts quickly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table

from .console import console, plain_table, print_note, shown

if TYPE_CHECKING:
    from ..tasks import Data, Description


def show_data(data: Data) -> None:
    """Print the data of a study as its runs read them: the examples, the labels, the chosen columns, the warnings."""
    from ..tasks import describe

    description = describe(data)
    console.print(data_table(description))
    if description.balance:
        console.print(balance_table(description))
    for note in data.notes:
        print_note(note)


def data_table(description: Description) -> Table:
    """Return the number of examples of each part, and their lengths."""
    lengths_titles: tuple[str, ...] = (
        f"{description.unit}: median",
        "95 %",
        "longest",
        f"cut at {description.max_length}",
    )
    lengths_titles = lengths_titles if description.lengths else ()
    table = plain_table("part", "examples", *lengths_titles, align_right=True)
    table.title, table.title_justify = f"{shown(description.task)} ({description.kind})", "left"
    table.min_width = len(table.title)  # a title is wrapped at the width of the table
    for part, rows in description.rows.items():
        cells = [""] * len(lengths_titles)
        if lengths := description.lengths.get(part):
            cells = [f"{lengths.median:.0f}", f"{lengths.percentile95:.0f}", f"{lengths.longest}"]
            cells.append(f"{lengths.truncated:.1%}")
        table.add_row(shown(part), f"{rows:,}", *cells)
    return table


def balance_table(description: Description, most: int = 12) -> Table:
    """Return how many examples of each part have each label; of more than `most` labels, only the most frequent."""
    parts = description.balance
    table = plain_table("label", *parts, align_right=True)
    labels = list(description.labels)
    if len(labels) > most:
        first = next(iter(parts.values()))
        labels = sorted(labels, key=lambda label: -first.get(label, 0))[:most]
    for label in labels:
        table.add_row(shown(label), *(_share(description, part, label) for part in parts))
    if len(description.labels) > most:
        table.add_row(f"… {len(description.labels) - most} more", *[""] * len(parts))
    return table


def _share(description: Description, part: str, label: str) -> str:
    """Return how often a label occurs, and its share of the examples, or of all tags."""
    counts = description.balance[part]
    total = description.rows[part] if description.has_several_labels else sum(counts.values())
    count = counts.get(label, 0)
    return f"{count:,} ({count / max(1, total):.0%})"
