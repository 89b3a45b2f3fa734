"""The command line: the program `attendrop`, with one module for each command."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit. A mistake of the user is reported in one sentence, with exit code 2.

    Args:
        arguments: The words that follow `attendrop`. By default, those that this process was started with.
    """
    from .packages import missing_program
    from .signals import exits_on_interrupt

    if problem := missing_program():
        _end(problem)
    with exits_on_interrupt():
        from .app import run

    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def _end(problem: str) -> None:
    print(f"error: {problem}", file=sys.stderr)
    sys.exit(2)
