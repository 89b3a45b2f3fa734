"""Decode the bytes of a file: encodings and byte order marks.

UTF-8 is the default, and a byte order mark takes precedence. Other encodings are never guessed, because a wrong guess
silently changes letters; the error names the likely one.
"""

from __future__ import annotations

import codecs

from ....errors import UserError
from ..findings import NOTE, WARNING, Finding, plural
from .table import Source

# byte order mark -> its name, and the codec that reads it; the longer marks first
_MARKS = (
    (codecs.BOM_UTF32_LE, "UTF-32", "utf-32"),
    (codecs.BOM_UTF32_BE, "UTF-32", "utf-32"),
    (codecs.BOM_UTF8, "UTF-8", "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "UTF-16", "utf-16"),
    (codecs.BOM_UTF16_BE, "UTF-16", "utf-16"),
)


def decode(source: Source) -> str:
    """Decode a file, and add findings about unusual encodings."""
    path, raw = source.path, source.raw
    mark = next(((name, codec) for sign, name, codec in _MARKS if raw.startswith(sign)), None)
    if source.options.encoding is not None:
        text = _decode_as(source, source.options.encoding)
    elif mark is not None:
        source.findings.append(Finding(NOTE, f"{path} begins with a byte order mark and is read as {mark[0]}"))
        text = _decode_as(source, mark[1])
    else:
        text = _decode_utf8(source)
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise UserError(
            f"{path} is not plain text: line {line} has a NUL byte; save it as UTF-8 text, or remove these bytes."
        )
    text = text.removeprefix("\ufeff")
    if not text.strip():
        raise UserError(f"{path} is empty.")
    if count := text.count("\ufffd"):
        line = text.count("\n", 0, text.index("\ufffd")) + 1
        source.findings.append(
            Finding(
                WARNING,
                f"{path} has {plural(count, 'replacement character')} (�, first in line {line}): letters were lost "
                "when it was saved",
            )
        )
    return text


def _line_of(raw: bytes, position: int) -> int:
    return raw.count(b"\n", 0, position) + 1


def _decode_as(source: Source, encoding: str) -> str:
    try:
        # A file in UTF-8 may begin with a byte order mark although its user calls it plain UTF-8.
        return source.raw.decode("utf-8-sig" if codecs.lookup(encoding).name == "utf-8" else encoding)
    except UnicodeDecodeError as error:
        line = _line_of(source.raw, error.start)
        raise UserError(
            f"{source.path} cannot be read as {encoding}: line {line} has the byte 0x{source.raw[error.start]:02x}; "
            "name another encoding with --encoding."
        ) from None


def _decode_utf8(source: Source) -> str:
    path, raw = source.path, source.raw
    zeros = raw[:2000].count(0)
    if zeros * 3 > len(raw[:2000]):  # every second byte of Latin letters in UTF-16
        encoding = "utf-16-be" if raw[:1] == b"\0" else "utf-16-le"
        raise UserError(f"{path} looks like UTF-16 without a byte order mark; read it with --encoding {encoding}.")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        encoding = "cp1252" if any(0x80 <= byte < 0xA0 for byte in raw) else "latin-1"
        line = raw.split(b"\n")[_line_of(raw, error.start) - 1]
        begin = raw.rfind(b"\n", 0, error.start) + 1
        word = _word_around(line.decode(encoding, "replace"), error.start - begin)
        raise UserError(
            f"{path} is not UTF-8: line {_line_of(raw, error.start)} has the byte 0x{raw[error.start]:02x}; if "
            f"{word!r} is right there, read it with --encoding {encoding}."
        ) from None


def _word_around(line: str, position: int) -> str:
    """Return the word at a position of a line, for one of the encodings with one byte for each letter."""
    begin = max(line.rfind(sign, 0, position) for sign in " ,;\t\"'") + 1
    ends = [end for sign in " ,;\t\"'\r" if (end := line.find(sign, position)) >= 0]
    return line[begin : min(ends, default=len(line))][:40]
