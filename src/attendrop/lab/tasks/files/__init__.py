"""Read the user's files into columns. The suffix selects the format, and every error names the file and the line.

.csv .tsv                           a header line, then one example per line (quoted fields may hold line breaks)
.txt                                a table like those, CoNLL columns, or sentences of word/TAG
.jsonl .ndjson .json                one object per line, or one array of objects
.parquet .xlsx                      of an Excel file the first sheet, with the names of the columns in its first row
.conll .iob .iob2 .bio              word … tag, a blank line between sentences; `-DOCSTART-` lines are skipped
.gz after any of them               compressed
any other suffix, or none           the content shows which of the formats it is

For masked language modelling a .txt file has one text on each line instead.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from pathlib import Path

from ....errors import UserError
from .delimited import read_csv, read_tsv
from .formats import looks_structured, read_arrow, read_conll, read_json, read_lines, read_parquet, read_txt, read_xlsx
from .options import ReadOptions
from .table import Problem, Source, Table, refusals

__all__ = [
    "Problem",
    "ReadOptions",
    "Table",
    "read_arrow",
    "read_table",
    "refusals",
]

_READERS: dict[str, Callable[[Source], Table]] = {
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".txt": read_txt,
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), read_json),
    ".parquet": read_parquet,
    ".xlsx": read_xlsx,
    **dict.fromkeys((".conll", ".iob", ".iob2", ".bio"), read_conll),
}
_BINARY = (".parquet", ".xlsx")
_SEPARATED = (".csv", ".tsv", ".txt")

# suffix -> advice for common formats that are not supported
_ADVICE = {
    **dict.fromkeys((".xls", ".xlsm", ".ods"), "is an old or other spreadsheet; save it as .xlsx or CSV (UTF-8)"),
    **dict.fromkeys((".bz2", ".xz", ".zst", ".zip", ".tar", ".tgz", ".7z"), "is compressed; unpack it first"),
    **dict.fromkeys((".arrow", ".feather"), "is an Arrow file; save it as Parquet, for example with to_parquet"),
    **dict.fromkeys(
        (".conllu", ".conllup"),
        "has ten columns for each word; keep the word and one of its tags, for example with `cut -f 2,4`",
    ),
    **dict.fromkeys((".pkl", ".pickle"), "is a pickle, and loading one runs the code in it; save the table as CSV"),
}


def read_table(
    path: str | Path,
    options: ReadOptions | None = None,
    has_plain_texts: bool = False,
    content: bytes | None = None,
) -> Table:
    """Read a file in the format of its suffix. Rows that cannot be read are in `Table.dropped`.

    Args:
        path: The file.
        options: How it is read.
        has_plain_texts: Whether a .txt file has one text on each line, instead of a table or the columns of a CoNLL
            file.
        content: Content to read instead of the file, such as standard input; `path` is then only a name for it.
    """
    path = Path(path).expanduser()
    options = options or ReadOptions()
    if content is None and path.is_dir():
        raise UserError(f"{path} is a folder; give the file itself.")
    if content is None and not path.exists():
        raise UserError(f"{path} does not exist.")
    is_compressed = path.suffix.lower() == ".gz"
    suffix = Path(path.stem).suffix.lower() if is_compressed else path.suffix.lower()
    if suffix in _ADVICE:
        raise UserError(f"{path} {_ADVICE[suffix]}; the formats are {', '.join(_READERS)}, with or without .gz.")
    try:
        raw = path.read_bytes() if content is None else content
        if is_compressed and raw:
            raw = _unpacked(path, raw)
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    if not raw:
        raise UserError(f"{path} is empty.")
    if suffix not in _READERS:
        suffix = _recognised(path, raw)
    _check_options(path, suffix, options, has_plain_texts)
    read = read_lines if has_plain_texts and suffix == ".txt" else _READERS[suffix]
    table = read(Source(path, suffix, raw, options))
    if not len(table) and table.dropped:
        raise UserError(f"{refusals(path, table.dropped, can_drop=False)[0]}.")
    if not len(table):
        raise UserError(f"{path} has no examples{', only a header' if table.columns else ''}.")
    return table


def _recognised(path: Path, raw: bytes) -> str:
    """Detect the format of a file without a known suffix, and return the format's suffix.

    Args:
        path: The file, for the error message.
        raw: Its content.
    """
    start = raw.removeprefix(b"\xef\xbb\xbf")[:1000].lstrip()
    if start.startswith(b"PAR1"):
        return ".parquet"
    if start.startswith((b"{", b"[")):
        return ".jsonl"
    if start.startswith((b"PK", b"%PDF", b"<")):
        what = "an XML or HTML file" if start.startswith(b"<") else "a PDF or a compressed file"
        raise UserError(f"{path} looks like {what}; save the table in it as one of {', '.join(_READERS)}.")
    if not looks_structured(raw):
        named = f"the unknown suffix {path.suffix!r}" if path.suffix else "no suffix"
        raise UserError(
            f"{path} has {named}, and its content is neither a table nor words with tags nor JSON; the formats are "
            f"{', '.join(_READERS)}, with or without .gz."
        )
    return ".txt"


def _check_options(path: Path, suffix: str, options: ReadOptions, has_plain_texts: bool) -> None:
    """Refuse options that the format does not have: they would silently be ignored."""
    if options.encoding is not None and suffix in _BINARY:
        raise UserError(f"encoding is {options.encoding!r}, and {path} is no text file; leave --encoding out.")
    is_table = suffix in _SEPARATED and not (has_plain_texts and suffix == ".txt")
    if options.separator is not None and not is_table:
        raise UserError(f"separator is {options.separator!r}, and {path} is no table with one; leave --separator out.")
    if options.columns and not (is_table or suffix == ".xlsx"):
        raise UserError(
            f"columns is {','.join(options.columns)!r}, and {path} has names for its columns; leave --columns out."
        )


def _unpacked(path: Path, raw: bytes) -> bytes:
    try:
        return gzip.decompress(raw)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise UserError(f"{path} is incomplete or not a gzip file; copy or download it again.") from None
