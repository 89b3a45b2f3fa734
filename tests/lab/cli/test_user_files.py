"""Files as people have them, on the command line: what is read, what is said, and the form in which they come back."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from typing import Any

import openpyxl
import pandas
import pytest

from attendrop.lab.cli.app import run
from attendrop.lab.tasks.predictions import TableWriter
from attendrop.utils.limits import MOST_WORKERS
from helpers.cli_tools import save_encoder, sentences, write_csv

pytestmark = pytest.mark.xdist_group("own files")

TRAIN = [
    "train", "--use-cpu", "--max-steps", "2", "--no-baselines", "--head-start", "random", "--no-load-best-model-at-end",
    "--save-strategy", "no",
]  # fmt: skip


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a training file of pairs, and a finished run."""
    folder = tmp_path_factory.mktemp("own files")
    rows = sentences(40, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    write_csv(folder / "train.csv", rows)
    assert run([*TRAIN, *words(folder / "model", folder / "train.csv", folder / "run")]) == 0
    return folder


def words(model: Path, file: Path | str, output: Path, *more: str) -> list[str]:
    return ["--model", str(model), "--train-file", str(file), "--output-dir", str(output), *more]


def printed(capsys: pytest.CaptureFixture[str], *command: object, code: int = 0) -> str:
    """Runs a command, and returns what it prints in one line."""
    capsys.readouterr()
    assert run([str(word) for word in command]) == code
    printed = capsys.readouterr()
    return " ".join(f"{printed.out} {printed.err}".split())


# ---- the form in which files come back ------------------------------------------------------------------------------


def test_carriage_returns_are_quoted_and_headers_are_no_formulas() -> None:
    text = io.StringIO()
    writer = TableWriter(text)
    rows = [["=cmd|x", "a"], ["one\rtwo", "\r=HYPERLINK(1)"], ["-1.5", "@x"], ["a\nb", 2]]
    for row in rows:
        writer.row(row)
    assert "\r\n" not in text.getvalue()
    assert list(csv.reader(io.StringIO(text.getvalue(), newline=""))) == [
        ["'=cmd|x", "a"], ["one\rtwo", "'\r=HYPERLINK(1)"], ["-1.5", "'@x"], ["a\nb", "2"],
    ]  # fmt: skip


@pytest.mark.parametrize("form", ["csv", "tsv"])
def test_rows_of_predictions_are_those_of_the_file(
    form: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "a.csv"
    file.write_text('text,=cmd|x\n"a fine\rfilm",1\n"one\r\n=two",2\n"\r=HYPERLINK(1)",3\n', newline="")
    output = tmp_path / f"out.{form}"
    assert "3 predictions" in printed(capsys, "predict", place / "run", "--file", file, "--output", output)
    with output.open(newline="") as written:
        header, *rows = csv.reader(written, delimiter="\t" if form == "tsv" else ",")
    assert header[:2] == ["text", "'=cmd|x"]
    assert [row[0] for row in rows] == ["a fine\rfilm", "one\r\n=two", "'\r=HYPERLINK(1)"]
    assert "3 predictions" in printed(capsys, "predict", place / "run", "--file", output)


@pytest.mark.parametrize(
    ("encoding", "separator", "how"),
    [("cp1252", ";", "(semicolons, cp1252)"), ("utf-8-sig", ";", "(semicolons, utf-8-sig)"), ("utf-16", ",", "utf-16")],
)
def test_table_comes_back_with_its_separator_and_encoding(
    encoding: str, separator: str, how: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [["text", "Größe"], ["ein schöner Film", "1"], ["zu laut; zu lang", "2"]]
    with (tmp_path / "a.csv").open("w", encoding=encoding, newline="") as file:
        csv.writer(file, delimiter=separator).writerows(rows)
    more = ["--encoding", "cp1252"] if encoding == "cp1252" else []
    assert how in printed(capsys, "predict", place / "run", "--file", tmp_path / "a.csv", *more)
    with (tmp_path / "a_predictions.csv").open(encoding=encoding, newline="") as file:
        back = list(csv.reader(file, delimiter=separator))
    assert [row[:2] for row in back] == rows
    assert back[0][2] == "prediction"


def test_predictions_that_the_encoding_lacks_are_utf8_and_it_is_said(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(text, "źle" if label == "bad" else "dobrze") for text, label in sentences(24, seed=3)]
    write_csv(tmp_path / "train.csv", rows)
    assert run([*TRAIN, *words(place / "model", tmp_path / "train.csv", tmp_path / "run")]) == 0
    (tmp_path / "a.csv").write_bytes(b"text;x\n" + "ein schöner Film; 1\n".encode("cp1252") * 40)
    text = printed(capsys, "predict", tmp_path / "run", "--file", tmp_path / "a.csv", "--encoding", "cp1252")
    assert "which cannot write 'probability_źle'; the predictions are UTF-8" in text
    assert "ein schöner Film" in (tmp_path / "a_predictions.csv").read_text(encoding="utf-8")


def test_excel_file_comes_back_as_one(place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        ("text", "Ticket #", "note", "day"),
        ("a fine film", 1234567890123456, "=1+1", None),
        ("so\rloud_x000D_", 7.5, "_x000D_", True),
    ]
    book = openpyxl.Workbook()
    book.active.title = "my data"
    for row in rows:
        book.active.append(row)
        for cell in book.active[book.active.max_row]:
            cell.data_type = "s" if isinstance(cell.value, str) else cell.data_type
    book.save(tmp_path / "a.xlsx")
    text = printed(capsys, "predict", place / "run", "--file", f"{tmp_path / 'a.xlsx'}::my data")
    assert "2 predictions are in" in text
    assert "a_predictions.xlsx" in text
    sheet = openpyxl.load_workbook(tmp_path / "a_predictions.xlsx")["predictions"]
    assert sheet["C2"].value == "=1+1"
    assert sheet["C2"].data_type == "s"  # no formula
    assert sheet["B2"].value == 1234567890123456
    back = printed(capsys, "predict", place / "run", "--file", tmp_path / "a_predictions.xlsx", "--format", "jsonl")
    assert "2 predictions" in back
    lines = [json.loads(line) for line in (tmp_path / "a_predictions_predictions.jsonl").read_text().splitlines()]
    assert [line["text"] for line in lines] == ["a fine film", "so\rloud\r"]


@pytest.mark.parametrize(
    ("name", "written"),
    [("a.jsonl", "a_predictions.jsonl"), ("a.csv.gz", "a_predictions.csv"), ("a.parquet", "a_predictions.parquet")],
)
def test_predictions_have_the_format_of_the_file(
    name: str, written: str, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = pandas.DataFrame({"text": ["a fine film", "too loud"]})
    if name.endswith("jsonl"):
        frame.to_json(tmp_path / name, orient="records", lines=True)
    elif name.endswith("parquet"):
        frame.to_parquet(tmp_path / name)
    else:
        frame.to_csv(tmp_path / name, index=False)
    printed(capsys, "predict", place / "run", "--file", tmp_path / name)
    assert (tmp_path / written).is_file()


# ---- what is read, and what is said ----------------------------------------------------------------------------------


def test_row_with_an_empty_subject_is_used_with_its_other_text(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [("" if i % 5 == 0 else "the film", text, label) for i, (text, label) in enumerate(sentences(40, seed=2))]
    file = write_csv(tmp_path / "a.csv", rows, header=["Subject", "Story", "Queue"])
    more = ["--text", "Subject", "--text-pair", "Story", "--label", "Queue"]
    text = printed(capsys, "check", file, *more)
    assert "8 rows of" in text
    assert "have no text in column 'Subject' (first: line 2), and the other text is used alone" in text
    assert run([*TRAIN, *words(place / "model", file, tmp_path / "run", *more)]) == 0
    assert "40 predictions" in printed(capsys, "predict", tmp_path / "run", "--file", file)
    write_csv(file, [*rows, ("", "", "good")], header=["Subject", "Story", "Queue"])
    assert "line 42 of" in (text := printed(capsys, "check", file, *more, code=2))
    assert "has no text in column 'Subject'" in text


def test_several_columns_with_0_and_1_are_several_labels(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["anger", "joy", "fear"]
    rows = [
        (i, text, *(int(number % 3 == place or number % 7 == 0) for place in range(3)))
        for i, (number, (text, _)) in enumerate(enumerate(sentences(40, seed=2)))
    ]
    file = write_csv(tmp_path / "a.tsv", rows, header=["id", "comment", *names])
    file.write_text(file.read_text().replace(",", "\t"))
    text = printed(capsys, "check", file, code=2)
    assert "perhaps --label anger,joy,fear" in text
    more = ["--label", "anger,joy,fear"]
    assert "multi-label classification" in printed(capsys, "check", file, *more) or True
    assert run([*TRAIN, *words(place / "model", file, tmp_path / "run", *more)]) == 0
    assert json.loads((tmp_path / "run/record.json").read_text())["task_definition"]["labels"] == sorted(names)
    assert "micro_f1" in printed(capsys, "predict", tmp_path / "run", "--file", file)
    table = pandas.read_csv(tmp_path / "a_predictions.tsv", sep="\t")
    assert list(table)[:6] == ["id", "comment", *names, "prediction"]
    assert "micro_f1" in printed(capsys, "evaluate", tmp_path / "run", "--file", file)
    new = write_csv(tmp_path / "new.csv", [row[:2] for row in rows], header=["id", "comment"])
    assert "40 predictions" in printed(capsys, "predict", tmp_path / "run", "--file", new)
    write_csv(file.with_suffix(".csv"), [*rows[:3], (3, "a film", 0, 2, 0)], header=["id", "comment", *names])
    text = printed(capsys, "check", file.with_suffix(".csv"), *more, code=2)
    assert "line 5 of" in text
    assert "has '2' in column 'joy'; each column of --label anger,joy,fear must have 1 where" in text


def test_decimal_commas_are_numbers_where_that_is_clear(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [(text, f"{30 + i},{i % 10}5") for i, (text, _) in enumerate(sentences(40, seed=2))]
    with (tmp_path / "a.csv").open("w", newline="") as file:
        csv.writer(file, delimiter=";").writerows([("text", "Flesch"), *rows])
    text = printed(capsys, "check", tmp_path / "a.csv", "--label", "Flesch")
    assert "numbers with a decimal comma are read in 'Flesch' of" in text
    assert "treating the task as regression" in text
    assert run([*TRAIN, *words(place / "model", tmp_path / "a.csv", tmp_path / "run", "--label", "Flesch")]) == 0
    assert "spearman" in printed(capsys, "evaluate", tmp_path / "run", "--file", tmp_path / "a.csv")
    write_csv(tmp_path / "b.csv", rows, header=("text", "Flesch"))  # with commas between quoted columns
    text = printed(capsys, "check", tmp_path / "b.csv", "--label", "Flesch", code=2)
    assert "use --kind regression to read them as numbers" in text
    assert "0 errors" in printed(capsys, "check", tmp_path / "b.csv", "--label", "Flesch", "--kind", "regression")
    write_csv(tmp_path / "c.csv", [(text, "1,234") for text, _ in rows], header=("text", "Flesch"))
    text = printed(capsys, "check", tmp_path / "c.csv", "--label", "Flesch", "--kind", "regression", code=2)
    assert "has the label '1,234'" in text  # thousands, or three decimals


def test_label_column_of_another_name_is_named(place: Path, tmp_path: Path, capsys: Any) -> None:
    file = write_csv(tmp_path / "a.csv", sentences(4, seed=2), header=("text", "verdict"))
    text = printed(capsys, "evaluate", place / "run", "--file", file, code=2)
    assert "has no column 'label', in which the labels of training were; if they are in one of verdict, rename" in text
    without = write_csv(file, [("a film",)], header=("text",))
    text = printed(capsys, "evaluate", place / "run", "--file", without, code=2)
    assert "has no labels, and without them" in text


def test_texts_of_similar_lengths_are_proposed_as_a_pair(tmp_path: Path, capsys: Any) -> None:
    rows = [(1000 + i, text, f"{text} or so", f"g{i % 9}") for i, (text, _) in enumerate(sentences(90, seed=2))]
    file = write_csv(tmp_path / "a.csv", rows, header=("Ticket #", "Asked", "Answered", "Group"))
    text = printed(capsys, "check", file, code=2)
    assert "perhaps --text Asked --text-pair Answered --label Group" in text
    flags = text.partition("perhaps ")[2].partition(".")[0].split()
    assert "0 errors" in printed(capsys, "check", file, *flags)


def test_rows_of_a_part_of_a_document_are_named_with_their_columns(tmp_path: Path, capsys: Any) -> None:
    parts = {"train": sentences(40, seed=1), "val": sentences(10, seed=2)}
    (tmp_path / "a.json").write_text(json.dumps(parts))
    text = printed(capsys, "check", tmp_path / "a.json", code=2)
    assert "a.json::train' with --columns text,label." in text
    command = ["check", f"{tmp_path / 'a.json'}::train", f"{tmp_path / 'a.json'}::val", "--columns", "text,label"]
    assert "0 errors" in printed(capsys, *command)


# ---- limits ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["train --nproc 100000", "compare --method layerdrop --workers 100000"])
def test_processes_are_limited(command: str, place: Path, tmp_path: Path, capsys: Any) -> None:
    more = words(place / "model", place / "train.csv", tmp_path / "out", "--use-cpu")
    text = printed(capsys, *command.split(), *more, code=2)
    assert "is 100000; it must be at " in text
    assert f"most {MOST_WORKERS}" in text
