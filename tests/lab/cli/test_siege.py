"""The siege of the command line, in the long suite: nothing silently wrong, no traceback, no hang."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.forks import Fork
from helpers.siege import CLASSES

# Damaged folders and nonsense are refused, and killed commands fail; `resumes` compares what their repetition gives.
ALWAYS_REFUSED = ("swaps", "damage", "flags", "resumes")
SIEGE = str(Path(__file__).parents[2] / "scripts" / "siege.py")


@pytest.mark.slow
@pytest.mark.xdist_group("siege")
@pytest.mark.parametrize("name", CLASSES)
def test_a_class_of_the_siege_holds(name: str, tmp_path: Path) -> None:
    done = Fork([SIEGE, tmp_path, "--only", name, "--seconds", "60"]).wait(600)
    result = json.loads(done.out.splitlines()[-1])
    assert result["bad"] == []
    assert done.code == 0
    counts = result["counts"][name]
    assert counts["done"] + counts["refused"] >= 5
    assert counts["done"] >= 1 or name in ALWAYS_REFUSED  # or else nothing would be tested
