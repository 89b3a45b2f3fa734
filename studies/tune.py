"""What tuning is worth: the setting that `attendrop tune` chooses against all random settings, on the development set.

    python -m studies.tune --model DIR --data DIR --task glue/rte --size full --folder runs/tune-rte

The search sees splits of the training data only. When it has chosen, every setting that it tried is run on the
development set too, with the same seeds, so that the choice can be compared with the median random setting and with the
best one in hindsight. One row for each method is appended to a CSV file. Started again, it goes on.
"""

from __future__ import annotations

import argparse
import statistics
from contextlib import closing
from pathlib import Path
from typing import Any

from attendrop.lab.cli.console import quiet_libraries
from attendrop.lab.studies.driver import run_study
from attendrop.lab.studies.executors import make_engine
from attendrop.lab.studies.tune import TuneListener, Tuner, tune
from attendrop.lab.studies.tune_design import make_tune_config
from benchmarks.records import append, conditions

from . import RESULTS

# size -> settings of every run, trials for each method, splits, seeds on the development set
SIZES: dict[str, tuple[dict[str, Any], int, int, int]] = {
    "tiny": ({"max_train_samples": 120, "max_eval_samples": 60, "num_train_epochs": 2}, 3, 2, 2),
    "small": ({"fraction": 0.25, "num_train_epochs": 3}, 20, 2, 3),
    "full": ({"num_train_epochs": 3}, 20, 3, 3),
}


class Printer(TuneListener):
    """Prints a line for each trial."""

    def trial_ended(self, method: str, number: int, state: str, score: float | None) -> None:
        print(f"{method}: trial {number}: {state}{'' if score is None else f' {score:.4f}'}", flush=True)


def dev_scores(tuner: Tuner, method: str, records: dict[str, Any]) -> dict[int, float]:
    """The mean score on the development set of the setting of each trial."""
    scores = {}
    for trial in tuner.searches[method].finished():
        runs = [records[spec.id] for spec in tuner.config.final_specs(method, trial.params, role(trial))]
        of_runs = [run["scores"]["validation"][run["metric"]] for run in runs if run["status"] == "finished"]
        if of_runs:
            scores[trial.number] = statistics.fmean(of_runs)
    return scores


def role(trial: Any) -> str:
    """What the runs of a trial on the development set are called."""
    return f"trial {trial.number} in hindsight"


def row_of(tuner: Tuner, method: str, scores: dict[int, float]) -> dict[str, Any]:
    """The chosen setting among all settings that were tried, by its score on the development set."""
    best = tuner.best(method)
    assert best is not None
    chosen = scores[best.number]
    sign = 1 if tuner.greater_is_better else -1
    beaten = sum(sign * score < sign * chosen for score in scores.values())
    return {
        "method": method,
        "trials": tuner.config.trials,
        "splits": tuner.config.repeats,
        "seeds": tuner.config.final_seeds,
        "setting": " ".join(f"{name}={value:.4g}" if isinstance(value, float) else f"{name}={value}"
                            for name, value in best.params.items()),
        "search_score": round(float(tuner.shown_score(best) or 0), 4),
        "dev_chosen": round(chosen, 4),
        "dev_median": round(statistics.median(scores.values()), 4),
        "dev_worst": round(sign * min(sign * score for score in scores.values()), 4),
        "dev_best": round(sign * max(sign * score for score in scores.values()), 4),
        "better_than": f"{beaten} of {len(scores) - 1}",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="folder of a pretrained model, or its name on the Hub")
    parser.add_argument("--data", help="folder with the Parquet files of the task; by default the Hub")
    parser.add_argument("--task", default="glue/rte")
    parser.add_argument("--methods", nargs="+", default=["addrop"])
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--folder", type=Path, required=True, help="folder of the study")
    parser.add_argument("--workers", type=int, help="runs at the same time; as many as fit by default")
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--output", type=Path, default=RESULTS / "tune.csv")
    options = parser.parse_args()

    run_settings, trials, repeats, seeds = SIZES[options.size]
    settings = {"model": options.model, "task": options.task, "method": options.methods, **run_settings}
    if options.data:
        settings["data_dir"] = options.data
    config = make_tune_config(settings, (), trials, repeats, "random", "honest", seeds)
    with quiet_libraries(), closing(make_engine("local", options.workers, device=options.device)) as engine:
        tuner = tune(config, options.folder, engine, listener=Printer())
        hindsight = [
            spec
            for method, search in tuner.searches.items()
            for trial in search.finished()
            for spec in config.final_specs(method, trial.params, role(trial))
        ]
        print(f"the choice is made; {len(hindsight)} runs of all settings on the development set", flush=True)
        records = run_study(options.folder, config.description(), hindsight, engine)
    device = "cuda" if options.device != "cpu" and "cuda" in next(iter(records.values()))["device"] else "cpu"
    shared = conditions(device, model=Path(options.model).name, task=options.task, size=options.size)
    rows = [row_of(tuner, method, dev_scores(tuner, method, records)) for method in tuner.searches]
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    append(options.output, [{**shared, **row} for row in rows])


if __name__ == "__main__":
    main()
