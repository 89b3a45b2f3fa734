"""Generates the lines of the methods in the list of public names."""

from __future__ import annotations

import re
from pathlib import Path

from attendrop.methods import METHODS

STUB = Path(__file__).parent.parent / "src/attendrop/__init__.pyi"


def stub() -> str:
    """`__init__.pyi` with a line for each method."""
    lines = STUB.read_text(encoding="utf-8").splitlines(keepends=True)
    lines = [line for line in lines if not (of := re.match(r"from \.methods\.(\w+) ", line)) or of[1] in METHODS]
    for name, cls in METHODS.items():
        line = f"from .methods.{name} import {cls.__name__} as {cls.__name__}\n"
        if line not in lines:
            lines.insert(next(i for i, other in enumerate(lines) if other > line and other.startswith("from")), line)
    return "".join(lines)
