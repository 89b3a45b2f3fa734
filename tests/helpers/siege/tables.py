"""Odd labels and odd texts in tables of every format: they come back exactly as they were given."""

from __future__ import annotations

import csv
import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import openpyxl
import pyarrow as pa
import pyarrow.parquet as pq
from openpyxl.utils.escape import unescape

from .cases import Case, Siege

Row = Sequence[str]

_LABELS = (
    "1234567890123456789", "1234567890123456788", "9007199254740993", "9007199254740992", "007", "7", "7.0", "1e2",
    "100", "1.0", "1", "0x10", "True", "false", "None", "null", "no", "NO", "é", "e\u0301", "good", "good\u200b",
    "=1+1", "-1", "+2", "@x", "<b>", "a,b", 'a"b', "a;b", "a\tb", "a b", "ａ", "①", "٣", "1_000", "🙂", "#", "'x", "--",
    "1.50", "1.5", "-0", "1e400", "1e-400", "Infinity", "\u202egood", "a\nb", "_x0041_",
)  # fmt: skip
_TEXTS = (
    "a film", "a\rb", "a\r\nb", "a\nb", "=1+1", "-x", "+x", "@x", "\t=x", ' "q" ', "'", "a,b", "a;b", "a\tb",
    "a\u2028b", "a\x85b", "a\x0bb", "a\x1cb", "_x000D_", "   x", "#", "NA", "null", "1", "1e5", "é", "🙂", "''",
    "=cmd|' /C calc'!A0",
    "\\", "\\n", '"', '""', "-1", "  =1", "\ufeffx", "[1]", "{}", "true",
)  # fmt: skip
_HEADERS = ("extra", "=1+1", "a\rb", 'a"b', "a,b", "@x", " x", "prediction", "loss", "1")


def _write_csv(rows: Sequence[Row], separator: str = ",") -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, delimiter=separator, quoting=csv.QUOTE_ALL).writerows(rows)
    return text.getvalue().encode()


def _write_json_lines(rows: Sequence[Row]) -> bytes:
    return "".join(json.dumps(dict(zip(rows[0], row, strict=True))) + "\n" for row in rows[1:]).encode()


def _write_parquet(rows: Sequence[Row]) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table(dict(zip(rows[0], map(list, zip(*rows[1:], strict=True)), strict=True))), file)
    return file.getvalue()


def _escape(sign: re.Match[str]) -> str:
    return f"_x{ord(sign[0]):04X}_"


def _write_xlsx(rows: Sequence[Row]) -> bytes:
    """Write a sheet whose stated dimension is a lie."""
    book, file, lying = openpyxl.Workbook(), io.BytesIO(), io.BytesIO()
    assert book.active is not None
    for number, row in enumerate(rows, 1):
        for place, text in enumerate(row, 1):
            # Excel escapes what XML cannot have, and what looks like an escape.
            known = re.sub("_x([0-9A-Fa-f]{4})_", r"_x005F_x\1_", text)
            cell = book.active.cell(number, place, re.sub(r"[\x00-\x08\x0b-\x1f]", _escape, known))
            cell.data_type = "s"
    book.save(file)
    with zipfile.ZipFile(file) as whole, zipfile.ZipFile(lying, "w") as archive:
        for name in whole.namelist():
            archive.writestr(name, re.sub(rb'dimension ref="[^"]*"', b'dimension ref="A1:B3"', whole.read(name)))
    return lying.getvalue()


WRITERS: dict[str, Callable[[Sequence[Row]], bytes]] = {
    "csv": _write_csv, "tsv": lambda rows: _write_csv(rows, "\t"), "jsonl": _write_json_lines,
    "parquet": _write_parquet, "xlsx": _write_xlsx,
}  # fmt: skip


def _read(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a table, read without the library."""
    form = path.suffix.removeprefix(".")
    if form == "jsonl":
        return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]
    if form == "parquet":
        return pq.read_table(path).to_pylist()
    if form == "xlsx":
        sheet = openpyxl.load_workbook(path).active
        assert sheet is not None
        rows = [[unescape(v) if isinstance(v, str) else v for v in row] for row in sheet.iter_rows(values_only=True)]
    else:
        with path.open(encoding="utf-8", newline="") as file:
            rows = [list(row) for row in csv.reader(file, delimiter="\t" if form == "tsv" else ",")]
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def as_shown(text: str, form: str) -> str:
    """Return a text as a table of this format must have it."""
    is_formula = text.lstrip(" ")[:1] in tuple("=+-@\t\r") and not re.fullmatch(r"-?\d+(\.\d+)?", text)
    return f"'{text}" if is_formula and form in ("csv", "tsv") else text


def labels(siege: Siege) -> Iterator[Case]:
    """Classes with odd names: trained on, and predicted, by exactly these names."""
    while True:
        draw = siege.draw
        names = draw.sample(_LABELS, draw.randint(2, 3))
        form, out = draw.choice(list(WRITERS)), draw.choice(("jsonl", "parquet"))
        rows = [(f"a film {number}", names[number % len(names)]) for number in range(12)]

        def before(form: str = form, rows: list[Row] = rows) -> None:  # type: ignore[assignment]
            Path(f"given.{form}").write_bytes(WRITERS[form]([("text", "label"), *rows]))

        def check(code: int, text: str, rows: list[Row] = rows, out: str = out) -> str | None:  # type: ignore[assignment]
            if code != 0:
                return None
            expected, known = [label for _, label in rows], json.loads(Path("run/record.json").read_text())
            if (classes := set(known["task_definition"]["labels"])) != set(expected):
                return f"other classes: {classes}"
            given = [str(row["label"]) for row in _read(Path(f"out.{out}"))]
            return None if given == expected else f"other labels: {given}"

        words = siege.training("run", "--train-file", f"given.{form}", "--max-steps", 1, "--kind", "classification")
        predicted = ["predict", "run", "--file", f"given.{form}", "--output", f"out.{out}"]
        yield Case(f"labels {names} in {form}", words, [predicted], before=before, check=check)


def tables(siege: Siege) -> Iterator[Case]:
    """Odd texts and headers: each row is predicted, and its cells are those of the file."""
    while True:
        draw = siege.draw
        form, out = draw.choice(list(WRITERS)), draw.choice(list(WRITERS))
        header = ("text", draw.choice(_HEADERS))
        count = draw.choice((1, 5, 30))
        rows = [(draw.choice(_TEXTS), draw.choice(_TEXTS)) for _ in range(count)]

        def before(form: str = form, header: Row = header, rows: list[Row] = rows) -> None:  # type: ignore[assignment]
            Path(f"given.{form}").write_bytes(WRITERS[form]([header, *rows]))

        words = ["predict", siege.run, "--file", f"given.{form}", "--output", f"out.{out}"]
        check = _same_cells(form, out, header, rows)
        yield Case(f"{form} to {out}: {header} {rows[:3]}", words, before=before, check=check)


def _same_cells(form: str, out: str, header: Row, rows: Sequence[Row]) -> Callable[[int, str], str | None]:
    def check(code: int, text: str) -> str | None:
        if code != 0:
            return None
        written = _read(Path(f"out.{out}"))
        if len(written) != len(rows):
            return f"{len(rows)} rows, {len(written)} predictions"
        names = [as_shown(" ".join(name.split()), out) for name in header]  # so that they can be typed
        for row, (given, got) in enumerate(zip(rows, written, strict=True), 1):
            for name, value in zip(names, given, strict=True):
                value = value.replace("\r\n", "\n") if form == "xlsx" else value
                if name not in got:
                    return f"no column {name!r}: {list(got)}"
                if str(got[name]) != as_shown(value, out):
                    return f"row {row}: {value!r} became {got[name]!r}"
        return None

    return check
