"""Compares `attendrop train`, by its defaults, with SetFit on few examples of each class: score and seconds.

    python -m studies.few_shot --model DIR --data DIR --shots 8 64 --seeds 3

`--data` is the folder of `studies.simple_baselines`, which draws the examples. SetFit has its own defaults, and texts
of at most 128 tokens like the tool. With more than 8 of each class it trains on 40 pairs for each example, as in its
paper (R = 20), because its default, all pairs, would be up to 1.5 million. Both train in this process, one after the
other, and predict the same test examples. A row of `results/few-shot.csv` is one draw; rows that exist are not run
again.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.records import append, conditions
from docs.tables.markdown import table

from . import RESULTS
from .simple_baselines import BY_NAME, TOOL, drawn, noise, of_tool, read, rows_of, score

OUTPUT = RESULTS / "few-shot.csv"
SETS = ("trec", "stackoverflow", "tweet_emotion", "cr", "subj", "mpqa")


def of_setfit(train: Any, test: Any, model: str, device: str, seed: int, iterations: int | None) -> list[Any]:
    """Return the answers of SetFit with its defaults.

    Args:
        train: The training examples, a table of pandas.
        test: The test examples.
        model: The folder of a sentence encoder.
        device: "cpu" or "cuda".
        seed: The seed.
        iterations: Pairs of an example are twice as many; None = all pairs.
    """
    from datasets import Dataset
    from setfit import SetFitModel, Trainer, TrainingArguments
    from transformers import set_seed

    set_seed(seed)
    encoder = SetFitModel.from_pretrained(model, device=device)
    encoder.model_body.max_seq_length = 128
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, seed=seed, num_iterations=iterations, save_strategy="no", report_to="none", show_progress_bar=False,
        )  # fmt: skip
        Trainer(model=encoder, args=arguments, train_dataset=Dataset.from_pandas(train)).train()
    return list(encoder.predict(test["text"].tolist(), show_progress_bar=False, as_numpy=True))


def row_of(name: str, shots: int, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train both on one draw, and return the row of the file."""
    data_set = dataclasses.replace(BY_NAME[name], shots=shots)
    train, test = drawn(data_set, options.data, 0, seed, options.tested)
    gold, answers, seconds = test["label"].tolist(), {}, {}
    for called in (TOOL, "SetFit"):
        begun = time.perf_counter(), time.process_time()
        if called == "SetFit":
            answers[called] = of_setfit(train, test, options.model, options.device, seed, 20 if shots > 8 else None)
        else:
            answers[called] = of_tool(data_set, train, test, options, seed)
        seconds[f"{called} seconds"] = round(time.perf_counter() - begun[0], 1)
        seconds[f"{called} processor seconds"] = round(time.process_time() - begun[1], 1)
    return {
        "model": Path(options.model).name, "data set": name, "shots": shots, "examples": len(train),
        "tested": len(test), "seed": seed,
        **{called: round(100 * score(data_set, given, gold), 2) for called, given in answers.items()},
        "noise": round(100 * noise(data_set, answers[TOOL], answers["SetFit"], gold), 2),
        **seconds, **conditions(options.device),
    }  # fmt: skip


def markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table of means over the seeds.

    Args:
        rows: Rows of `row_of`, or of the file.
    """
    groups: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["data set"], str(row["shots"])), []).append(row)
    lines = []
    for (model, name, shots), mine in groups.items():
        mean = {
            column: statistics.fmean(float(row[column]) for row in mine)
            for column in (TOOL, "SetFit", "noise", f"{TOOL} processor seconds", "SetFit processor seconds")
        }
        lines.append(
            [model, name, shots, str(len(mine)), f"{mean['SetFit']:.1f}", f"{mean[TOOL]:.1f}",
             f"{mean[TOOL] - mean['SetFit']:+.1f} ± {mean['noise']:.1f}",
             f"{mean['SetFit processor seconds']:.0f} / {mean[f'{TOOL} processor seconds']:.0f}"]
        )  # fmt: skip
    titles = ["model", "data set", "of each class", "draws", "SetFit", "attendrop train", "difference"]
    return table([*titles, "processor seconds"], lines) if lines else ""


def main() -> int:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="a folder, such as that of all-MiniLM-L6-v2")
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--sets", nargs="+", choices=BY_NAME, default=list(SETS), metavar="NAME")
    parser.add_argument("--shots", nargs="+", type=int, default=[8, 64])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tested", type=int, default=1000, help="test examples")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--workers", type=int, default=1, help="processes that train at once")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start no run after this time")
    options = parser.parse_args()
    options.bf16, options.settings = False, []
    done = {tuple(row[key] for key in ("model", "data set", "shots", "seed")) for row in read(options.output)}
    todo = [
        (name, shots, seed, options)
        for seed, shots, name in itertools.product(range(options.seeds), options.shots, options.sets)
        if (Path(options.model).name, name, str(shots), str(seed)) not in done
    ]
    for row in rows_of(row_of, todo, options.workers, options.seconds):
        append(options.output, [row], is_quiet=True)
        print(*(row[key] for key in ("data set", "shots", "seed", TOOL, "SetFit")), flush=True)
    print(markdown(read(options.output)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
