"""Commands that can be copied from the screen into a shell, whatever is in the names of files and columns."""

from __future__ import annotations

import shlex


def quoted(word: object) -> str:
    r"""Return a word as a shell reads it; with characters that cannot be seen, as `$'a\x1b'`."""
    text = str(word)
    if text.isprintable():
        return shlex.quote(text)
    return f"$'{''.join(map(_escaped, text))}'"


def command_line(*words: object) -> str:
    """Return a command as a shell reads it."""
    return " ".join(map(quoted, words))


def _escaped(sign: str) -> str:
    if sign.isprintable():
        return f"\\{sign}" if sign in "\\'" else sign
    is_byte = "\udc80" <= sign <= "\udcff"  # of a file name that is no UTF-8
    return "".join(f"\\x{byte:02x}" for byte in sign.encode("utf-8", "surrogateescape" if is_byte else "replace"))
