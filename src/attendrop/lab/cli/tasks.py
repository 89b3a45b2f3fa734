"""`attendrop tasks`: the data sets that are known by name."""

from __future__ import annotations

from .console import console, plain_table


def command() -> None:
    from ..tasks.catalogue import TASKS

    table = plain_table("task", "kind", "metrics", "on the Hub")
    for name, task in TASKS.items():
        table.add_row(name, task.kind, ", ".join(task.metrics), task.hub or "")
    console.print(table)
