"""Compares the epochs and the learning rate that attendrop chooses by itself with the best of a small grid.

    python -m benchmarks.defaults --model DIR --data DIR --seeds 3 --workers 12

Six small data sets, all runs through the workers of a study. `--data` is a folder of the Hub's Parquet files, as for
`attendrop train --data-dir`. Each run is scored after its last epoch on the first examples of the validation data, and
is a row of `results/defaults.csv`. A best of several means is a little too good by chance; the choice is not.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .records import RESULTS, append, conditions

# task -> the number of training examples
TASKS = {"glue/sst2": 300, "glue/stsb": 300, "conll2003": 300, "glue/mrpc": 500, "glue/rte": 1000, "glue/cola": 1000}
EPOCHS, RATES = (3, 10, 20), (2e-5, 5e-5, 1e-4)
CHOSEN = "chosen"


def specs(options: argparse.Namespace) -> Iterator[Any]:
    """All runs; those of one task come together, so that the workers change their data rarely."""
    from attendrop.study.spec import RunSpec

    grid: list[dict[str, Any]] = [
        {"num_train_epochs": epochs, "learning_rate": rate} for epochs, rate in itertools.product(EPOCHS, RATES)
    ]
    for task, own, seed in itertools.product(options.tasks, [{}, *grid], range(options.seeds)):
        settings = {
            "model": str(options.model), "task": task, "data_dir": str(options.data), "max_length": 128,
            "max_train_samples": options.examples or TASKS[task], "max_eval_samples": options.evaluated,
            "eval_strategy": "no", "seed": seed, **own,
        }  # fmt: skip
        yield RunSpec(settings, method="grid" if own else CHOSEN, task=task, seed=seed)


def row_of(record: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The row of a finished run."""
    if record["status"] != "finished":
        raise RuntimeError(f"{record['task']} with seed {record['seed']} failed: {record['error']}")
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
        **conditions("cpu" if record["device"] == "cpu" else "cuda"),
    }


def summaries(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For each data set: the mean score of the choice, the best point of the grid with its mean, and their difference.

    Args:
        rows: Rows of `row_of`, or of the CSV file.
    """
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault(tuple(str(row[name]) for name in ("task", "examples", "evaluated", "metric")), []).append(row)
    found = []
    for (task, examples, evaluated, metric), mine in groups.items():
        points: dict[tuple[str, str, str], list[float]] = {}
        for row in mine:
            points.setdefault((row["by"], row["epochs"], row["rate"]), []).append(float(row["score"]))
        means = {point: statistics.mean(scores) for point, scores in points.items()}
        chosen = next(point for point in means if point[0] == CHOSEN)
        best = max((point for point in means if point[0] != CHOSEN), key=lambda point: means[point])
        found.append(
            {
                "task": task, "examples": examples, "evaluated": evaluated, "metric": metric,
                "seeds": len(points[chosen]), "chosen": chosen[1:], "score": means[chosen], "best": best[1:],
                "best score": means[best], "difference": means[chosen] - means[best],
            }
        )  # fmt: skip
    return found


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, type=Path, help="a folder, such as that of all-MiniLM-L6-v2")
    parser.add_argument("--data", required=True, type=Path, help="folder of the Hub's Parquet files")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--examples", type=int, help="training examples (default: as in the table TASKS)")
    parser.add_argument("--evaluated", type=int, default=1000, help="validation examples")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--workers", type=int, help="processes (default: as many as fit; 0 = this process)")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--output", type=Path, default=RESULTS / "defaults.csv")
    options = parser.parse_args(arguments)
    from attendrop.study.engines import make_engine

    waiting, rows = specs(options), []
    engine = make_engine(workers=options.workers, device=options.device)
    try:
        for record in engine.results(lambda: next(waiting, None)):
            rows.append(row_of(record, options))
            append(options.output, rows[-1:], is_quiet=True)
            shown = {name: rows[-1][name] for name in ("task", "by", "epochs", "rate", "seed", "score", "seconds")}
            print("  ".join(map(str, shown.values())), flush=True)
    finally:
        engine.close()
    for found in summaries(rows):
        print(
            f"{found['task']}: chosen {' × '.join(found['chosen'])} {found['score']:.2f}, best of the grid "
            f"{' × '.join(found['best'])} {found['best score']:.2f}, difference {found['difference']:+.2f}"
        )


if __name__ == "__main__":
    main()
