"""Read the formats without a separator: JSON, Parquet, Excel, CoNLL, and plain texts."""

from __future__ import annotations

import io
import json
import re
import zipfile
from pathlib import Path
from typing import Any

from ....errors import UserError
from ..findings import NOTE, Finding, plural
from .decoding import decode
from .delimited import read_text_table, table_separator
from .table import Problem, Source, Table, checked_header


def _reject_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise KeyError(next(name for name in names if names.count(name) > 1))
    return dict(pairs)


class _Unreadable(Exception):
    """A text that is not JSON.

    Attributes:
        line: The line of the text, counted from 0; None if it is not known.
        reason: What is wrong, as the end of a sentence.
    """

    def __init__(self, line: int | None, reason: str) -> None:
        super().__init__(reason)
        self.line, self.reason = line, reason


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_reject_repeated_keys)
    except json.JSONDecodeError as error:
        raise _Unreadable(error.lineno - 1, f"is not JSON: {error.msg}") from None
    except KeyError as error:
        reason = f"has the column {error.args[0]!r} twice; rename or remove one"
        raise _Unreadable(None, reason) from None
    except RecursionError:
        raise _Unreadable(0, "is nested too deeply") from None


def _read_list(source: Source, text: str) -> list[dict[str, Any]]:
    """Return the objects of one list."""
    try:
        records = _parse_json(text)
    except _Unreadable as error:
        place = "" if error.line is None else f"line {error.line + 1} of "
        raise UserError(f"{place}{source.path} {error.reason}.") from None
    for row, record in enumerate(records, 1):
        if not isinstance(record, dict):
            raise UserError(
                f'row {row} of {source.path} is not an object with columns, like {{"text": …, "label": …}}.'
            )
    return records


def _read_object(source: Source, text: str, line: int) -> dict[str, Any] | None:
    """Return the object of one line; None if the line is left out."""
    advice = 'write one object with columns on each line, like {"text": …, "label": …}'
    try:
        value = _parse_json(text)
    except _Unreadable as error:
        source.drop(line, Problem(error.reason, advice, "json"))
        return None
    if not isinstance(value, dict):
        source.drop(line, Problem("is not an object with columns", advice))
        return None
    return value


def read_json(source: Source) -> Table:
    """Read a JSON list of objects, or one object in each line."""
    text = decode(source)
    lines: list[int] | None = None
    if text.lstrip().startswith("["):
        records = _read_list(source, text)
    else:
        numbered = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
        parsed = [(number, _read_object(source, line, number)) for number, line in numbered]
        records = [record for _, record in parsed if record is not None]
        lines = [number for number, record in parsed if record is not None]
    names = dict.fromkeys(name for record in records for name in record)
    return source.table({name: [record.get(name) for record in records] for name in names}, lines)


def read_arrow(path: Path, raw: bytes | None = None) -> Any:
    """Read a Parquet file into memory as an Arrow table.

    Args:
        path: The file.
        raw: Its content, if it has been read already.
    """
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path if raw is None else pyarrow.BufferReader(raw)) as file:
            return file.read()
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).strip().split("\n")[0].split(". ")[0].rstrip(".")
        raise UserError(f"{path} is incomplete or not a Parquet file: {reason}.") from None


def read_parquet(source: Source) -> Table:
    """Read a Parquet file, with the names of its classes where it has them."""
    from datasets import ClassLabel, Dataset

    arrow = read_arrow(source.path, source.raw)
    checked_header(source.path, arrow.column_names)
    names = {}
    for column, feature in Dataset(arrow).features.items():
        inner = getattr(feature, "feature", feature)
        if isinstance(inner, ClassLabel):
            names[column] = tuple(inner.names)
    return source.table({name: arrow[name].to_pylist() for name in arrow.column_names}, names=names)


def read_xlsx(source: Source) -> Table:
    """Read the first sheet of an Excel file, whose first row has the names of the columns."""
    import openpyxl

    try:
        book = openpyxl.load_workbook(io.BytesIO(source.raw), read_only=True, data_only=True)
    except (zipfile.BadZipFile, KeyError, ValueError, OSError, EOFError):
        raise UserError(
            f"{source.path} is incomplete or not an Excel file; save it again, or as CSV (UTF-8)."
        ) from None
    sheets = book.worksheets
    if len(sheets) > 1:
        text = f"{source.path} has {len(sheets)} sheets, of which the first, {sheets[0].title!r}, is read"
        source.findings.append(Finding(NOTE, text))
    values = [(number, list(row)) for number, row in enumerate(sheets[0].iter_rows(values_only=True), 1)]
    rows = [(number, row) for number, row in values if any(value not in (None, "") for value in row)]
    if not rows:
        raise UserError(f"{source.path} is empty.")
    width = max(place + 1 for _, row in rows for place, value in enumerate(row) if value not in (None, ""))
    header, rows = source.header_and_rows([(number, row[:width]) for number, row in rows])
    columns = {name: [_cell(row, place) for _, row in rows] for place, name in enumerate(header) if name}
    nameless = [place for place, name in enumerate(header) if place and not name]
    source.warn_of_nameless([n for n, row in rows if any(_cell(row, place) not in (None, "") for place in nameless)])
    return source.table(columns, [number for number, _ in rows], has_header=not source.options.columns)


def _cell(row: list[Any], place: int) -> Any:
    value = row[place] if place < len(row) else None
    return value if value is None or isinstance(value, (str, int, float, bool)) else str(value)  # a date


def _is_comment(fields: list[str], width: int | None) -> bool:
    """Return whether a line is a comment of CoNLL-U, `# text = …`.

    The word `#` has as many columns as every other word.
    """
    return fields[0].startswith("#") and (len(fields) != width if width else "=" in fields)


def read_conll(source: Source) -> Table:
    """Read one word and its tag in each line, with an empty line between sentences."""
    return _conll_of(source, decode(source))


def _conll_of(source: Source, text: str) -> Table:
    tokens: list[list[str]] = []
    tags: list[list[str]] = []
    lines: list[int] = []
    width, in_sentence = None, False
    for number, line in enumerate(text.split("\n"), 1):
        fields = re.split(r"[ \t]+", line.strip(" \t\r"))
        if fields == [""] or fields[0] == "-DOCSTART-":
            in_sentence = False
            continue
        if not in_sentence and _is_comment(fields, width):
            continue
        width = width or len(fields)
        if len(fields) != width:
            raise UserError(
                f"line {number} of {source.path} has {plural(len(fields), 'column')}, but the lines before it have "
                f"{width}; every line of a CoNLL file has a word and its tag, in the same number of columns."
            )
        if not in_sentence:
            tokens.append([])
            tags.append([])
            lines.append(number)
            in_sentence = True
        tokens[-1].append(fields[0])
        tags[-1].append(fields[-1])
    if not tokens:
        raise UserError(f"{source.path} has no examples.")
    columns = {"tokens": tokens} if width == 1 else {"tokens": tokens, "tags": tags}
    return source.table(dict(columns), lines, has_word_lines=True)


def read_txt(source: Source) -> Table:
    """Read a .txt file: sentences of `word/TAG`, a table with a separator, or the columns of a CoNLL file."""
    text = decode(source)
    if source.options.separator is None and not source.options.columns and _has_tagged_words(text):
        return _read_tagged_words(source, text)
    separator = source.options.separator or table_separator(text)
    return read_text_table(source, text, separator) if separator else _conll_of(source, text)


def looks_structured(raw: bytes) -> bool:
    """Return whether the content of a file without a known suffix is a table, or has words with tags.

    UTF-16 counts as one.
    """
    if b"\0" in raw[:1000]:
        return True  # reported by the decoder
    text = raw[:100_000].decode("utf-8", "replace")
    if table_separator(text) or _has_tagged_words(text):
        return True
    widths = {len(line.split()) for line in text.split("\n")[:50] if line.strip() and not line.startswith("#")}
    return len(widths) == 1 and widths.pop() > 1


_TAGGED = re.compile(r"\S+/[^\s/]+")  # a word may have slashes, and its tag has none


def _has_tagged_words(text: str) -> bool:
    """Return whether every word of the first lines has a tag after a slash."""
    words = [line.split() for line in text.split("\n")[:50]]
    return any(len(line) > 1 for line in words) and all(_TAGGED.fullmatch(word) for line in words for word in line)


def _read_tagged_words(source: Source, text: str) -> Table:
    """Return one sentence on each line, each word followed by a slash and its tag."""
    source.findings.append(Finding(NOTE, f"{source.path} is read as sentences of words with tags, written word/TAG"))
    tokens, tags, lines = [], [], []
    for number, line in enumerate(text.split("\n"), 1):
        words = line.split()
        wrong = next((word for word in words if not _TAGGED.fullmatch(word)), None)
        if wrong is not None:
            source.drop(number, Problem(f"has {wrong!r:.40} without a tag", "write word/TAG", group="tagged"))
        elif words:
            pairs = [word.rpartition("/") for word in words]
            tokens.append([word for word, _, _ in pairs])
            tags.append([tag for _, _, tag in pairs])
            lines.append(number)
    return source.table({"tokens": tokens, "tags": tags}, lines)


def read_lines(source: Source) -> Table:
    """Read one text from each line; empty lines are skipped."""
    numbered = [(number, line.strip()) for number, line in enumerate(decode(source).split("\n"), 1) if line.strip()]
    return source.table({"text": [line for _, line in numbered]}, [number for number, _ in numbered])
