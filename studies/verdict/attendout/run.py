"""Runs all stages of the AttendOut experiment, one line for each run in docs/results/verdict/attendout-<model>.csv.

    python -m studies.verdict.attendout.run --data DATA --model MODEL --workers 14 --minutes 6

It may be stopped at any time; started again, it leaves out the runs that have a line. Later stages depend on the lines
of earlier ones, by the rules of plan.py.
"""

from __future__ import annotations

import base64
import io
import json
import tempfile
import time
from functools import partial
from typing import Any

import numpy as np

from attendrop.lab.statistics.calibration import brier_score, calibration_error, log_loss, scaled_probabilities, softmax

from ..lines import Workers, append_lines, make_parser, read, remove_failed
from ..run import portable_id
from .files import Files
from .plan import CONFIRMATION, DEVELOPMENT, LAYERS, PARTS, REWARD_SET, runs

SCORES = ("accuracy", "loss", "brier", "ece", "scaled_loss", "scaled_ece")  # on the test examples
DEV_SCORES = ("dev_accuracy", "dev_loss", "dev_scaled_loss")  # on the reward set
COLUMNS = (
    "stage", "id", "method", "setting", "learning_rate", "epochs", "task", "seed", "status", *SCORES, *DEV_SCORES,
    "seconds", "steps", "captured", "rounds", "error",
)  # fmt: skip


def make_line(stage: str, record: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a record.

    Args:
        stage: The name of the stage.
        record: The record of a run.
    """
    settings, cost = record.get("settings", {}), record.get("cost") or {}
    line = {
        **dict.fromkeys(COLUMNS, ""),
        **{name: record.get(name, "") for name in ("method", "task", "seed", "status")},
        "stage": stage,
        "setting": " + ".join(settings.get("method", [])),
        "learning_rate": settings.get("learning_rate", ""),
        "epochs": settings.get("num_train_epochs", ""),
        **{name: cost.get(name, "") for name in ("seconds", "steps", "captured")},
        "error": " ".join((record.get("error") or {}).get("message", "").split())[:200],
    }
    if record.get("status") == "finished":
        dev = record["scores"]["validation"]
        scores = {**_test_scores(record), **{name: dev[name.removeprefix("dev_")] for name in DEV_SCORES}}
        line |= {name: f"{value:.6g}" for name, value in scores.items()}
        line["rounds"] = _rounds(record["method_metrics"])
    return line


def _test_scores(record: dict[str, Any]) -> dict[str, float]:
    """The scores on the test examples, from the logits of the run."""
    with np.load(io.BytesIO(base64.b64decode(record["outputs"])), allow_pickle=False) as file:
        logits, gold = (np.asarray(file[f"{record['task']}/{name}"], int if name == "gold" else float)
                        for name in ("values", "gold"))  # fmt: skip
    probabilities, scaled = softmax(logits), scaled_probabilities(logits, gold)
    return {
        "accuracy": float(np.mean(logits.argmax(-1) == gold)),
        "loss": log_loss(probabilities, gold),
        "brier": brier_score(probabilities, gold),
        "ece": calibration_error(probabilities, gold),
        "scaled_loss": log_loss(scaled, gold),
        "scaled_ece": calibration_error(scaled, gold),
    }


def _rounds(metrics: dict[str, list[list[float]]]) -> str:
    """What AttendOut logged in each round, as JSON: rewards, winners, and P(drop) and shifts of each layer."""
    logged = {name.removeprefix("attendout/"): [float(f"{v:.4g}") for _, v in of] for name, of in metrics.items()}
    if "reward" not in logged:
        return ""
    columns: dict[str, Any] = {name: logged[name] for name in ("reward", "reward_error", "attacker_won")}
    for name in ("drop_probability", "shift"):
        layers = [logged[f"{name}_layer_{layer}"] for layer in range(LAYERS) if f"{name}_layer_{layer}" in logged]
        if layers:
            columns[name] = list(zip(*layers, strict=True))
    return json.dumps(columns, separators=(",", ":"))


def line_of(stages: dict[str, str], name: str, record: dict[str, Any]) -> list[dict[str, Any]]:
    """The line of a record, for `append_lines`.

    Args:
        stages: Id of a line -> the name of its stage.
        name: The id of the line.
        record: The record of its run.
    """
    return [{**make_line(stages[name], record), "id": name}]


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--set", action="append", default=[], help="NAME=VALUE: another setting, for trials")
    options = parser.parse_args()
    file, end = options.output / f"attendout-{options.name}.csv", time.monotonic() + 60 * options.minutes
    settings = {name: json.loads(value) for name, _, value in (text.partition("=") for text in options.set)}
    remove_failed(file, COLUMNS)
    workers = Workers(options.workers)
    try:
        with tempfile.TemporaryDirectory() as folder:
            files = Files(options.data, folder, REWARD_SET)
            for task in (*DEVELOPMENT, *CONFIRMATION):
                files.write(task)
            for part in PARTS:
                staged = [(s.name, run) for s in part for run in runs(s, read(file), files, options.model, settings)]
                wanted = {portable_id(run): [run] for _, run in staged}
                stages = {portable_id(run): stage for stage, run in staged}
                if not append_lines(file, COLUMNS, wanted, partial(line_of, stages), workers, end):
                    break
    finally:
        workers.close()


if __name__ == "__main__":
    main()
