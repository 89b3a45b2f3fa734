"""Small files that would fill the memory or stop the program are refused in one sentence, quickly."""

from __future__ import annotations

import gzip
import json
import os
import time
import zipfile
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from attendrop.errors import UserError
from attendrop.lab.runs import make_config, read_yaml
from attendrop.lab.tasks import inspect_files
from attendrop.lab.tasks.files import read_table
from attendrop.utils import limits


@pytest.fixture(autouse=True)
def _few_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of 4 MB instead of 256, so that the tests are quick."""
    monkeypatch.setattr(limits, "FREE_GROWTH", 2**22)


def test_compressed_file_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"text,label\n" + b"0" * 2**25))
    with pytest.raises(UserError, match=r"a.csv.gz unpacks to more than \d+ MB, the limit of a file; split it"):
        read_table(tmp_path / "a.csv.gz")


def test_parquet_file_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    table = pyarrow.table({"text": pyarrow.array(["x" * 10_000] * 20_000)})
    parquet.write_table(table, tmp_path / "a.parquet", compression="zstd")
    assert (tmp_path / "a.parquet").stat().st_size < 100_000
    with pytest.raises(UserError, match="a.parquet unpacks to more than .* MB, the limit of a file of its size"):
        read_table(tmp_path / "a.parquet")


def test_excel_file_that_unpacks_to_far_more_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.xlsx", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("xl/workbook.xml", " " * 2**25)
    with pytest.raises(UserError, match="a.xlsx unpacks to more than .* MB"):
        read_table(tmp_path / "a.xlsx")


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl", "json", "parquet"])
def test_too_many_columns_are_refused_quickly(form: str, tmp_path: Path) -> None:
    many = 20_000 if form == "parquet" else 100_000
    path, names = tmp_path / f"a.{form}", [f"column{i}" for i in range(many)]
    if form == "parquet":
        parquet.write_table(pyarrow.table({name: [1] for name in names}), path)
    else:
        sign = "\t" if form == "tsv" else ","
        lines = [sign.join(names), *[sign.join("1" * many)] * 2]
        path.write_text(json.dumps(dict.fromkeys(names, 1)) if form.startswith("j") else "\n".join(lines))
    begin = time.perf_counter()
    with pytest.raises(UserError, match=f"a.* has {many:,} columns, and at most 10,000 are read; keep those"):
        read_table(path)
    assert time.perf_counter() - begin < 10


def test_as_many_columns_as_are_read_cost_no_square(tmp_path: Path) -> None:
    names = [f"column{i}" for i in range(limits.MOST_COLUMNS)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join([",".join(names), *[",".join("1" * len(names))] * 3]))
    begin = time.perf_counter()
    (error,) = inspect_files(path).errors
    assert len(error) < 2000
    assert time.perf_counter() - begin < 10


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_pipes_and_devices_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.csv")
    with pytest.raises(UserError, match="a.csv is a pipe and not a file; save its content to a file and give that"):
        read_table(tmp_path / "a.csv")
    with pytest.raises(UserError, match="/dev/zero is a device or a socket and not a file"):
        read_table("/dev/zero")
    os.mkfifo(tmp_path / "config.yaml")
    with pytest.raises(UserError, match="config.yaml is a pipe and not a file"):
        read_yaml(tmp_path / "config.yaml")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes")
def test_pipes_and_devices_in_the_place_of_images_are_named(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.png")
    (tmp_path / "b.png").symlink_to("/dev/zero")
    (tmp_path / "a.csv").write_text("image,label\na.png,x\nb.png,y\n")
    (first, *_) = inspect_files(tmp_path / "a.csv", text="image", label="label").errors
    assert "line 2 of" in first
    assert "which is a folder, a pipe or a device, and no file (2 such rows in total)" in first


@pytest.mark.parametrize(
    "text",
    [
        "a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]\n"
        + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
        "a: &a\n  - *a\n",
        "a: &a {b: *a}\n",
    ],
    ids=["bomb", "in itself", "mapping in itself"],
)
def test_aliases_that_grow_are_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(
        UserError, match=r"a.yaml' has more than 100,000 values when its aliases \(\*name\) are written"
    ):
        read_yaml(tmp_path / "a.yaml")


def test_ordinary_aliases_are_read(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("seed: &seed 3\ndata_seed: *seed\n")
    assert read_yaml(tmp_path / "a.yaml") == {"seed": 3, "data_seed": 3}


def test_processes_that_read_data_are_limited() -> None:
    with pytest.raises(UserError, match=r"dataloader_num_workers is 100000; it must be a number from 0 to \d+"):
        make_config({"model": "m", "task": "glue/rte", "dataloader_num_workers": 100_000})
