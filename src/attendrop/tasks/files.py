"""Reads the user's files, by suffix, into columns; everything that can be wrong with a file is said here.

.csv .tsv                           a header line, then one example a line (quoted fields may hold line breaks)
.jsonl .ndjson .json                one object a line, or one array of objects
.parquet
.conll .iob .iob2 .bio .txt         word … tag, a blank line between sentences, `-DOCSTART-` skipped
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass
class Table:
    """The columns of a file; `lines` is where each row begins, where the format has lines; `names` the label names
    that the file itself declares for a column of numbers."""

    path: Path
    columns: dict[str, list[Any]]
    lines: list[int] | None = None
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def where(self, row: int) -> str:
        return f"row {row + 1} of {self.path}" if self.lines is None else f"line {self.lines[row]} of {self.path}"


def read_table(path: str | Path) -> Table:
    path = Path(path).expanduser()
    readers = _readers()
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the file itself.")
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    if path.suffix.lower() not in readers:
        raise UserError(
            f"{path} has the unknown suffix {path.suffix!r}; known are {', '.join(readers)} (its format is told by it)."
        )
    try:
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty.")
        table = readers[path.suffix.lower()](path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    if not len(table):
        raise UserError(f"{path} has no examples{', only a header' if table.columns else ''}.")
    return table


def read_arrow(path: Path) -> Any:
    """A Parquet file as an Arrow table, in memory."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            return file.read()
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise UserError(f"{path} is cut short or is no Parquet file: {reason}.") from None


def _text_of(path: Path) -> str:
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise UserError(
            f"{path} is not UTF-8: line {line} has the byte 0x{raw[error.start]:02x}; save it as UTF-8, "
            "for example with iconv -f latin1 -t utf-8."
        ) from None
    if not text.strip():
        raise UserError(f"{path} is empty.")
    return text


def _checked_header(path: Path, header: list[str]) -> list[str]:
    names = [name.strip() for name in header]
    twice = sorted({name for name in names if name and names.count(name) > 1})
    if twice:
        raise UserError(f"{path} has the column {twice[0]!r} {names.count(twice[0])} times; rename or remove one.")
    return names


def _assembled(path: Path, rows: Iterable[tuple[int, list[str]]], hint: str) -> Table:
    """A table from numbered rows, the header first. A column without a name (a saved row number) is left out."""
    numbered = iter(rows)
    header = _checked_header(path, next(numbered)[1])
    columns: dict[str, list[Any]] = {name: [] for name in header if name}
    lines = []
    for line, row in numbered:
        if len(row) != len(header):
            raise UserError(f"line {line} of {path} has {plural(len(row), 'field')}, its header {len(header)}; {hint}.")
        lines.append(line)
        for name, value in zip(header, row, strict=True):
            if name:
                columns[name].append(value)
    return Table(path, columns, lines)


@contextmanager
def _long_fields() -> Iterator[None]:
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _quoted_rows(path: Path, text: str, delimiter: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True)
    line = 1
    try:
        for row in reader:
            if row:
                yield line, row
            line = reader.line_num + 1
    except csv.Error as error:
        # An open quotation mark swallows the rest of the file, so that the row's first line is where to look.
        raise UserError(
            f"line {line} of {path} cannot be read: {error}; look for an unpaired quotation mark."
        ) from None


def _read_csv(path: Path) -> Table:
    text = _text_of(path)
    first = text.lstrip("\r\n").split("\n", 1)[0]
    delimiter = "," if "," in first else next((mark for mark in (";", "\t") if mark in first), ",")
    with _long_fields():
        rows = _quoted_rows(path, text, delimiter)
        return _assembled(path, rows, f"put fields that contain {delimiter!r} in quotation marks")


_QUOTED = re.compile(r'"(?:[^"]|"")*"')


def _read_tsv(path: Path) -> Table:
    """Tab-separated values come with quotation marks as plain characters (GLUE's files) and as quotes (pandas).

    They are quotes only where every field that begins with one is properly quoted, or where plain lines are ragged.
    """
    text = _text_of(path)
    rows = [(n, line.rstrip("\r").split("\t")) for n, line in enumerate(text.split("\n"), 1) if line.strip("\r")]
    ragged = any(len(row) != len(rows[0][1]) for _, row in rows)
    opened = [value for _, row in rows for value in row if value.startswith('"')]
    hint = "a field must not contain a tab"
    if ragged or (opened and all(_QUOTED.fullmatch(value) for value in opened)):
        try:
            with _long_fields():
                return _assembled(path, _quoted_rows(path, text, "\t"), hint)
        except UserError:
            if not ragged:
                raise
    return _assembled(path, rows, hint)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise KeyError(twice)
    return dict(pairs)


def _read_json(path: Path) -> Table:
    text = _text_of(path)

    def parsed(source: str, line: int) -> Any:
        try:
            return json.loads(source, object_pairs_hook=_object)
        except json.JSONDecodeError as error:
            raise UserError(f"line {line + error.lineno - 1} of {path} is not JSON: {error.msg}.") from None
        except KeyError as error:
            where = f"line {line} of {path}" if "\n" not in source else path
            raise UserError(f"{where} has the column {error.args[0]!r} twice; rename or remove one.") from None
        except RecursionError:
            raise UserError(f"line {line} of {path} is nested too deeply.") from None

    lines: list[int] | None = None
    if text.lstrip().startswith("["):
        records = parsed(text, 1)
    else:
        numbered = [(n, line) for n, line in enumerate(text.split("\n"), 1) if line.strip()]
        records, lines = [parsed(line, n) for n, line in numbered], [n for n, _ in numbered]
    for row, record in enumerate(records):
        if not isinstance(record, dict):
            where = f"line {lines[row]} of {path}" if lines else f"row {row + 1} of {path}"
            raise UserError(f'{where} is not an object with columns, like {{"text": …, "label": …}}.')
    names = list(dict.fromkeys(name for record in records for name in record))
    return Table(path, {name: [record.get(name) for record in records] for name in names}, lines)


def _read_parquet(path: Path) -> Table:
    from datasets import ClassLabel, Dataset

    arrow = read_arrow(path)
    _checked_header(path, arrow.column_names)
    names = {}
    for column, feature in Dataset(arrow).features.items():
        inner = getattr(feature, "feature", feature)
        if isinstance(inner, ClassLabel):
            names[column] = tuple(inner.names)
    return Table(path, {name: arrow[name].to_pylist() for name in arrow.column_names}, None, names)


def _is_comment(fields: list[str], width: int | None) -> bool:
    """`# text = …`, as above a sentence of CoNLL-U; the word `#` has as many columns as every other word."""
    return fields[0].startswith("#") and (len(fields) != width if width else "=" in fields)


def _read_conll(path: Path) -> Table:
    tokens: list[list[str]] = []
    tags: list[list[str]] = []
    lines: list[int] = []
    width, inside = None, False
    for number, line in enumerate(_text_of(path).split("\n"), 1):
        fields = re.split(r"[ \t]+", line.strip(" \t\r"))
        if fields == [""] or fields[0] == "-DOCSTART-":
            inside = False
            continue
        if not inside and _is_comment(fields, width):
            continue
        width = width or len(fields)
        if len(fields) != width:
            raise UserError(
                f"line {number} of {path} has {plural(len(fields), 'column')}, the lines before it {width}; "
                "a CoNLL file has a word and its tag on each line, and as many columns everywhere."
            )
        if not inside:
            tokens.append([])
            tags.append([])
            lines.append(number)
            inside = True
        tokens[-1].append(fields[0])
        tags[-1].append(fields[-1])
    if not tokens:
        raise UserError(f"{path} has no examples.")
    return Table(path, {"tokens": tokens} if width == 1 else {"tokens": tokens, "tags": tags}, lines)


def _readers() -> dict[str, Any]:
    return {
        ".csv": _read_csv,
        ".tsv": _read_tsv,
        **dict.fromkeys((".jsonl", ".ndjson", ".json"), _read_json),
        ".parquet": _read_parquet,
        **dict.fromkeys((".conll", ".iob", ".iob2", ".bio", ".txt"), _read_conll),
    }
