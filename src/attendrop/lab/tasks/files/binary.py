"""Read Parquet and Excel files, and write Excel files."""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from ....errors import UserError, on_one_line
from ....utils.limits import MOST_CELLS, check_growth, check_shape
from ..findings import NOTE, WARNING, Finding, listed
from .table import Source, Table, checked_header

# ---- Parquet --------------------------------------------------------------------------------------------------------

_BATCH = 1000  # rows that are read before their size is looked at


def read_arrow(path: Path, raw: bytes | None = None) -> Any:
    """Read a Parquet file into memory as an Arrow table.

    Args:
        path: The file.
        raw: Its content, if it has been read already.
    """
    import pyarrow
    from pyarrow import parquet

    size = path.stat().st_size if raw is None else len(raw)
    try:
        with parquet.ParquetFile(path if raw is None else pyarrow.BufferReader(raw)) as file:
            metadata = file.metadata
            check_shape(path, metadata.num_columns, metadata.num_rows)
            groups = map(metadata.row_group, range(metadata.num_row_groups))
            check_growth(path, size, sum(group.total_byte_size for group in groups))
            batches, total = [], 0
            for batch in file.iter_batches(_BATCH):
                batches.append(batch)
                total += batch.nbytes
                check_growth(path, size, total)
            return pyarrow.Table.from_batches(batches, file.schema_arrow)
    except (pyarrow.ArrowException, OSError) as error:
        reason = str(error).strip().split("\n")[0].split(". ")[0].rstrip(".")
        raise UserError(f"{path} is incomplete or not a Parquet file: {reason}.") from None


def read_parquet(source: Source) -> Table:
    """Read a Parquet file, with the names of its classes where it has them."""
    arrow = read_arrow(source.path, source.raw)
    names = arrow.column_names
    checked_header(source.path, names)  # a repeated name cannot be asked for
    columns = {}
    for name in names:
        try:
            columns[name] = arrow[name].to_pylist()
        except (ValueError, OverflowError, NotImplementedError) as error:
            raise UserError(
                f"column {name!r} of {source.path} cannot be read: {on_one_line(error)}; repair or remove it."
            ) from None
    return source.table(columns, names=_class_names(source, arrow.schema.metadata or {}), form="parquet")


def _class_names(source: Source, metadata: dict[bytes, bytes]) -> dict[str, tuple[str, ...]]:
    """Return the label names that `datasets` has written into the metadata of a file, by column."""
    if b"huggingface" not in metadata:
        return {}
    features: Any = None
    with suppress(ValueError, RecursionError, AttributeError):
        features = json.loads(metadata[b"huggingface"]).get("info", {}).get("features")
    if not isinstance(features, dict):
        text = f"{source.path} has metadata of `datasets` that cannot be read, so that its numbers have no names"
        source.findings.append(Finding(WARNING, text))
        return {}
    class_names = {}
    for column, feature in features.items():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else feature
        inner = inner[0] if isinstance(inner, list) and len(inner) == 1 else inner
        names = inner.get("names") if isinstance(inner, dict) and inner.get("_type") == "ClassLabel" else None
        if isinstance(names, dict):  # of old versions
            names = list(names.values())
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            class_names[column] = tuple(names)
    return class_names


# ---- Excel ----------------------------------------------------------------------------------------------------------

EXACT = 2**53  # whole numbers below it are exact as floats, which is what Excel has
EXCEL_ROWS, EXCEL_COLUMNS, EXCEL_LETTERS = 2**20, 2**14, 2**15 - 1  # of a sheet, and of a cell
_ESCAPE = re.compile("_x([0-9A-Fa-f]{4})_")


def read_xlsx(source: Source) -> Table:
    """Read a sheet of an Excel file, whose first row has the names of the columns."""
    try:
        rows = list(_rows_of_sheet(source))
    except (UserError, MemoryError):
        raise
    except Exception:  # openpyxl raises whatever a damaged file leads to
        raise UserError(
            f"{source.path} is incomplete or not an Excel file; save it again, or as CSV (UTF-8)."
        ) from None
    if not rows:
        raise UserError(f"{source.path} is empty.")
    width = max(len(row) for _, row in rows)
    header, rows = source.header_and_rows([(number, row + [None] * (width - len(row))) for number, row in rows])
    columns = {name: [row[place] for _, row in rows] for place, name in enumerate(header) if name}
    nameless = [place for place, name in enumerate(header) if place and not name]
    source.warn_of_nameless([n for n, row in rows if any(row[place] not in (None, "") for place in nameless)])
    return source.table(columns, [n for n, _ in rows], has_header=not source.options.columns, form="xlsx")


def _rows_of_sheet(source: Source) -> Iterator[tuple[int, list[Any]]]:
    """Yield the number and the cells of each row with content, up to its last cell with content."""
    import openpyxl

    with zipfile.ZipFile(io.BytesIO(source.raw)) as archive:
        check_growth(source.path, len(source.raw), sum(part.file_size for part in archive.infolist()))
    book = openpyxl.load_workbook(io.BytesIO(source.raw), read_only=True, data_only=True)
    sheet = _sheet_of(source, book)
    sheet.reset_dimensions()  # some programs state others than the sheet has
    cells = 0
    for number, row in enumerate(sheet.iter_rows(values_only=True), 1):
        if number > EXCEL_ROWS:
            raise UserError(f"{source.path} has more than {EXCEL_ROWS:,} rows, which no Excel file has; save it again.")
        values = [_cell(value) for value in row]
        while values and values[-1] in (None, ""):
            values.pop()
        cells += len(row)
        if cells > MOST_CELLS:
            check_shape(source.path, len(row), cells // len(row) + 1)
        if values:
            yield number, values


def _sheet_of(source: Source, book: Any) -> Any:
    sheets = {sheet.title: sheet for sheet in book.worksheets}
    titles = listed(map(repr, sheets), 10)
    if source.part is not None:
        if source.part not in sheets:
            raise UserError(f"{source.path} has no sheet {source.part!r}; it has {titles}.")
        return sheets[source.part]
    chosen = next((sheet for sheet in book.worksheets if _has_examples(source, sheet)), book.worksheets[0])
    if len(sheets) > 1:
        other = next(title for title in sheets if title != chosen.title)
        which = "the first" if chosen is book.worksheets[0] else f"{chosen.title!r}, the first with examples,"
        text = f"{source.path} has {len(sheets)} sheets ({titles}), of which {which} is read; another one is"
        source.findings.append(Finding(NOTE, f"{text} '{source.path}::{other}'"))
    return chosen


def _has_examples(source: Source, sheet: Any) -> bool:
    """Return whether a sheet has a row below the names of its columns."""
    sheet.reset_dimensions()
    filled = (row for row in sheet.iter_rows(values_only=True) if any(value not in (None, "") for value in row))
    return len(list(islice(filled, 1 if source.options.columns else 2))) > (not source.options.columns)


def _cell(value: Any) -> Any:
    if isinstance(value, str):
        return unescaped(value) if "_x" in value else value
    return value if value is None or isinstance(value, (int, float, bool)) else str(value)  # a date


def unescaped(text: str) -> str:
    """Return a text of an Excel file with the characters that XML cannot have, which it writes as `_x000D_`."""
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), text).replace("\r\n", "\n")


def escaped(text: str) -> str:
    """Return a text as it is written into an Excel file; the reverse of `unescaped`."""
    text = _ESCAPE.sub(lambda match: f"_x005F{match[0]}", text)
    return re.sub("[\x00-\x08\x0b-\x1f\ufffe\uffff\ud800-\udfff]", lambda match: f"_x{ord(match[0]):04X}_", text)


def write_xlsx(file: Any, rows: Iterable[Sequence[Any]]) -> None:
    """Write an Excel file with one sheet. Texts stay texts, also those that begin like a formula.

    Args:
        file: The file, opened for bytes.
        rows: The names of the columns, then the rows.
    """
    import openpyxl

    book = openpyxl.Workbook(write_only=True)
    sheet = book.create_sheet("predictions")
    for number, row in enumerate(rows, 1):
        if number > EXCEL_ROWS or len(row) > EXCEL_COLUMNS:
            raise UserError(
                f"an Excel file has at most {EXCEL_ROWS:,} rows and {EXCEL_COLUMNS:,} columns, and there are more; "
                "write CSV, with --format csv."
            )
        sheet.append([_written_cell(sheet, value, number) for value in row])
    book.save(file)


def _written_cell(sheet: Any, value: Any, row: int) -> Any:
    from openpyxl.cell import WriteOnlyCell

    if value is None or isinstance(value, bool) or (isinstance(value, (int, float)) and abs(value) < EXACT):
        return value
    text = escaped(" ".join(map(str, value)) if isinstance(value, list) else str(value))
    if len(text) > EXCEL_LETTERS:
        raise UserError(
            f"row {row} has a text of {len(text):,} letters, and a cell of an Excel file has at most "
            f"{EXCEL_LETTERS:,}; write CSV, with --format csv."
        )
    cell = WriteOnlyCell(sheet, text)
    cell.data_type = "s"
    return cell
