"""Read tables with a separator: .csv, .tsv, and .txt files that are tables."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, takewhile

from ....errors import UserError
from ....utils.limits import MOST_CELLS, check_shape
from ..findings import NOTE, Finding, plural
from .decoding import decode
from .table import Problem, Source, Table
from .word_rows import sentences_of

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
_LOOKED_AT = 50  # lines used to detect the separator
_LEAST_ROWS = 30  # a sentence of CoNLL rarely has more words

Row = tuple[int, list[str]]


def make_table(source: Source, rows: Iterable[Row], hint: str) -> Table:
    """Make a table from pairs of line number and fields, the header first.

    A column without a name is left out: it is the row number that pandas saves, or the end of every line.
    """
    header, remaining = source.header_and_rows(_without_comments(source, _counted(source, rows)))
    remaining, label = _without_orange_lines(source, header, remaining)
    columns: dict[str, list[str]] = {name: [] for name in header if name}
    lines, nameless = [], []
    for line, row in remaining:
        if len(row) != len(header):
            others = "the first line" if source.options.columns else "the header"
            text = f"has {plural(len(row), 'field')}, but {others} has {len(header)}"
            source.drop(line, Problem(text, hint, group="fields"))
            continue
        lines.append(line)
        if any(value.strip() for name, value in zip(header[1:], row[1:], strict=True) if not name):
            nameless.append(line)
        for name, value in zip(header, row, strict=True):
            if name:
                columns[name].append(value)
    source.warn_of_nameless(nameless)
    if (sentences := sentences_of(source, columns, lines)) is not None:
        return sentences
    form = "tsv" if source.suffix == ".tsv" else "csv"
    return source.table(dict(columns), lines, has_header=not source.options.columns, form=form, label=label)


def _counted(source: Source, rows: Iterable[Row]) -> list[Row]:
    """Return the rows, which are refused as soon as there are too many fields."""
    kept, fields = [], 0
    for row in rows:
        kept.append(row)
        fields += len(row[1])
        if fields > MOST_CELLS:
            check_shape(source.path, len(row[1]), fields // len(row[1]) + 1)
    return kept


_ORANGE_TYPES = {"d", "discrete", "c", "continuous", "s", "string", "t", "time", ""}
_ORANGE_ROLE = re.compile(r"class|meta|ignore|[cim]|\w+=\w+")


def _without_orange_lines(source: Source, header: list[str], rows: list[Row]) -> tuple[list[Row], str | None]:
    """Return the rows without Orange's types and roles, in the second and third line, and the column with the class."""
    if len(rows) < 2 or source.options.columns:
        return rows, None
    (first, types), (second, roles) = rows[:2]
    if not any(types) or not all(word.strip().lower() in _ORANGE_TYPES for word in types):
        return rows, None
    if not all(_ORANGE_ROLE.fullmatch(role) for field in roles for role in field.split()):
        return rows, None
    text = f"lines {first} and {second} of {source.path} hold the types and roles of columns, as Orange writes them"
    source.findings.append(Finding(NOTE, f"{text}, and are no examples"))
    classes = [name for name, role in zip(header, roles, strict=False) if {"class", "c"} & {*role.split()}]
    return rows[2:], classes[0] if len(classes) == 1 else None


def _without_comments(source: Source, rows: list[Row]) -> list[Row]:
    """Return the rows without comments above the table; the last comment is the header if it has as many fields."""
    widths = Counter(len(row) for _, row in rows[:1000])
    width = widths.most_common(1)[0][0] if widths else 0
    count = len(list(takewhile(lambda row: row[1][0].startswith("#"), rows)))
    if width < 2 or not count or len(rows[0][1]) == width:
        return rows
    line, last = rows[count - 1]
    kept = [(line, [last[0].lstrip("# "), *last[1:]]), *rows[count:]] if len(last) == width else rows[count:]
    text = f"{source.path} begins with {plural(len(rows) - len(kept), 'line')} of comments, which are no examples"
    source.findings.append(Finding(NOTE, text))
    return kept


@contextmanager
def _allow_long_fields() -> Iterator[None]:
    limit = csv.field_size_limit(2**31 - 1)
    try:
        yield
    finally:
        csv.field_size_limit(limit)


def _quoted_rows(source: Source, text: str, delimiter: str) -> Iterator[Row]:
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
            f"line {line} of {source.path} cannot be read: {error}; look for an unpaired quotation mark."
        ) from None


def _share_alike(text: str, separator: str) -> float:
    """Return the share of first rows with as many fields as the first; 0 if that has only one."""
    with _allow_long_fields():
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
        widths = [len(row) for row in islice(reader, _LOOKED_AT) if row]
    return widths.count(widths[0]) / len(widths) if widths and widths[0] > 1 else 0.0


def _find_separator(text: str) -> str:
    """Return the separator that gives the most consistent number of fields; a comma if none does."""
    first = text.lstrip("\r\n").split("\n", 1)[0]
    candidates = [sign for sign in SEPARATORS if sign in first]
    return max(candidates, key=lambda sign: _share_alike(text, sign), default=",")


def read_csv(source: Source) -> Table:
    """Read a table whose columns are separated by a comma, a semicolon, a tab or another delimiter."""
    text = decode(source)
    separator = source.options.separator or _find_separator(text)
    if separator != "," and source.options.separator is None:
        source.findings.append(Finding(NOTE, f"{source.path} has {SEPARATORS[separator]} between its columns"))
    return _read_quoted(source, text, separator)


def _read_quoted(source: Source, text: str, separator: str) -> Table:
    source.separator = separator
    with _allow_long_fields():
        hint = f"put fields that contain {separator!r} in quotation marks"
        return make_table(source, _quoted_rows(source, text, separator), hint)


_QUOTED_FIELD = re.compile(r'"(?:[^"]|"")*"')


def read_tsv(source: Source) -> Table:
    """Read tab-separated values, in which a quotation mark is a plain character (GLUE) or quotes a field (pandas)."""
    text = decode(source)
    if source.options.separator is not None:
        return _read_quoted(source, text, source.options.separator)
    return _read_tabs(source, text)


def _read_tabs(source: Source, text: str) -> Table:
    """Read a table with tabs.

    Quotation marks quote fields if every field that begins with one is properly quoted, or if the rows would otherwise
    differ in length.
    """
    source.separator = "\t"
    rows = [(n, line.rstrip("\r").split("\t")) for n, line in enumerate(text.split("\n"), 1) if line.strip("\r")]
    ragged = any(len(row) != len(rows[0][1]) for _, row in rows)
    quoted = [value for _, row in rows for value in row if value.startswith('"')]
    hint = "a field must not contain a tab"
    if quoted and (ragged or all(_QUOTED_FIELD.fullmatch(value) for value in quoted)):
        attempt = replace(source, findings=list(source.findings), dropped={})
        try:
            with _allow_long_fields():
                table = make_table(attempt, _quoted_rows(attempt, text, "\t"), hint)
            if not table.dropped:
                return table
        except UserError:
            if not ragged:
                raise
    return make_table(source, rows, hint)


def table_separator(text: str) -> str | None:
    """Return the separator of a .txt file that is a table; None if it is none.

    In a table nearly all lines have the same number of fields, and some fields are texts of several words, which the
    columns of a CoNLL file rarely are, or there are many lines with tabs and no empty line between sentences.
    """
    for sign in ("\t", ";", "|", ","):
        fields = [line.split(sign) for line in text.split("\n")[:_LOOKED_AT] if line.strip()]
        has_texts = any(" " in value.strip() for row in fields for value in row)
        if has_texts and len(fields) > 1 and _share_alike(text, sign) >= 0.9:
            return None if sign == "\t" and _has_sentences(text) else sign
    return "\t" if _has_rows_of_words(text) else None


def _has_sentences(text: str) -> bool:
    """Return whether empty lines divide lines of a word, or an expression of few words, and its tags."""
    parts = [part.split("\n") for part in re.split(r"\n\s*\n", text[:100_000].strip())]
    lines = [line.strip().split("\t") for part in parts for line in part]
    has_tags = not any(" " in fields[-1] for fields in lines)
    words = sum(len(fields[0].split()) for fields in lines)
    return len(parts) > 1 and len(lines) >= 2 * len(parts) and has_tags and words < 3 * len(lines)


def _has_rows_of_words(text: str) -> bool:
    """Return whether a .txt file has a row of words and values in each line, and no sentences of them."""
    lines = text.strip("\n").split("\n")
    widths = {line.count("\t") for line in lines}
    return len(lines) >= _LEAST_ROWS and len(widths) == 1 and min(widths) > 0


def read_text_table(source: Source, text: str, separator: str) -> Table:
    """Read a .txt file that is a table."""
    if source.options.separator is None:
        name = SEPARATORS[separator]
        source.findings.append(Finding(NOTE, f"{source.path} is read as a table with {name} between its columns"))
    return _read_tabs(source, text) if separator == "\t" else _read_quoted(source, text, separator)
