"""Stores the complete outcomes of a sitting, and makes the tables of docs/reproduction.md from what is stored.

python -m studies.reproduction.page RECORDS     # then `make tables`
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path

from attendrop.lab.reproduction.entry import PAPERS, Entry
from attendrop.lab.reproduction.figures import draw
from attendrop.lab.reproduction.outcome import OUTCOME_FILE, Outcome, verdicts_of
from attendrop.lab.reproduction.page import body_of
from attendrop.lab.reproduction.registry import ENTRIES
from attendrop.lab.reproduction.run import needed_of
from attendrop.utils.files import write_whole
from docs.tables.markdown import table

from .plan import CPU, GPU, MODELS, PARTS, Part, sittings
from .run import command_of, unpack

DOCS = Path(__file__).parents[2] / "docs"
RESULTS, IMAGES = DOCS / "results" / "reproduction", DOCS / "images" / "reproduction"
NOT_YET = "not measured yet"


def store(archive: Path, results: Path = RESULTS, images: Path = IMAGES) -> list[str]:
    """Store the outcomes of an archive, without the paths of the machine, and draw their figures.

    Args:
        archive: The file that `run` wrote.
        results: The folder of the outcomes.
        images: The folder of the figures.
    """
    stored = []
    for folder in (results, images):
        folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as place:
        unpack(archive, Path(place))
        for part in (*PARTS[GPU], *PARTS[CPU]):
            file = Path(place) / "studies" / part.name / OUTCOME_FILE
            if not file.is_file():
                continue
            changed = {name: str(value) for name, value in part.settings.items()}
            outcome = replace(
                Outcome.read(file, "run the part again"),
                model=MODELS[part.model][3], command=command_of(part), changed=changed,
            )  # fmt: skip
            write_whole(results / f"{part.name}.json", json.dumps(outcome.to_json(), indent=1) + "\n")
            if (drawing := ENTRIES[part.entry].drawing) != "none":
                draw(outcome, drawing, images / f"{part.name}.png")
            stored.append(part.name)
    return stored


def measured(entry: Entry, model: str, results: Path = RESULTS) -> tuple[Part, Outcome] | None:
    """Return the outcome of an entry on a model: that of a GPU if there is one; None if there is none.

    What the papers say is compared with its numbers by the rules of today.

    Args:
        entry: The entry.
        model: A key of `MODELS`.
        results: The folder of the outcomes.
    """
    for part in (*PARTS[GPU], *PARTS[CPU]):
        file = results / f"{part.name}.json"
        if (part.entry, part.model) == (entry.name, model) and file.is_file():
            outcome = Outcome.read(file, "store it again")
            outcome.setting = entry.setting
            outcome.verdicts = verdicts_of(entry, outcome.cells, outcome.papers_model, outcome.scale)
            return part, outcome
    return None


def state(results: Path = RESULTS) -> str:
    """What came out of every entry, in a word for each model."""
    rows = [
        [f"`{entry.name}`", entry.title, *(_word(measured(entry, model, results)) for model in MODELS)]
        for entry in ENTRIES.values()
    ]
    return table(["entry", "what it shows", *(of[3] for of in MODELS.values())], rows)


def _word(outcomes: tuple[Part, Outcome] | None) -> str:
    if outcomes is None:
        return NOT_YET
    part, outcome = outcomes
    counts = Counter(verdict.verdict for verdict in outcome.verdicts)
    said = ", ".join(f"{counts[word]} {word}" for word in ("agree", "differ", "cannot tell") if counts[word])
    return (said or "measured; the paper's numbers are not known") + (" (subset, CPU)" if part.device == CPU else "")


def entries(results: Path = RESULTS) -> str:
    """A section for each entry."""
    parts = []
    for paper, (title, place) in PAPERS.items():
        parts.append(f"## {title}, {place}")
        for entry in ENTRIES.values():
            if entry.paper == paper:
                parts += _section(entry, results)
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _section(entry: Entry, results: Path) -> list[str]:
    parts = [f"### {entry.heading}: {entry.title}"]
    outcomes = [one for model in MODELS if (one := measured(entry, model, results)) is not None]
    for part, outcome in outcomes:
        figure = None if entry.drawing == "none" else f"images/reproduction/{part.name}.png"
        parts += [f"**{outcome.model}**", body_of(outcome, figure)]
    if not outcomes:
        planned = [MODELS[part.model][3] for part in PARTS[GPU] if part.entry == entry.name]
        where = f"planned on {' and '.join(planned)}" if planned else f"not planned; it needs {needed_of(entry)}"
        parts.append(f"{NOT_YET.capitalize()}; {where}.")
    return parts


def plan() -> str:
    """The parts for a GPU by sitting, with the expected minutes."""
    rows = [
        [str(number), f"`{part.name}`", f"{part.count:,}", f"{part.minutes:.0f}", f"`{command_of(part)}`"]
        for number, parts in enumerate(sittings(), 1)
        for part in parts
    ]
    return table(["sitting", "part", "runs", "minutes", "what it is"], rows)


TABLES = {"reproduction-state": state, "reproduction-entries": entries, "reproduction-plan": plan}


def main(arguments: list[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", type=Path, help="the file that `studies.reproduction.run --records` wrote")
    stored = store(parser.parse_args(arguments).records)
    print(f"stored: {', '.join(stored) or 'nothing is complete'}")


if __name__ == "__main__":
    main()
