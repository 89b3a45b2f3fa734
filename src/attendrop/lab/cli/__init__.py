"""The command line: the program `attendrop`, with one module for each command."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits. A mistake of the user is reported in one sentence, with exit code 2.

    Args:
        arguments: The words that follow `attendrop`. By default, those that this process was started with.
    """
    from .packages import NAMES, missing_program, sentence_about
    from .signals import exits_on_interrupt

    if problem := missing_program():
        _end(problem)
    try:
        with exits_on_interrupt():
            from .app import run

        code = run(sys.argv[1:] if arguments is None else arguments)
    except ModuleNotFoundError as error:  # of a package that only some data need
        module = (error.name or "").partition(".")[0]
        if module not in NAMES:
            raise
        _end(f"this needs {sentence_about([module])}")
    sys.exit(code)


def _end(problem: str) -> None:
    print(f"error: {problem}", file=sys.stderr)
    sys.exit(2)
