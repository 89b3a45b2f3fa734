"""Decode the bytes of a file: encodings and byte order marks.

UTF-8 is the default, and a byte order mark takes precedence. Other encodings are never guessed, because a wrong guess
silently changes letters; the error names the likely one.
"""

from __future__ import annotations

import codecs
import re
from contextlib import suppress

from ....errors import UserError, on_one_line
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
_UNUSED = {0x81, 0x8D, 0x8F, 0x90, 0x9D}  # bytes that cp1252 does not have


def decode(source: Source) -> str:
    """Decode a file, and add findings about unusual encodings."""
    path, raw = source.path, source.raw
    mark = next(((name, codec) for sign, name, codec in _MARKS if raw.startswith(sign)), None)
    if source.options.encoding is not None:
        source.encoding = source.options.encoding
        text = _decode_as(source, source.encoding)
    elif mark is not None:
        source.findings.append(Finding(NOTE, f"{path} begins with a byte order mark and is read as {mark[0]}"))
        source.encoding = mark[1]
        text = _decode_as(source, source.encoding)
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
    except (UnicodeError, LookupError) as error:  # of a codec that does not say where
        raise UserError(
            f"{source.path} cannot be read as {encoding}: {on_one_line(error)}; name another encoding with --encoding."
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
        first = error
    with suppress(UnicodeDecodeError):
        return _with_pairs(source, raw.decode("utf-8", "surrogatepass"))
    number = _line_of(raw, first.start)
    line = raw.split(b"\n")[number - 1]
    where = f"line {number} has the byte 0x{raw[first.start]:02x}"
    bad = raw.decode("utf-8", "replace").count("\ufffd")
    if bad * 10 < sum(len(part) for part in re.findall(rb"[\xc2-\xf4][\x80-\xbf]+", raw)):
        raise UserError(
            f"{path} is UTF-8 but for {plural(bad, 'byte')}: {where}, near {_shown_around(line, first, raw)!r}; repair "
            "them, or save the file as UTF-8 again."
        )
    encoding = "cp1252" if any(0x80 <= byte < 0xA0 for byte in raw) and not _UNUSED & set(raw) else "latin-1"
    begin = raw.rfind(b"\n", 0, first.start) + 1
    word = _word_around(line.decode(encoding, "replace"), first.start - begin)
    raise UserError(f"{path} is not UTF-8: {where}; if {word!r} is right there, read it with --encoding {encoding}.")


def _with_pairs(source: Source, text: str) -> str:
    """Return a text of CESU-8, in which Java and Oracle write a letter such as an emoji as two halves."""
    whole = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if joined := len(text) - len(whole):
        text = f"{source.path} has {plural(joined, 'letter')} in two halves (CESU-8), which are joined"
        source.findings.append(Finding(NOTE, text))
    return whole


def _shown_around(line: bytes, error: UnicodeDecodeError, raw: bytes) -> str:
    place = error.start - raw.rfind(b"\n", 0, error.start) - 1
    return line[max(0, place - 15) : place + 15].decode("utf-8", "replace").strip("\r")


def _word_around(line: str, position: int) -> str:
    """Return the word at a position of a line, for one of the encodings with one byte for each letter."""
    begin = max(line.rfind(sign, 0, position) for sign in " ,;\t\"'") + 1
    ends = [end for sign in " ,;\t\"'\r" if (end := line.find(sign, position)) >= 0]
    return line[begin : min(ends, default=len(line))][:40]
