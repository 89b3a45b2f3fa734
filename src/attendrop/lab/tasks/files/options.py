"""The options of reading the user's files."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass

from ....errors import UserError

_NAMED = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}
# encodings of names of hosts and of source code
_NOT_OF_FILES = ("idna", "mbcs", "oem", "punycode", "raw-unicode-escape", "undefined", "unicode-escape")


@dataclass(frozen=True)
class ReadOptions:
    """How files are read.

    Attributes:
        encoding: The encoding of text files; None = UTF-8, or UTF-16 if the file says so.
        separator: The delimiter between the columns of a table, or one of the names tab, comma, semicolon, pipe and
            space; None = detect it.
        drop_bad_rows: Whether rows that cannot be used are left out and counted. Otherwise they are an error of
            `load_files`.
        label_separator: The delimiter between the labels of one example; None = a label is one name, or a list.
        columns: The names of the columns of a table that has no header line; an item may hold several, with commas
            between them. Empty = the first line has the names; `auto` = the table has no header line, and names are
            made from the content.
    """

    encoding: str | None = None
    separator: str | None = None
    drop_bad_rows: bool = False
    label_separator: str | None = None
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.encoding is not None:
            _check_encoding(self.encoding)
        if self.separator is not None:
            object.__setattr__(self, "separator", _separator_of(self.separator))
        if self.label_separator is not None and not self.label_separator.strip():
            raise UserError(f"label_separator is {self.label_separator!r}; it must be a sign such as a comma.")
        object.__setattr__(self, "columns", _names_of(self.columns))

    @property
    def finds_columns(self) -> bool:
        """Whether the names of the columns are made from their content."""
        return self.columns == ("auto",)


def _names_of(given: Iterable[str]) -> tuple[str, ...]:
    """Return the names that `--columns` gives, each alone or several with commas between them."""
    names = tuple(name.strip() for text in given for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise UserError(f"columns is {','.join(names)!r}; it must be different names, such as label,text.")
    return names


def _check_encoding(name: str) -> None:
    """Raise a `UserError` if Python does not know the encoding, or if files are not written in it."""
    try:
        codec = codecs.lookup(name)
        is_text = codec._is_text_encoding and codec.name not in _NOT_OF_FILES
    except (LookupError, ValueError):
        is_text = False
    if not is_text:
        raise UserError(
            f"encoding is {name!r}, which is no encoding of files that Python knows; it must be one such as utf-8, "
            "latin-1, cp1252 or utf-16."
        )


def _separator_of(name: str) -> str:
    """Return the delimiter for `--separator`: itself, or one of the names tab, comma, semicolon, pipe and space."""
    sign = _NAMED.get(name.lower(), name)
    if len(sign) != 1 or sign in '\r\n"\0':
        raise UserError(f"separator is {name!r}; it must be one sign, or one of {', '.join(_NAMED)}.")
    return sign
