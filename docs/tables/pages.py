"""Replaces the marked tables of all pages, and writes the generated files."""

from __future__ import annotations

import argparse
import re
from importlib import import_module

from . import compression, methods, research, timings
from .methods import ROOT, works_with

PAGES = (
    "README.md",
    *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")),
)
MARKED = re.compile(r"(<!-- table: (?P<name>[a-z0-9_-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)

# What names of tables begin with -> the module of a study that makes them.
STUDIES = {"verdict": "verdict.page", "attendout": "verdict.attendout.report", "reproduction": "reproduction.page"}
TABLES = {**timings.TABLES, **methods.TABLES, **research.TABLES, **compression.TABLES}


def generated(name: str) -> str:
    """The content of a table. Those of some studies are made in their own packages, which read this module."""
    of_the_study = STUDIES.get(name.partition("-")[0])
    if of_the_study is None:
        return TABLES[name]()
    return str(import_module(f"studies.{of_the_study}").TABLES[name]())


def renewed(text: str) -> str:
    """`text` with every marked table generated again."""
    return MARKED.sub(lambda match: match[1] + generated(match["name"]) + match[3], text)


# Whole files -> the module and the function that make them.
FILES = {
    "src/attendrop/__init__.pyi": ("docs.stub", "stub"),
    "docs/images/speed.svg": ("docs.tables.timings", "speed_figure"),
    "docs/images/verdict.svg": ("studies.verdict.figure", "draw"),
}


def _made(file: str) -> str:
    module, function = FILES[file]
    return str(getattr(import_module(module), function)())


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    options = parser.parse_args(arguments)
    works_with()  # says what is missing before anything is written
    stale = []
    for name in (*FILES, *PAGES):  # the list of public names even where a table cannot be made yet
        path = ROOT / name
        before = path.read_text(encoding="utf-8") if path.is_file() else None
        after = _made(name) if name in FILES else renewed(before or "")
        if after != before:
            stale.append(name)
            if not options.check:
                path.write_text(after, encoding="utf-8")
    print(
        ", ".join(stale) + (" out of date: run `make tables`" if options.check else " written")
        if stale
        else "up to date"
    )
    return 1 if stale and options.check else 0
