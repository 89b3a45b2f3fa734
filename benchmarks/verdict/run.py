"""Runs a stage of the plan and appends one line for each run to docs/results/verdict/<stage>-<model>.csv.

    python -m benchmarks.verdict.run tune --data DATA --model MODEL --name minilm

It may be stopped at any time; started again, it leaves out the runs that have a line.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from attendrop.study.engines import make_engine
from attendrop.study.spec import RunSpec

from ..tables import ROOT
from .plan import PLAN, runs

RECORDS = ROOT / "docs" / "results" / "verdict"
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
        if name not in ("model", "data_dir") and not name.endswith("_file")
    }
    return dataclasses.replace(run, settings=settings).id


def line(record: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a record."""
    settings, scores = record.get("settings", {}), record.get("scores", {})
    validation = scores.get("validation", {})
    others = {name: part for name, part in scores.items() if name != "validation"}
    other = next((name for name in others if not name.startswith("validation")), "")
    cost = record.get("cost") or {}
    return {
        **{name: record.get(name, "") for name in ("id", "method", "task", "size", "seed", "status")},
        **{name: _rounded(validation.get(name, "")) for name in SCORES},
        "setting": " + ".join(settings.get("method", [])),
        "learning_rate": settings.get("learning_rate", ""),
        "epochs": settings.get("num_train_epochs", ""),
        "other": other,
        "other_accuracy": _rounded(others.get(other, {}).get("accuracy", "")),
        "other_loss": _rounded(others.get(other, {}).get("loss", "")),
        "seconds": cost.get("seconds", ""),
        "steps": cost.get("steps", ""),
        "captured": cost.get("captured", ""),
        "error": " ".join((record.get("error") or {}).get("message", "").split())[:200],
    }


def _rounded(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def read(file: Path) -> list[dict[str, str]]:
    """The lines of complete runs; the last line is left out if it was cut."""
    if not file.is_file():
        return []
    text = file.read_text(encoding="utf-8")
    return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))


def options_of(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """Adds the options that all studies have, and reads the command line.

    Args:
        parser: A parser with the options of the study.
    """
    parser.add_argument("--data", required=True, help="the folder that `benchmarks.verdict.data` made")
    parser.add_argument("--model", required=True, help="the folder of the model")
    parser.add_argument("--name", default="minilm", help="name of the model in the file of the results")
    parser.add_argument("--workers", type=int, help="runs at the same time; by default as many as fit")
    parser.add_argument("--minutes", type=float, default=600, help="no run begins after this time")
    parser.add_argument("--output", type=Path, default=RECORDS, help="folder of the results")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    return options


def remove_failed(file: Path, columns: Sequence[str]) -> None:
    """Keeps the lines of finished runs only, so that all others are run again. The file is created if needed.

    Args:
        file: The file of the results.
        columns: Its columns.
    """
    finished = [row for row in read(file) if row["status"] == "finished"]
    with file.open("w", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(finished)


def append_runs(
    file: Path,
    columns: Sequence[str],
    runs: Iterable[RunSpec],
    engine: Any,
    end: float,
    make_line: Callable[[dict[str, Any]], dict[str, Any]],
) -> bool:
    """Runs what has no line yet, and appends a line for each run.

    Args:
        file: The file of the results, which exists.
        columns: Its columns.
        runs: All runs of the stage.
        engine: The engine.
        end: When no further run begins, as `time.monotonic` tells the time.
        make_line: The line of a record, without its id.

    Returns:
        Whether all runs have a line now.
    """
    done = {row["id"] for row in read(file)}
    every = {run.id: run for run in runs}
    missing = deque(run for run in every.values() if portable_id(run) not in done)
    total = len(missing)
    with file.open("a", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, columns, lineterminator="\n")
        for number, record in enumerate(
            engine.results(lambda: missing.popleft() if missing and time.monotonic() < end else None), 1
        ):
            row = {**make_line(record), "id": portable_id(every[record["id"]])}
            writer.writerow(row)
            output.flush()
            score = row["accuracy"] or row.get("mcc") or row.get("pearson") or row["error"]
            print(f"{number}/{total} {row['task']} {row['seed']} {row['method']}: {score}", flush=True)
    return not missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=PLAN["stages"])
    parser.add_argument("--method", action="append", help="a method of the plan; all of them without it")
    options = options_of(parser)
    file = options.output / f"{options.stage}-{options.name}.csv"
    remove_failed(file, COLUMNS)
    engine = make_engine("local", options.workers)
    try:
        wanted = runs(options.stage, options.data, options.model, options.method)
        append_runs(file, COLUMNS, wanted, engine, time.monotonic() + 60 * options.minutes, line)
    finally:
        engine.close()


if __name__ == "__main__":
    main()
