"""Labels stay as they are written: an exact text, or a whole number."""

from __future__ import annotations

import json
from itertools import permutations
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from attendrop.errors import UserError
from attendrop.lab.tasks import load_files, load_inputs
from attendrop.lab.tasks.values import sorted_names

LARGE = 1234567890123456789


def csv_of(*labels: str) -> str:
    return "text,label\n" + "".join(f"some words {i},{label}\n" for i, label in enumerate(labels * 3))


@pytest.mark.parametrize(
    "labels", [("1234567890123456788", str(LARGE)), ("007", "008"), ("1e2", "200"), ("1.0", "0.0")]
)
def test_labels_of_a_table_are_its_texts(labels: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(csv_of(*labels))
    data = load_files(tmp_path / "a.csv", kind="classification")
    assert data.task.labels == tuple(sorted(labels))
    assert [data.task.labels[index] for index in data.train["label"]] == list(labels * 3)


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_large_whole_numbers_are_exact(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"a.{form}"
    rows = [{"text": f"some words {i}", "label": LARGE - i % 2} for i in range(6)]
    if form == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    assert load_files(path, kind="classification").task.labels == (str(LARGE - 1), str(LARGE))


def test_numbers_of_pandas_with_gaps_are_whole_numbers(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"text": ["a b", "c d"] * 2, "label": [0.0, 1.0] * 2}), tmp_path / "a.parquet")
    assert load_files(tmp_path / "a.parquet", kind="classification").task.labels == ("0", "1")


def test_label_of_5000_digits_is_a_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(csv_of("9" * 5000, "8" * 5000))
    assert load_files(tmp_path / "a.csv", kind="classification").task.labels == ("8" * 5000, "9" * 5000)


def test_label_of_another_form_is_named_with_the_one_of_training(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(csv_of("1", "2"))
    task = load_files(tmp_path / "a.csv", kind="classification").task
    (tmp_path / "b.csv").write_text(csv_of("1", "2.0"))
    with pytest.raises(UserError, match=r"has the label '2.0', which .* if '2' is meant, write it so"):
        load_inputs(tmp_path / "b.csv", task)


def test_numbers_that_are_written_in_several_ways_have_one_order() -> None:
    orders = {sorted_names(names) for names in permutations(["7", "07", "007", "10"])}
    assert orders == {("007", "07", "7", "10")}
