"""Errors that a user can correct, and how they are shown: as one sentence on one line."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in the user's input. The message is one sentence: the mistake, its place and the remedy."""


class DivergedError(RuntimeError):
    """Training has diverged: losses, gradients or weights are not finite. Nothing that is not finite has been saved."""


def on_one_line(error: BaseException) -> str:
    """Return the message of another library's error on one line, without its full stop."""
    return " ".join(str(error).split()).rstrip(".") or type(error).__name__


def one_line(text: object) -> str:
    """Return the text on one line, with line breaks and other control characters written as escapes.

    A file name or a label may contain a line break, or characters that would change the colours of a terminal.
    """
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(text))
