"""Every Triton kernel compiles for real cards, without a GPU. The interpreter accepts more than the compiler does."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = str(Path(__file__).parents[1] / "scripts" / "compile_kernels.py")
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="needs triton (pip install triton)")


def assert_compiled(*options: str) -> None:
    done = subprocess.run(
        [sys.executable, SCRIPT, *options],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.strip().endswith(" 0 problems")


def test_kernels_compile_for_a_card() -> None:
    assert_compiled("--cards", "90")


@pytest.mark.slow
@pytest.mark.parametrize("card", [80, 86, 89, 90])
def test_kernels_compile_in_every_precision_and_width(card: int) -> None:
    assert_compiled("--all", "--cards", str(card))
