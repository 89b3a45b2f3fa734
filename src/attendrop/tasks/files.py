"""Read the user's files into columns. The suffix selects the format, and every error names the file and the line.

.csv .tsv                           a header line, then one example per line (quoted fields may hold line breaks)
.jsonl .ndjson .json                one object per line, or one array of objects
.parquet
.conll .iob .iob2 .bio .txt         word … tag, a blank line between sentences; `-DOCSTART-` lines are skipped

For masked language modelling a .txt file has one text on each line instead.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UserError


def plural(count: int, noun: str) -> str:
    """Return a count with its noun: `1 word`, `2,000 words`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


@dataclass
class Table:
    """The columns of a file.

    Attributes:
        path: The file.
        columns: Column name -> values.
        lines: The line on which each row begins; None for a format without lines.
        names: Column name -> the label names that the file declares for its numbers (Parquet files of `datasets`).
    """

    path: Path
    columns: dict[str, list[Any]]
    lines: list[int] | None = None
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def location(self, row: int) -> str:
        """Where a row is in the file, for error messages."""
        return f"row {row + 1} of {self.path}" if self.lines is None else f"line {self.lines[row]} of {self.path}"


def read_table(path: str | Path, has_plain_texts: bool = False) -> Table:
    """Read a file in the format of its suffix.

    Args:
        path: The file.
        has_plain_texts: Whether a .txt file has one text on each line, instead of the columns of a CoNLL file.
    """
    path = Path(path).expanduser()
    if path.is_dir():
        raise UserError(f"{path} is a folder; give the file itself.")
    if not path.exists():
        raise UserError(f"{path} does not exist.")
    suffix = path.suffix.lower()
    read = _read_lines if has_plain_texts and suffix == ".txt" else _READERS.get(suffix)
    if read is None:
        raise UserError(_unknown_suffix(path))
    try:
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty.")
        table = read(path)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    if not len(table):
        raise UserError(f"{path} has no examples{', only a header' if table.columns else ''}.")
    return table


# suffix -> what to do with a file that is common but not read
_ADVICE = {
    **dict.fromkeys((".xlsx", ".xls", ".xlsm", ".ods"), "is a spreadsheet; save the sheet as CSV (UTF-8)"),
    **dict.fromkeys((".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz", ".7z"), "is compressed; unpack it first"),
    **dict.fromkeys((".arrow", ".feather"), "is an Arrow file; save it as Parquet, for example with to_parquet"),
    **dict.fromkeys((".pkl", ".pickle"), "is a pickle, and loading one runs the code in it; save the table as CSV"),
}


def _unknown_suffix(path: Path) -> str:
    allowed = f"the suffix selects the format and must be one of {', '.join(_READERS)}"
    if advice := _ADVICE.get(path.suffix.lower()):
        return f"{path} {advice}; {allowed}."
    return f"{path} has {f'the unknown suffix {path.suffix!r}' if path.suffix else 'no suffix'}; {allowed}."


def read_arrow(path: Path) -> Any:
    """Read a Parquet file into memory as an Arrow table."""
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            return file.read()
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).strip().split("\n")[0].split(". ")[0].rstrip(".")
        raise UserError(f"{path} is incomplete or not a Parquet file: {reason}.") from None


def _read_text(path: Path) -> str:
    raw = path.read_bytes()
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise UserError(f"{path} is UTF-16; save it as UTF-8, for example with iconv -f utf-16 -t utf-8.")
    if b"\0" in raw:
        line = raw.count(b"\n", 0, raw.index(b"\0")) + 1
        raise UserError(
            f"{path} is not plain text: line {line} has a NUL byte; save it as UTF-8 text, or remove these bytes."
        )
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
    repeated = sorted({name for name in names if name and names.count(name) > 1})
    if repeated:
        count = names.count(repeated[0])
        raise UserError(f"{path} has the column {repeated[0]!r} {count} times; rename or remove one.")
    return names


def _make_table(path: Path, rows: Iterable[tuple[int, list[str]]], hint: str) -> Table:
    """Make a table from pairs of line number and fields, the header first.

    A column without a name is left out: it is the row number that pandas saves.
    """
    remaining = iter(rows)
    header = _checked_header(path, next(remaining)[1])
    columns: dict[str, list[Any]] = {name: [] for name in header if name}
    lines = []
    for line, row in remaining:
        if len(row) != len(header):
            raise UserError(
                f"line {line} of {path} has {plural(len(row), 'field')}, but the header has {len(header)}; {hint}."
            )
        lines.append(line)
        for name, value in zip(header, row, strict=True):
            if name:
                columns[name].append(value)
    return Table(path, columns, lines)


@contextmanager
def _allow_long_fields() -> Iterator[None]:
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
        # An unpaired quotation mark runs to the end of the file, so the error is on the first line of the row.
        raise UserError(
            f"line {line} of {path} cannot be read: {error}; look for an unpaired quotation mark."
        ) from None


def _read_csv(path: Path) -> Table:
    text = _read_text(path)
    first = text.lstrip("\r\n").split("\n", 1)[0]
    delimiter = "," if "," in first else next((sign for sign in (";", "\t") if sign in first), ",")
    with _allow_long_fields():
        rows = _quoted_rows(path, text, delimiter)
        return _make_table(path, rows, f"put fields that contain {delimiter!r} in quotation marks")


_QUOTED_FIELD = re.compile(r'"(?:[^"]|"")*"')


def _read_tsv(path: Path) -> Table:
    """Read tab-separated values, in which a quotation mark is a plain character (GLUE) or quotes a field (pandas).

    It quotes fields if every field that begins with one is properly quoted, or if the rows would differ in length
    otherwise.
    """
    text = _read_text(path)
    rows = [(n, line.rstrip("\r").split("\t")) for n, line in enumerate(text.split("\n"), 1) if line.strip("\r")]
    ragged = any(len(row) != len(rows[0][1]) for _, row in rows)
    quoted = [value for _, row in rows for value in row if value.startswith('"')]
    hint = "a field must not contain a tab"
    if ragged or (quoted and all(_QUOTED_FIELD.fullmatch(value) for value in quoted)):
        try:
            with _allow_long_fields():
                return _make_table(path, _quoted_rows(path, text, "\t"), hint)
        except UserError:
            if not ragged:
                raise
    return _make_table(path, rows, hint)


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise KeyError(next(name for name in names if names.count(name) > 1))
    return dict(pairs)


def _parse_json(source: str, path: Path, line: int) -> Any:
    """Parse a text that begins on `line` of the file."""
    try:
        return json.loads(source, object_pairs_hook=_reject_repeated_keys)
    except json.JSONDecodeError as error:
        raise UserError(f"line {line + error.lineno - 1} of {path} is not JSON: {error.msg}.") from None
    except KeyError as error:
        location = f"line {line} of {path}" if "\n" not in source else path
        raise UserError(f"{location} has the column {error.args[0]!r} twice; rename or remove one.") from None
    except RecursionError:
        raise UserError(f"line {line} of {path} is nested too deeply.") from None


def _read_json(path: Path) -> Table:
    text = _read_text(path)
    lines: list[int] | None = None
    if text.lstrip().startswith("["):
        records = _parse_json(text, path, 1)
    else:
        numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        records = [_parse_json(line, path, number) for number, line in numbered]
        lines = [number for number, _ in numbered]
    table = Table(path, {}, lines)
    for row, record in enumerate(records):
        if not isinstance(record, dict):
            raise UserError(f'{table.location(row)} is not an object with columns, like {{"text": …, "label": …}}.')
    names = dict.fromkeys(name for record in records for name in record)
    table.columns = {name: [record.get(name) for record in records] for name in names}
    return table


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
    """Whether a line is a comment of CoNLL-U, `# text = …`. The word `#` has as many columns as every other word."""
    return fields[0].startswith("#") and (len(fields) != width if width else "=" in fields)


def _read_conll(path: Path) -> Table:
    tokens: list[list[str]] = []
    tags: list[list[str]] = []
    lines: list[int] = []
    width, in_sentence = None, False
    for number, line in enumerate(_read_text(path).split("\n"), 1):
        fields = re.split(r"[ \t]+", line.strip(" \t\r"))
        if fields == [""] or fields[0] == "-DOCSTART-":
            in_sentence = False
            continue
        if not in_sentence and _is_comment(fields, width):
            continue
        width = width or len(fields)
        if len(fields) != width:
            raise UserError(
                f"line {number} of {path} has {plural(len(fields), 'column')}, but the lines before it have {width}; "
                "every line of a CoNLL file has a word and its tag, in the same number of columns."
            )
        if not in_sentence:
            tokens.append([])
            tags.append([])
            lines.append(number)
            in_sentence = True
        tokens[-1].append(fields[0])
        tags[-1].append(fields[-1])
    if not tokens:
        raise UserError(f"{path} has no examples.")
    return Table(path, {"tokens": tokens} if width == 1 else {"tokens": tokens, "tags": tags}, lines)


def _read_lines(path: Path) -> Table:
    """One text on each line; empty lines are skipped."""
    numbered = [(number, line.strip()) for number, line in enumerate(_read_text(path).split("\n"), 1) if line.strip()]
    return Table(path, {"text": [line for _, line in numbered]}, [number for number, _ in numbered])


_READERS: dict[str, Callable[[Path], Table]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), _read_json),
    ".parquet": _read_parquet,
    **dict.fromkeys((".conll", ".iob", ".iob2", ".bio", ".txt"), _read_conll),
}
