"""Read the user's files into columns. The suffix selects the format, and every error names the file and the line.

.csv .tsv                           a header line, then one example per line (quoted fields may hold line breaks)
.txt                                a table like those, CoNLL columns, sentences of word/TAG, or fastText lines
.jsonl .ndjson .json                one object per line, or one document with a list of rows
.parquet .xlsx                      of an Excel file the first sheet, with the names of the columns in its first row
.conll .iob .iob2 .bio              word … tag, a blank line between sentences; `-DOCSTART-` lines are skipped
.gz after any of them               compressed
any other suffix, or none           the content shows which of the formats it is

`FILE::NAME` is a sheet of an Excel file, or a part of a JSON document. For masked language modelling a .txt file has
one text on each line instead.
"""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable
from pathlib import Path

from ....errors import UserError
from ....utils.limits import growth_limit, read_bytes, read_stream
from ....utils.shell import quoted
from .binary import read_arrow, read_parquet, read_xlsx
from .delimited import read_csv, read_tsv
from .documents import read_json
from .options import ReadOptions
from .table import Problem, Source, Table, refusals
from .words import looks_structured, read_conll, read_lines, read_txt

__all__ = [
    "Problem",
    "ReadOptions",
    "Table",
    "divided",
    "read_arrow",
    "read_table",
    "refusals",
]

_JSON = (".jsonl", ".ndjson", ".json")
_CONLL = (".conll", ".iob", ".iob2", ".bio")
_READERS: dict[str, Callable[[Source], Table]] = {
    ".csv": read_csv,
    ".tsv": read_tsv,
    ".txt": read_txt,
    **dict.fromkeys(_JSON, read_json),
    ".parquet": read_parquet,
    ".xlsx": read_xlsx,
    **dict.fromkeys(_CONLL, read_conll),
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
        "has ten columns for each word; keep the word and one of its tags, as `cut -f 2,4 {name} > {new}` does",
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
    file, part = (path, None) if content is not None else divided(path)
    if content is None and file.is_dir():
        raise UserError(f"{file} is a folder; give the file itself.")
    if content is None and not file.exists():
        raise UserError(f"{file} does not exist.")
    is_compressed = file.suffix.lower() == ".gz"
    suffix = Path(file.stem).suffix.lower() if is_compressed else file.suffix.lower()
    if suffix in _ADVICE:
        new = quoted(file.with_suffix(".conll"))
        advice = _ADVICE[suffix].format(name=quoted(file), new=new)
        raise UserError(f"{path} {advice}; the formats are {', '.join(_READERS)}, with or without .gz.")
    try:
        raw = read_bytes(file) if content is None else content
    except OSError as error:
        raise UserError(f"{path} cannot be read: {error.strerror or error}.") from None
    if is_compressed and raw:
        raw = _unpacked(path, raw)
    if not raw:
        raise UserError(f"{path} is empty.")
    if suffix not in _READERS:
        suffix = _recognised(path, raw)
    _check_options(path, suffix, options, has_plain_texts)
    read = read_lines if has_plain_texts and suffix == ".txt" else _READERS[suffix]
    if part is not None and suffix not in (".xlsx", *_JSON):
        raise UserError(f"{path} names the part {part!r}, and a {suffix} file has no parts; give {file}.")
    table = read(Source(path, suffix, raw, options, part))
    if not len(table) and table.dropped:
        raise UserError(f"{refusals(path, table.dropped, can_drop=False)[0]}.")
    if not len(table):
        raise UserError(f"{path} has no examples{', only a header' if table.columns else ''}.")
    return table


def divided(path: str | Path) -> tuple[Path, str | None]:
    """Return the file of `FILE::NAME`, and the name of its sheet or part; None without one."""
    file, sign, part = str(path).rpartition("::")
    return (Path(file), part) if sign and not Path(path).exists() else (Path(path), None)


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
        return ".json"
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
    if options.separator is not None and not (is_table or suffix in _CONLL):
        raise UserError(f"separator is {options.separator!r}, and {path} is no table with one; leave --separator out.")
    if options.columns and not (is_table or suffix in (".xlsx", *_JSON)):
        raise UserError(
            f"columns is {','.join(options.columns)!r}, and {path} has names for its columns; leave --columns out."
        )


def _unpacked(path: Path, raw: bytes) -> bytes:
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(raw)) as file:
            return read_stream(file, path, growth_limit(len(raw)), "unpacks to")
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise UserError(f"{path} is incomplete or not a gzip file; copy or download it again.") from None
