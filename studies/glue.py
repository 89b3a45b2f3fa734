"""Fine-tunes a model on a GLUE task with each method and seed, and prints a table of scores, losses and calibration.

    python -m studies.glue --model DIR --data DIR --task mrpc --seeds 0 1 2 \\
        --methods plain addrop:p=0.3,q=0.3 addrop:p=0.8,q=0.3,layers=all

`--data` is a folder with one Parquet or JSON Lines file for each split, such as `train.parquet`, with the column names
of the Hub. Every epoch of every run is appended to a CSV file; the table is computed from those rows. One seed sets the
order of the data, the weights of the new head and all random draws, so that methods can be compared seed by seed.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import datetime
import json
import math
import multiprocessing
import statistics
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.records import append

from . import RESULTS

# task -> (columns with text, metric, whether the label is a number)
TASKS = {
    "cola": (("sentence", None), "mcc", False),
    "mrpc": (("sentence1", "sentence2"), "accuracy", False),
    "rte": (("sentence1", "sentence2"), "accuracy", False),
    "sst2": (("sentence", None), "accuracy", False),
    "stsb": (("sentence1", "sentence2"), "pearson", True),
}
FIELDS = [
    "date", "model", "task", "method", "seed", "epoch", "score", "loss", "brier", "ece", "train_loss", "seconds",
    "learning_rate", "batch", "length", "epochs", "dtype", "device", "torch", "transformers", "attendrop",
]  # fmt: skip


def score_of(metric: str, predictions: Any, labels: Any) -> float:
    """The value of "accuracy", "mcc" or "pearson"."""
    from scipy.stats import pearsonr
    from sklearn.metrics import accuracy_score, matthews_corrcoef

    if metric == "pearson":
        return float(pearsonr(predictions.squeeze(-1), labels).statistic)
    metrics = {"accuracy": accuracy_score, "mcc": matthews_corrcoef}
    return float(metrics[metric](labels, predictions.argmax(-1)))


def calibration_of(logits: Any, labels: Any) -> dict[str, float]:
    """Brier score and expected calibration error (in percent) of a classifier."""
    from attendrop.lab.statistics.calibration import brier_score, calibration_error, softmax

    probabilities = softmax(logits)
    return {"brier": brier_score(probabilities, labels), "ece": 100 * calibration_error(probabilities, labels)}


def read_columns(folder: Path, split: str) -> dict[str, list[Any]]:
    """The columns of the Parquet or JSON Lines file of a split."""
    path = next(path for path in sorted(folder.glob(f"{split}*")) if path.suffix in (".parquet", ".jsonl"))
    if path.suffix == ".jsonl":
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        return {name: [row[name] for row in rows] for name in rows[0]}
    import pandas

    return {name: column.tolist() for name, column in pandas.read_parquet(path).items()}


def read(folder: Path, split: str, task: str, tokenizer: Any, length: int) -> list[dict[str, Any]]:
    """The tokenized examples of a split."""
    columns = read_columns(folder, split)
    (first, second), _, is_number = TASKS[task]
    texts = [columns[first]] + ([columns[second]] if second else [])
    encoded = tokenizer(*texts, truncation=True, max_length=length)
    labels = [float(y) if is_number else int(y) for y in columns["label"]]
    return [{**{name: encoded[name][i] for name in encoded}, "labels": label} for i, label in enumerate(labels)]


def pruned_scores(trainer: Any, order: list[int]) -> list[float]:
    """The development score with uniform attention in the first k layers of `order`, for every k."""
    from attendrop import Plan, bind

    seams = bind(trainer.model)
    try:
        scores = []
        for k in range(len(order) + 1):
            with seams.applied(Plan(uniform=frozenset(order[:k]))):
                scores.append(round(trainer.evaluate()["eval_score"], 5))
        return scores
    finally:
        seams.unbind()


def learned(trainer: Any, dev: list[dict[str, Any]]) -> dict[str, Any]:
    """What AttendOut learned in a run: its rounds, and the scores after pruning k layers.

    The layers are pruned in the order of the generator's drop probabilities; for other methods, from the last one.
    """
    from attendrop import AttendOut

    method = next((r for r in trainer.regularizers if isinstance(r, AttendOut)), None)
    if method is not None and method.generator is not None:
        batch = {k: v.to(trainer.args.device) for k, v in trainer.data_collator(dev[:256]).items()}
        scores = method.generator.drop_probabilities(batch).tolist()
        order = sorted(range(len(scores)), key=lambda layer: -scores[layer])
    else:
        scores, order = None, list(range(trainer.model.config.num_hidden_layers))[::-1]
    history = method.history if method is not None else []
    return {"history": history, "drop_scores": scores, "order": order, "pruned": pruned_scores(trainer, order)}


def run(options: argparse.Namespace, method: str, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One fine-tuning run: a row for each epoch, and what AttendOut learned."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.set_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        trainer, dev = make_trainer(options, method, seed, folder)
        seconds = trainer.train().metrics["train_runtime"]
        history = list(trainer.state.log_history)
        extras = learned(trainer, dev) if options.learned else {}
    rows = rows_of(history, {**conditions_of(options, method, seed), "seconds": round(seconds, 1)})
    return rows, {"task": options.task, "method": method, "seed": seed, **extras}


def make_trainer(options: argparse.Namespace, method: str, seed: int, folder: str) -> tuple[Any, list[dict[str, Any]]]:
    """The trainer of a run, and its development examples."""
    import transformers
    from transformers import AutoModelForSequenceClassification, AutoTokenizer, DataCollatorWithPadding

    from attendrop import RegularizedTrainer, parse_method

    _, metric, is_number = TASKS[options.task]
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    train = read(options.data, "train", options.task, tokenizer, options.length)
    dev = read(options.data, "validation", options.task, tokenizer, options.length)
    labels = 1 if is_number else 1 + max(example["labels"] for example in train)
    args = transformers.TrainingArguments(
        folder,
        seed=seed,
        per_device_train_batch_size=options.batch,
        per_device_eval_batch_size=128,
        learning_rate=options.learning_rate,
        num_train_epochs=options.epochs,
        warmup_steps=0.1,
        weight_decay=0.01,
        eval_strategy="epoch",
        logging_strategy="epoch",
        save_strategy="no",
        bf16=options.dtype == "bfloat16",
        report_to=[],
        disable_tqdm=True,
    )
    trainer = RegularizedTrainer(
        model=AutoModelForSequenceClassification.from_pretrained(options.model, num_labels=labels),
        args=args,
        train_dataset=train,
        eval_dataset=dev,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda p: {
            "score": score_of(metric, p.predictions, p.label_ids),
            **({} if is_number else calibration_of(p.predictions, p.label_ids)),
        },
        regularizers=[] if method == "plain" else [parse_method(m) for m in method.split("+")],
    )
    trainer.remove_callback(transformers.PrinterCallback)
    return trainer, dev


def conditions_of(options: argparse.Namespace, method: str, seed: int) -> dict[str, Any]:
    """The columns that are the same for all epochs of a run."""
    import torch
    import transformers

    import attendrop

    return {
        "date": datetime.date.today().isoformat(),
        "model": options.name or Path(options.model).name,
        "task": options.task,
        "method": method,
        "seed": seed,
        "learning_rate": options.learning_rate,
        "batch": options.batch,
        "length": options.length,
        "epochs": options.epochs,
        "dtype": options.dtype,
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "attendrop": attendrop.__version__,
    }


def rows_of(history: list[dict[str, Any]], columns: dict[str, Any]) -> list[dict[str, Any]]:
    """One row of results for each epoch of the Trainer's log."""
    losses = {round(entry["epoch"]): entry["loss"] for entry in history if "loss" in entry}
    epochs = {}  # the last epoch may be evaluated again, when AttendOut selects one of its two networks
    for entry in history:
        if "eval_score" in entry:
            epochs.setdefault(round(entry["epoch"]), entry)
    return [
        {
            **columns,
            "epoch": epoch,
            "score": round(entry["eval_score"], 5),
            "loss": round(entry["eval_loss"], 5),
            "brier": round(entry["eval_brier"], 5) if "eval_brier" in entry else "",
            "ece": round(entry["eval_ece"], 3) if "eval_ece" in entry else "",
            "train_loss": round(losses[epoch], 5),
        }
        for epoch, entry in epochs.items()
    ]


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: mean ± standard deviation over seeds, and the mean difference to plain with the same seeds."""
    runs: dict[str, dict[int, list[dict[str, Any]]]] = {}
    for row in rows:
        runs.setdefault(row["method"], {}).setdefault(row["seed"], []).append(row)
    lines = [
        "| method | seeds | score, last epoch | score, best epoch | loss, last epoch | loss, best epoch | "
        "calibration error, last epoch | seconds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    plain: list[list[float]] | None = None
    for method, seeds in runs.items():
        columns = [list(c) for c in zip(*(_figures(seeds[s]) for s in sorted(seeds)), strict=True)]
        base = plain if method != "plain" and plain and len(plain[0]) == len(columns[0]) else None
        if method == "plain":
            plain = columns
        cells = [_cell(c, 3 if i in (2, 3) else 1, base[i] if base else None) for i, c in enumerate(columns)]
        seconds = statistics.median(epochs[0]["seconds"] for epochs in seeds.values())
        lines.append(f"| `{method}` | {len(seeds)} | {' | '.join(cells)} | {seconds:.0f} |")
    return "\n".join(lines)


def _figures(epochs: list[dict[str, Any]]) -> tuple[float, ...]:
    """Of a run: scores of the last and the best epoch in percent, losses of both, calibration error of the last."""
    last, best = max(epochs, key=lambda r: r["epoch"]), max(epochs, key=lambda r: r["score"])
    ece = float(last["ece"]) if last["ece"] != "" else math.nan
    return 100 * last["score"], 100 * best["score"], last["loss"], min(r["loss"] for r in epochs), ece


def _cell(values: list[float], digits: int, base: list[float] | None) -> str:
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    text = f"{statistics.mean(values):.{digits}f} ± {spread:.{digits}f}"
    if base is not None:
        text += f" ({statistics.mean(a - b for a, b in zip(values, base, strict=True)):+.{digits}f})"
    return text


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="name on the Hub, or a folder")
    parser.add_argument("--name", help="the model's name in the results (default: the last part of --model)")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--task", choices=sorted(TASKS), required=True)
    parser.add_argument("--methods", nargs="+", default=["plain", "addrop"], help="'plain', or methods joined by +")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=5e-5)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--workers", type=int, default=1, help="runs at the same time")
    parser.add_argument("--learned", type=Path, help="JSON file for AttendOut's rounds and the scores after pruning")
    parser.add_argument("--output", type=Path, default=RESULTS / "glue.csv")
    options = parser.parse_args(arguments)
    if not options.data.is_dir():
        parser.error(f"--data is {options.data}, which is not a folder; it must hold a train and a validation file")
    jobs = [(method, seed) for seed in options.seeds for method in options.methods]
    rows: list[dict[str, Any]] = []
    extras: list[dict[str, Any]] = []
    # Each run is a process of its own: no state is left for the next one, and several small ones can share a GPU.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(options.workers, mp_context=context) as pool:
        futures = {pool.submit(run, options, *job): job for job in jobs}
        for future in concurrent.futures.as_completed(futures):
            of_run, extra = future.result()
            rows += of_run
            extras.append(extra)
            print(f"{futures[future]}: {[row['score'] for row in of_run]}", flush=True)
    if options.learned:
        options.learned.parent.mkdir(parents=True, exist_ok=True)
        options.learned.write_text(json.dumps(extras), encoding="utf-8")
    order = {job: number for number, job in enumerate(jobs)}
    rows.sort(key=lambda row: (order[row["method"], row["seed"]], row["epoch"]))
    append(options.output, [{field: row[field] for field in FIELDS} for row in rows])
    rows.sort(key=lambda row: options.methods.index(row["method"]))
    print(table(rows))


if __name__ == "__main__":
    main()
