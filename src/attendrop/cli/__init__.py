"""The command line: `attendrop train | predict | methods | tasks | demo`."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line; a user's mistake is one sentence and exit code 2."""
    try:
        from .app import run
    except ModuleNotFoundError as error:
        raise SystemExit(
            f"{error.name} is missing, which the command line needs: pip install 'attendrop[cli]'."
        ) from None
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))
