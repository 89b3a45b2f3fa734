"""Compares the epochs and the learning rate that attendrop chooses by itself with the best of a small grid.

    python -m studies.defaults --model DIR --data DIR --seeds 4 --workers 12 --bf16

Six small data sets, all runs through the workers of a study. `--data` is a folder of the Hub's Parquet files, as for
`attendrop train --data-dir`, with the training and validation files of these tasks (5 MB). Each run is scored after its
last epoch on the first examples of the validation data, and is a row of `results/defaults.csv`; the table is printed,
and written beside that file as Markdown. A best of several means is a little too good by chance; the choice is not.

All runs of a seed come before those of the next one, and the table is made of the seeds that are complete. So
`--seconds` can end the script early.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.records import append, conditions
from docs.tables.markdown import table

from . import RESULTS

# task -> the number of training examples
TASKS = {"glue/sst2": 300, "glue/stsb": 300, "conll2003": 300, "glue/mrpc": 500, "glue/qnli": 1000, "glue/cola": 1000}
EPOCHS, RATES = (3, 10, 20), (2e-5, 5e-5, 1e-4)
CHOSEN, GRID = "chosen", "grid"


def specs(options: argparse.Namespace) -> Iterator[Any]:
    """All runs; those of one seed and task come together, so that the workers change their data rarely."""
    from attendrop.lab.studies.spec import RunSpec

    points: list[dict[str, Any]] = [{}] if CHOSEN in options.by else []
    if GRID in options.by:
        points += [{"num_train_epochs": epochs, "learning_rate": rate} for epochs in EPOCHS for rate in RATES]
    for seed, task, own in itertools.product(range(options.seeds), options.tasks, points):
        settings = {
            "model": str(options.model), "task": task, "data_dir": str(options.data), "max_length": 128,
            "max_train_samples": options.examples or TASKS[task], "max_eval_samples": options.evaluated,
            "eval_strategy": "no", "bf16": options.bf16, "seed": seed, **own,
        }  # fmt: skip
        yield RunSpec(settings, method=GRID if own else CHOSEN, task=task, seed=seed)


def row_of(record: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The row of a finished run."""
    used = record["settings"]
    return {
        "model": Path(options.model).name,
        "task": record["task"],
        "examples": record["examples"]["train"],
        "evaluated": record["examples"]["validation"],
        "by": record["method"],
        "epochs": f"{used['num_train_epochs']:g}",
        "rate": f"{used['learning_rate']:g}",
        "seed": record["seed"],
        "metric": record["metric"],
        "score": round(100 * record["scores"]["validation"][record["metric"]], 2),
        "steps": record["cost"]["steps"],
        "seconds": record["cost"]["seconds"],
        "precision": "bf16" if options.bf16 else "float32",
        **conditions("cpu" if record["device"] == "cpu" else "cuda"),
    }


def summaries(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each data set: the mean score of the choice, the best point of the grid with its mean, and their difference.

    The means are those of the seeds that all points have. Where the choice has changed, the last one counts.

    Args:
        rows: Rows of `row_of`, or of the CSV file.
    """
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row[name]) for name in ("task", "examples", "evaluated", "metric")), []).append(row)
    summaries_of_tasks = []
    for (task, examples, evaluated, metric), mine in groups.items():
        points: dict[tuple[str, str, str], dict[str, float]] = {}
        for row in mine:
            points.setdefault((row["by"], row["epochs"], row["rate"]), {})[str(row["seed"])] = float(row["score"])
        grid = [point for point in points if point[0] == GRID]
        choices = [(row["by"], row["epochs"], row["rate"]) for row in mine if row["by"] == CHOSEN]
        if not (grid and choices):
            continue
        chosen = choices[-1]
        seeds = set.intersection(*(set(points[point]) for point in [chosen, *grid]))
        if not seeds:
            continue
        means = {point: statistics.mean(points[point][seed] for seed in seeds) for point in [chosen, *grid]}
        best = max(grid, key=lambda point: means[point])
        summaries_of_tasks.append(
            {
                "task": task, "examples": examples, "evaluated": evaluated, "metric": metric, "seeds": len(seeds),
                "chosen": chosen[1:], "score": means[chosen], "best": best[1:], "best score": means[best],
                "difference": means[chosen] - means[best],
            }
        )  # fmt: skip
    return summaries_of_tasks


def markdown(rows: list[dict[str, Any]]) -> str:
    """The table of `summaries`, for a page.

    Args:
        rows: Rows of `row_of`, or of the CSV file.
    """
    titles = ["task", "examples", "evaluated on", "seeds", "score"]
    titles += ["chosen (epochs × rate)", "best of the grid", "points"]
    lines = [
        [
            summary["task"], summary["examples"], summary["evaluated"], str(summary["seeds"]), summary["metric"],
            f"{summary['score']:.1f} ({' × '.join(summary['chosen'])})",
            f"{summary['best score']:.1f} ({' × '.join(summary['best'])})", f"{summary['difference']:+.1f}",
        ]
        for summary in summaries(rows)
    ]  # fmt: skip
    return table(titles, lines)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="a folder, such as that of all-MiniLM-L6-v2")
    parser.add_argument("--data", required=True, type=Path, help="folder of the Hub's Parquet files")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--examples", type=int, help="training examples (default: as in the table TASKS)")
    parser.add_argument("--evaluated", type=int, default=1000, help="validation examples")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, help="processes (default: as many as fit; 0 = this process)")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--bf16", action="store_true", help="train and evaluate in bfloat16")
    parser.add_argument("--by", nargs="+", choices=(CHOSEN, GRID), default=[CHOSEN, GRID], help="which points to run")
    parser.add_argument("--seconds", type=float, help="start no run after this time (default: all runs)")
    parser.add_argument("--output", type=Path, default=RESULTS / "defaults.csv")
    options = parser.parse_args(arguments)
    from attendrop.lab.studies.executors import make_engine

    waiting, rows, failures = specs(options), list[dict[str, Any]](), 0
    end = time.monotonic() + (options.seconds or float("inf"))
    engine = make_engine(workers=options.workers, device=options.device)
    try:
        for record in engine.results(lambda: next(waiting, None) if time.monotonic() < end else None):
            if record["status"] != "finished":
                failures += 1
                print(f"{record['task']} with seed {record['seed']} failed: {record['error']}", flush=True)
                continue
            rows.append(row_of(record, options))
            append(options.output, rows[-1:], is_quiet=True)
            shown = {name: rows[-1][name] for name in ("task", "by", "epochs", "rate", "seed", "score", "seconds")}
            print("  ".join(map(str, shown.values())), flush=True)
    finally:
        engine.close()
        options.output.with_suffix(".md").write_text(markdown(rows), encoding="utf-8")
        print(markdown(rows))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
