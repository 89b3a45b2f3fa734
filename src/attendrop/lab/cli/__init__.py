"""The command line: the program `attendrop`, with one module for each command."""

from __future__ import annotations

import sys
from collections.abc import Sequence

# The modules that `pip install 'attendrop[cli]'` adds to the library.
_EXTRA_MODULES = frozenset(
    ("typer", "rich", "yaml", "datasets", "pandas", "pyarrow", "sklearn", "scipy", "seqeval", "sacrebleu", "matplotlib")
)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits. A mistake of the user is reported in one sentence, with exit code 2.

    Args:
        arguments: The words that follow `attendrop`. By default, those that this process was started with.
    """
    from .signals import exits_on_interrupt

    try:
        with exits_on_interrupt():
            from .app import run

        code = run(sys.argv[1:] if arguments is None else arguments)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in _EXTRA_MODULES:
            raise
        raise SystemExit(
            f"{error.name} is missing, which the command line needs: pip install 'attendrop[cli]'."
        ) from None
    sys.exit(code)
