"""Runs a stage of the plan and appends one line for each run to docs/results/verdict/<stage>-<model>.csv.

    python -m benchmarks.verdict.run tune --data DATA --model MODEL --name minilm

It may be stopped at any time; started again, it leaves out the runs that have a line.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=PLAN["stages"])
    parser.add_argument("--data", required=True, help="the folder that `benchmarks.verdict.data` made")
    parser.add_argument("--model", required=True, help="the folder of the model")
    parser.add_argument("--name", default="minilm", help="name of the model in the file of the results")
    parser.add_argument("--method", action="append", help="a method of the plan; all of them without it")
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time")
    parser.add_argument("--minutes", type=float, default=600, help="no run begins after this time")
    parser.add_argument("--output", type=Path, default=RECORDS, help="folder of the results")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / f"{options.stage}-{options.name}.csv"
    lines = read(file)
    done = {row["id"] for row in lines if row["status"] == "finished"}
    with file.open("w", newline="", encoding="utf-8") as output:
        writer = csv.DictWriter(output, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(row for row in lines if row["id"] in done)
        output.flush()
        every = {run.id: run for run in runs(options.stage, options.data, options.model, options.method)}
        missing = [run for run in every.values() if portable_id(run) not in done]
        end = time.monotonic() + 60 * options.minutes
        for number, record in enumerate(results(missing, options.workers, end), 1):
            row = {**line(record), "id": portable_id(every[record["id"]])}
            writer.writerow(row)
            output.flush()
            score = row["accuracy"] or row["mcc"] or row["pearson"] or row["error"]
            print(f"{number}/{len(missing)} {row['task']} {row['seed']} {row['method']}: {score}", flush=True)


def results(missing: list[RunSpec], workers: int, end: float) -> Iterator[dict[str, Any]]:
    """The records of runs. All runs of one setting on one task go to one worker, which captures their graphs once.

    Args:
        missing: The runs.
        workers: How many runs there are at the same time.
        end: No run begins after this time (`time.monotonic`).
    """
    groups: dict[Any, list[RunSpec]] = {}
    for run in missing:
        groups.setdefault((run.task, run.size, run.method, repr(run.settings["method"]), _training(run)), []).append(
            run
        )
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # of each worker
    waiting: Queue[list[RunSpec]] = Queue()
    for group in groups.values():
        waiting.put(group)
    found: Queue[dict[str, Any] | BaseException | None] = Queue()
    threads = [Thread(target=_work, args=(waiting, found, end), daemon=True) for _ in range(workers)]
    for thread in threads:
        thread.start()
    at_work = len(threads)
    while at_work:
        record = found.get()
        if isinstance(record, BaseException):
            raise record
        if record is None:
            at_work -= 1
        else:
            yield record


def _training(run: RunSpec) -> tuple[Any, ...]:
    return run.settings["learning_rate"], run.settings["num_train_epochs"]


def _work(waiting: Queue[list[RunSpec]], found: Queue[dict[str, Any] | BaseException | None], end: float) -> None:
    """Runs groups of runs in one worker process until none is left."""
    group: list[RunSpec] = []

    def next_run() -> RunSpec | None:
        nonlocal group
        if time.monotonic() > end:
            return None
        if not group:
            with suppress(Empty):
                group = list(waiting.get_nowait())
        return group.pop(0) if group else None

    engine = make_engine("local", 1)
    try:
        for record in engine.results(next_run):
            found.put(record)
    except BaseException as error:
        found.put(error)
    finally:
        engine.close()
        found.put(None)


if __name__ == "__main__":
    main()
