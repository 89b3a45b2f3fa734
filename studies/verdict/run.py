"""Runs stages of the plan and appends one line for each run to docs/results/verdict/<stage>-<model>.csv.

    python -m studies.verdict.run tune --data DATA --model MODEL --name minilm

It may be stopped at any time; started again, it leaves out the runs that have a line.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from attendrop.lab.records import StudyRecord
from attendrop.lab.studies.spec import RunSpec

from .lines import make_parser, run_parts
from .plan import FIRST_RECIPE, PLAN, runs

SCORES = ("accuracy", "mcc", "pearson", "macro_f1", "loss", "brier", "ece", "scaled_loss", "scaled_ece")
COLUMNS = (
    "id", "method", "setting", "learning_rate", "epochs", "task", "size", "seed", "status", *SCORES,
    "other", "other_accuracy", "other_loss", "seconds", "steps", "captured", "error",
)  # fmt: skip


def portable_id(run: RunSpec) -> str:
    """The name of a run, which does not depend on where the model and the data are."""
    settings = {
        name: value
        for name, value in run.settings.items()
        if name not in ("model", "data_dir", *FIRST_RECIPE) and not name.endswith("_file")
    }
    return dataclasses.replace(run, settings=settings).id


def line(record: StudyRecord) -> dict[str, Any]:
    """What is kept of a record."""
    settings, scores, cost = record.settings, record.scores, record.cost
    validation = scores.get("validation", {})
    others = {name: part for name, part in scores.items() if name != "validation"}
    other = next((name for name in others if not name.startswith("validation")), "")
    return {
        **{name: getattr(record, name) for name in ("id", "method", "task", "size", "seed", "status")},
        **{name: _rounded(validation.get(name, "")) for name in SCORES},
        "setting": " + ".join(settings.get("method", [])),
        "learning_rate": settings.get("learning_rate", ""),
        "epochs": settings.get("num_train_epochs", ""),
        "other": other,
        "other_accuracy": _rounded(others.get(other, {}).get("accuracy", "")),
        "other_loss": _rounded(others.get(other, {}).get("loss", "")),
        "seconds": cost.seconds,
        "steps": cost.steps,
        "captured": cost.captured,
        "error": " ".join(record.message.split())[:200],
    }


def line_of(name: str, record: StudyRecord) -> list[dict[str, Any]]:
    """The line of a record, for `append_lines`."""
    return [{**line(record), "id": name}]


def _rounded(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("stages", nargs="+", choices=PLAN["stages"], metavar="stage", help=", ".join(PLAN["stages"]))
    parser.add_argument("--method", action="append", help="a method of the plan; all of them without it")
    options = parser.parse_args()
    wanted = {
        stage: {
            portable_id(run): [run] for run in runs(stage, options.data, options.model, options.method, options.name)
        }
        for stage in options.stages
    }
    run_parts(COLUMNS, wanted, line_of, options)


if __name__ == "__main__":
    main()
