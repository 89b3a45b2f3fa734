"""Texts of users inside of Markdown: as text, never as markup."""

from __future__ import annotations

import re
from typing import Any


def _one_line(text: Any) -> str:
    """Return the text on one line. Bytes of a file name that are not UTF-8 are written as escapes."""
    return " ".join(str(text).encode("utf-8", "backslashreplace").decode().split())


def markdown_text(text: Any) -> str:
    """Escape every character that would be Markdown or HTML. An underscore inside a word is neither.

    Args:
        text: The text, of any type that can be printed.
    """
    return re.sub(r"([\\`*\[\]<>|~#&$]|(?<![^\W_])_|_(?![^\W_]))", r"\\\1", _one_line(text))


def markdown_code(text: Any) -> str:
    """Write a text as a Markdown code span, delimited by more backticks than it contains in a row.

    Args:
        text: The text, of any type that can be printed.
    """
    line = _one_line(text)
    ticks = "`" * (max((len(run) for run in re.findall("`+", line)), default=0) + 1)
    space = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{ticks}{space}{line}{space}{ticks}"
