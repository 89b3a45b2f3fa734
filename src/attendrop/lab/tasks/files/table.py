"""The columns of a file, and rows that cannot be used."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ....errors import UserError
from ....utils.limits import check_shape, is_deep
from ..findings import NOTE, WARNING, Finding, listed, plural
from .content import suggested_names
from .options import ReadOptions

_HALF = re.compile("[\ud800-\udfff]")
_LOOKED_AT = 1000  # rows from which names of columns are made


@dataclass(frozen=True)
class Problem:
    """Why a row cannot be used.

    Attributes:
        text: The mistake, as the end of a sentence that begins with the place of the row.
        advice: What to do.
        group: Rows of one group have the same problem; by default those with the same text.
    """

    text: str
    advice: str
    group: str = ""

    @property
    def key(self) -> str:
        return self.group or self.text


@dataclass
class Table:
    """The columns of a file.

    Attributes:
        path: The file.
        columns: Column name -> values.
        lines: The line on which each row begins; None for a format without lines.
        rows: The number of each row in the file, from 1; None = all of them, in order.
        names: Column name -> the label names that the file declares for its numbers (Parquet files of `datasets`).
        findings: Findings from reading the file.
        dropped: The place of each row that was left out -> why.
        has_header: Whether the names of the columns are the first line of the file.
        has_word_lines: Whether each word has a line of its own (CoNLL).
        encoding: The encoding of a text file, so that a table that is made of it can have the same.
        separator: The delimiter of its columns; None for a format without one.
        form: The name of the format: `csv`, `tsv`, `jsonl`, `parquet` or `xlsx`; None for the others.
        label: The column that the file itself declares as the label.
    """

    path: Path
    columns: dict[str, list[Any]]
    lines: list[int] | None = None
    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    dropped: dict[str, Problem] = field(default_factory=dict)
    has_header: bool = False
    has_word_lines: bool = False
    encoding: str = "utf-8"
    separator: str | None = None
    form: str | None = None
    rows: list[int] | None = None
    label: str | None = None

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def place(self, row: int, word: int = 0) -> str:
        """Return where a row, or a word of it, is in the file: `line 3`."""
        if self.lines is None:
            return f"row {self.number(row)}"
        return f"line {self.number(row) + (word if self.has_word_lines else 0)}"

    def number(self, row: int) -> int:
        """Return the line of a row, or its number in a format without lines."""
        if self.lines is not None:
            return self.lines[row]
        return row + 1 if self.rows is None else self.rows[row]

    def location(self, row: int, word: int = 0) -> str:
        """Return where a row, or a word of it, is, with the name of the file, for error messages."""
        return f"{self.place(row, word)} of {self.path}"

    def without(self, problems: Mapping[int, Problem]) -> Table:
        """Return the table without the rows that have a problem, which are added to `dropped`."""
        if not problems:
            return self
        kept = [row for row in range(len(self)) if row not in problems]
        return replace(
            self,
            columns={name: [values[row] for row in kept] for name, values in self.columns.items()},
            lines=None if self.lines is None else [self.lines[row] for row in kept],
            rows=[row + 1 if self.rows is None else self.rows[row] for row in kept],
            dropped={**self.dropped, **{self.place(row): problem for row, problem in problems.items()}},
        )

    def dropped_sentence(self) -> str | None:
        """Return a sentence on the excluded rows: number, places and reasons; None without any."""
        if not self.dropped:
            return None
        places = listed(f"{place} {problem.text}" for place, problem in self.dropped.items())
        return f"{plural(len(self.dropped), 'row')} of {self.path} left out by --drop-bad-rows: {places}"


def refusals(path: Path, problems: Mapping[str, Problem], can_drop: bool = True) -> list[str]:
    """Return one sentence per kind of problem, without its full stop: the first such row, and the number of rows.

    Args:
        path: The file.
        problems: The place of each row -> its problem.
        can_drop: Whether --drop-bad-rows would help.
    """
    groups: dict[str, list[str]] = {}
    for place, problem in problems.items():
        groups.setdefault(problem.key, []).append(place)
    sentences = []
    for places in groups.values():
        first = problems[places[0]]
        count = f" ({len(places):,} such rows in total)" if len(places) > 1 else ""
        drop = "; --drop-bad-rows leaves such rows out" if can_drop else ""
        sentences.append(f"{places[0]} of {path} {first.text}{count}; {first.advice}{drop}")
    return sentences


@dataclass
class Source:
    """A file while it is read.

    Attributes:
        path: The file.
        suffix: The suffix that selects the format, without .gz.
        raw: The content, uncompressed.
        options: How it is read.
        part: The sheet or the part that the user named after `::`.
        findings: The findings so far.
        dropped: The place of each row that was left out so far -> why.
        encoding: The encoding, once the text has been decoded.
        separator: The delimiter of the columns, once it is known.
    """

    path: Path
    suffix: str
    raw: bytes
    options: ReadOptions
    part: str | None = None
    findings: list[Finding] = field(default_factory=list)
    dropped: dict[str, Problem] = field(default_factory=dict)
    encoding: str = "utf-8"
    separator: str | None = None
    _halves: int = field(default=0, init=False)

    def drop(self, line: int, problem: Problem) -> None:
        """Leave a row out. Whether that is an error is for the caller of `read_table` to say."""
        self.dropped[f"line {line}"] = problem

    def header_and_rows(
        self, rows: list[tuple[int, list[Any]]], has_header: bool = True
    ) -> tuple[list[str], list[tuple[int, list[Any]]]]:
        """Return the names of the columns, and the rows below them. With `--columns` all rows are examples.

        Args:
            rows: Line number and fields of each row.
            has_header: Whether the format has a header, so that the first row is one without `--columns`.
        """
        line, first = rows[0]
        names = ["" if name is None else str(name) for name in first]
        check_shape(self.path, len(names), len(rows))
        given = list(self.options.columns)
        if not given and has_header:
            return checked_header(self.path, names, rows[:_LOOKED_AT]), rows[1:]
        if not given or self.options.finds_columns:
            guessed = _names_by_content(rows[:_LOOKED_AT], len(names))
            if given:
                text = f"{self.path} has no header; its columns are called {','.join(guessed)}, from their content"
                self.findings.append(Finding(NOTE, text))
                return list(guessed), rows
            raise UserError(f"{self.path} has no names of columns; give them with --columns {','.join(guessed)}.")
        if len(given) != len(names):
            raise UserError(
                f"columns is {','.join(given)!r}, {plural(len(given), 'name')}, but line {line} of {self.path} has "
                f"{plural(len(names), 'field')}; name each of them."
            )
        if given == [name.strip() for name in names]:
            raise UserError(
                f"columns is {','.join(given)!r}, which line {line} of {self.path} has too; leave --columns out."
            )
        return given, rows

    def warn_of_nameless(self, lines: list[int]) -> None:
        """Warn if rows have values in columns without a name, which are not used.

        Args:
            lines: The lines of these rows.
        """
        if lines:
            verb = "has" if len(lines) == 1 else "have"
            text = (
                f"{plural(len(lines), 'row')} of {self.path} (first: line {lines[0]}) {verb} values in columns without"
            )
            cut = "" if self.suffix == ".xlsx" else "; a text may be cut at a separator"
            self.findings.append(Finding(WARNING, f"{text} a name, which are not used{cut}"))

    def table(self, columns: dict[str, list[Any]], lines: list[int] | None = None, **fields: Any) -> Table:
        """Return the table of this file. Everything that is read from a file comes through here."""
        names = checked_header(self.path, list(columns))
        table = Table(
            self.path, dict(zip(names, columns.values(), strict=True)), lines, findings=self.findings,
            dropped=self.dropped, encoding=self.encoding, separator=self.separator, **fields,
        )  # fmt: skip
        check_shape(self.path, len(columns), len(table))
        for name, values in table.columns.items():
            for row, value in enumerate(values):
                if isinstance(value, (list, dict)) and is_deep(value):
                    raise UserError(f"{table.location(row)} has lists or objects in column {name!r} nested too deeply.")
            table.columns[name] = self._clean(values)
        if self._halves:
            text = f"{plural(self._halves, 'value')} of {self.path} had half of a surrogate pair, which stands for no "
            self.findings.append(Finding(WARNING, f"{text}letter and is read as �"))
        return table

    def _clean(self, values: list[Any]) -> list[Any]:
        """Return values without half surrogate pairs, which can neither be tokenised nor written."""
        return [self._whole(value) if isinstance(value, (str, list, dict)) else value for value in values]

    def _whole(self, value: Any) -> Any:
        if isinstance(value, str):
            has_half = not value.isascii() and _HALF.search(value) is not None
        else:
            has_half = "\\ud" in str(value)  # how a half is shown
        self._halves += has_half
        return _without_halves(value) if has_half else value


def _without_halves(value: Any) -> Any:
    """Return a value whose texts have whole letters only; two halves that belong together become one letter."""
    if isinstance(value, list):
        return [_without_halves(inner) for inner in value]
    if isinstance(value, dict):
        return {_without_halves(name): _without_halves(inner) for name, inner in value.items()}
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return value


def printable(name: str) -> str:
    """Return the name of a column as it is shown and can be typed: on one line, without invisible characters."""
    if name.isprintable():
        return name.strip()
    spaced = "".join(" " if c.isspace() else c for c in name)
    return " ".join("".join(c for c in spaced if c.isprintable()).split())


def _names_by_content(rows: list[tuple[int, list[Any]]], width: int) -> tuple[str, ...]:
    """Return names for the columns of rows without a header."""
    whole = [[*row, *[None] * width] for _, row in rows]
    return suggested_names({str(place): [row[place] for row in whole] for place in range(width)})


def checked_header(path: Path, header: list[str], rows: list[tuple[int, list[Any]]] | None = None) -> list[str]:
    """Return the names of the columns as they can be typed, none of which may occur twice.

    Args:
        path: The file.
        header: The names as they are written.
        rows: The first rows, from whose content other names are made.
    """
    names = [printable(name) for name in header]
    counts = Counter(name for name in names if name)
    repeated = min((name for name, count in counts.items() if count > 1), default=None)
    if repeated is not None:
        example = f" {','.join(_names_by_content(rows, len(header)))}" if rows else ""
        raise UserError(
            f"{path} has the column {repeated!r} {counts[repeated]} times; rename or remove one, or, if the first line "
            f"is data, name the columns with --columns{example}."
        )
    return names
