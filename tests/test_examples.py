"""The examples run as they are."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.parametrize("name", ["trainer", "accelerate_loop"])
def test_an_example_learns_its_task(name: str) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"], env={**os.environ, "ACCELERATE_USE_CPU": "true"},
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    losses = [float(loss) for loss in re.findall(r"\bloss'?:? '?([\d.e-]+)", done.stdout)]
    assert len(losses) == 4
    assert losses[-1] < losses[0] / 5
