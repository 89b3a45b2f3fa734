"""How much of a gain does selection make by itself? The papers' protocol and an honest one, from the same runs.

    python -m studies.verdict.protocols --data DATA --model MODEL --name minilm --minutes 4

Every epoch of every run is scored on three sets of examples that it is not trained on: the development set of the task,
100 examples to choose with, and the rest as an untouched test set. There are 8 settings of AD-DROP with 9 seeds each,
and 80 seeds of plain fine-tuning. `studies.verdict.protocol_gains` computes what each protocol would report.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from attendrop.lab.studies.spec import RunSpec
from attendrop.lab.studies.worker import Worker

PART = "protocols"
TASKS = {"glue/rte": 277, "glue/mrpc": 408}  # task -> size of its development set
POOL, TO_CHOOSE, CHOOSE_POOL, TEST = 1000, 100, 500, 2000  # examples; TEST at most
PLAIN_SEEDS, METHOD_SEEDS = 80, 9
SETTINGS = [f"addrop:p={p},q={q},layers=all" for p in (0.3, 0.7) for q in (0.1, 0.3, 0.5, 0.7)]
SHARED = {
    "max_length": 128,
    "per_device_train_batch_size": 25,
    "per_device_eval_batch_size": 128,
    "learning_rate": 1e-4,
    "num_train_epochs": 10,
    "eval_strategy": "epoch",
    "tf32": True,
}
SIZE = "fraction=0.3"  # of the pool: 300 examples, drawn anew with every seed
SETS = ("dev", "choose", "test")
COLUMNS = ("id", "task", "method", "setting", "seed", "status", *SETS, "choose_loss", "seconds", "error")


def make_data(train: pa.Table, dev: pa.Table) -> tuple[pa.Table, pa.Table]:
    """The pool of training examples, and the three sets one after the other as one table.

    Args:
        train: The training set of the task.
        dev: Its development set.
    """
    order = np.random.default_rng(0).permutation(len(train))
    rest = train.take(order[POOL : POOL + CHOOSE_POOL + TEST])
    return train.take(order[:POOL]), pa.concat_tables([dev, rest.cast(dev.schema)])


def positions(dev: int, count: int, seed: int) -> dict[str, npt.NDArray[np.int64]]:
    """Where the examples of each set are. Those to choose with are drawn anew with every seed.

    Args:
        dev: The number of examples of the development set.
        count: The number of all examples.
        seed: The seed of the run.
    """
    drawn = np.random.default_rng(seed).permutation(CHOOSE_POOL)[:TO_CHOOSE]
    return {"dev": np.arange(dev), "choose": dev + np.sort(drawn), "test": np.arange(dev + CHOOSE_POOL, count)}


class ScoresOfSets:
    """Metrics of an evaluation, and in addition accuracy and loss on each of the three sets.

    Args:
        metrics: The usual metrics.
        dev: The number of examples of the development set.
        seed: The seed of the run.
    """

    def __init__(self, metrics: Callable[[Any], dict[str, float]], dev: int, seed: int) -> None:
        self._metrics, self._dev, self._seed = metrics, dev, seed

    def __call__(self, prediction: Any) -> dict[str, float]:
        logits, gold = np.asarray(prediction.predictions, float), np.asarray(prediction.label_ids)
        log_p = logits - np.logaddexp.reduce(logits, axis=-1, keepdims=True)
        scores = dict(self._metrics(prediction))
        for name, where in positions(self._dev, len(gold), self._seed).items():
            scores[f"{name}_accuracy"] = float((logits[where].argmax(-1) == gold[where]).mean())
            scores[f"{name}_loss"] = float(-log_p[where, gold[where]].mean())
        return scores


class ProtocolWorker(Worker):
    """Scores every epoch on the three sets."""

    def _prepare(self, spec: RunSpec, *arguments: Any) -> Any:
        run = super()._prepare(spec, *arguments)
        metrics = ScoresOfSets(run.prepared.compute_metrics, TASKS[spec.task], spec.seed)
        return dataclasses.replace(run, prepared=dataclasses.replace(run.prepared, compute_metrics=metrics))


def runs(data: str, model: str) -> dict[str, RunSpec]:
    """Name of a line -> its run. Those of both tasks and all settings come early.

    Args:
        data: The folder that `studies.verdict.data` made.
        model: The folder of the model.
    """
    shared = {**SHARED, "data_dir": f"{data}/protocols", "model": model}
    specs = {}
    for seed in range(PLAIN_SEEDS):
        for task in TASKS:
            for setting in ["", *(SETTINGS if seed < METHOD_SEEDS else [])]:
                name, _, value = SIZE.partition("=")
                own = {**shared, "task": task, name: value, "method": [setting] if setting else []}
                method = "AD-DROP" if setting else "plain"
                line = f"{task} {setting or method} {seed}"
                specs[line] = RunSpec({**own, "seed": seed}, method, task, seed, SIZE, resample=True)
    return specs


def line_of(name: str, record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The line of a run: the scores of its epochs, one after the other."""
    epochs = record.get("curves") or []
    columns = {part: f"{part}_accuracy" for part in SETS} | {"choose_loss": "choose_loss"}
    yield {
        **{column: " ".join(f"{epoch[key]:.4f}" for epoch in epochs) for column, key in columns.items()},
        "id": name,
        "task": record["task"],
        "method": record["method"],
        "setting": " + ".join(record.get("settings", {}).get("method", [])),
        "seed": record["seed"],
        "status": record["status"],
        "seconds": (record.get("cost") or {}).get("seconds", ""),
        "error": " ".join((record.get("error") or {}).get("message", "").split())[:200],
    }


def main() -> None:
    from .lines import make_parser, run_parts

    options = make_parser(__doc__).parse_args()
    wanted = {name: [run] for name, run in runs(options.data, options.model).items()}
    run_parts(COLUMNS, {PART: wanted}, line_of, options, "studies.verdict.protocols:ProtocolWorker")


if __name__ == "__main__":
    main()
