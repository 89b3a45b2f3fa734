"""The tables of the methods, from the front matter of their cards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import yaml

from attendrop.methods import method_names
from studies import RESULTS

from .markdown import table
from .results import last_rows

ROOT = Path(__file__).parents[2]
CARDS = "docs/methods"
RECIPE = "Recipe of the paper"


class Card(NamedTuple):
    """The front matter of docs/methods/<name>.md: what the tables say about a method."""

    name: str
    title: str
    paper: str
    url: str
    acts_on: str
    summary: str
    cost: str


def card(name: str) -> Card:
    """Reads the front matter of a card."""
    text = (ROOT / CARDS / f"{name}.md").read_text(encoding="utf-8")
    fields = yaml.safe_load(text.split("---\n")[1])
    return Card(name, **{field: str(value) for field, value in fields.items()})


def cards() -> list[Card]:
    """The cards of all methods, those that act on the same part of the model together."""
    return sorted(map(card, method_names()), key=lambda it: (it.acts_on, it.title.casefold()))


def methods() -> str:
    """One row for each method. The links are relative to the folder of the cards."""
    return table(
        ["method", "acts on", "cost", "paper", "what it does"],
        [[f"[{it.title}]({it.name}.md)", it.acts_on, it.cost, f"[{it.paper}]({it.url})", it.summary] for it in cards()],
    )


def works_with() -> str:
    """Where each method works; tests/scripts/works_with.py tried it."""
    tried = {row["method"]: row for row in last_rows(RESULTS / "works-with.csv", ("method",))}
    if missing := [it.name for it in cards() if it.name not in tried]:
        names = " ".join(missing)
        raise SystemExit(f"works-with.csv has no row for {names}: run `python tests/scripts/works_with.py {names}`.")
    settings = [name for name in next(iter(tried.values())) if name != "method"]
    return table(
        ["method", *settings],
        [[f"[{it.title}]({it.name}.md)"] + ["yes" if tried[it.name][s] == "yes" else "no" for s in settings]
         for it in cards()],
    )  # fmt: skip


def recipes() -> str:
    """The section "Recipe of the paper" of each card, for docs/paper-index.md."""
    return "\n".join(
        f"## {it.title}\n\n[{it.paper}]({it.url}). [Card](methods/{it.name}.md).\n\n{_section(it.name, RECIPE)}\n"
        for it in cards()
    )


def _section(name: str, title: str) -> str:
    """The text under a heading of a card."""
    _, _, rest = (ROOT / CARDS / f"{name}.md").read_text(encoding="utf-8").partition(f"\n## {title}\n")
    return rest.partition("\n## ")[0].strip()


TABLES: dict[str, Callable[[], str]] = {
    "methods": methods,
    "works-with": works_with,
    "recipes": recipes,
}
