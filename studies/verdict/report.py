"""Writes the report of the confirmation runs, as `attendrop compare` writes one, from their lines.

    python -m studies.verdict.report --name minilm

The lines hold no predictions of single examples and no curves, so that these parts of a report are missing.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from attendrop.lab.records import Cost, ModelFacts, RunError, StudyConfiguration, StudyRecord
from attendrop.lab.report.page import Analysis, checked_analysis, render_page
from attendrop.lab.studies.analysis import analyse_records

from .parts import PLAIN, UPPER_LINE, Rows, confirmation_rows
from .recommend import primary_size
from .run import SCORES
from .show import MODELS, examples

FOLDER = Path(__file__).parents[2] / "docs" / "studies"


def record_of(row: dict[str, str], model: str) -> StudyRecord:
    """A record of a run, as far as its line has it.

    Args:
        row: The line.
        model: The name of the model.
    """
    scores = {name: float(row[name]) for name in SCORES if row[name]}
    has_failed = row["status"] != "finished"
    named = {"learning_rate": row["learning_rate"], "num_train_epochs": row["epochs"]}
    training = {name: float(value) for name, value in named.items() if value}
    return StudyRecord(
        id=row["id"],
        status="failed" if has_failed else "finished",
        method=row["method"],
        task=row["task"],
        size=row["size"],
        seed=int(row["seed"]),
        settings={**training, "method": row["setting"].split(" + ") if row["setting"] else []},
        scores={} if has_failed else {"validation": scores},
        metric="accuracy",
        model=ModelFacts(model),
        cost=Cost(seconds=float(row["seconds"]) if row["seconds"] else None),
        error=RunError("Error", row["error"]) if has_failed else None,
    )


def analysis_of(rows: Rows, name: str) -> Analysis:
    """The analysis of the confirmation runs.

    Args:
        rows: Their lines.
        name: The name of the model in the files.
    """
    methods = list(dict.fromkeys([PLAIN, *(row["method"] for row in rows)]))
    title = f"The verdict: {MODELS[name]}, {examples(primary_size()):,} training examples"
    command = f"python -m studies.verdict.run confirm --data DATA --model MODEL --name {name}"
    study = StudyConfiguration(methods=methods, title=title, command=command)
    return analyse_records([record_of(row, MODELS[name]) for row in rows if row["accuracy"] or row["error"]], study)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="minilm", choices=MODELS, help="name of the model in the file of the results")
    name = parser.parse_args().name
    folder = FOLDER / f"verdict-{name}"
    folder.mkdir(parents=True, exist_ok=True)
    # An ensemble is several models: it is judged apart, and not one of the methods for which verdicts are corrected.
    rows = [row for row in confirmation_rows(name, primary_size()) if row["method"] != UPPER_LINE]
    page = render_page(checked_analysis(analysis_of(rows, name)))
    (folder / "report.html").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
