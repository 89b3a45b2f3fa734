"""The table of mutants fits the source and the tests; `tests/scripts/mutants.py` itself runs for hours."""

from __future__ import annotations

import runpy
from pathlib import Path

from attendrop.methods import METHODS

ROOT = Path(__file__).parents[2]

_SCRIPT = runpy.run_path(str(ROOT / "tests" / "scripts" / "mutants.py"))
MUTANTS: dict[str, list[tuple[str, str, str]]] = _SCRIPT["MUTANTS"]


def test_old_text_of_each_mutant_occurs_once_in_its_file() -> None:
    stale = []
    for file, mutants in MUTANTS.items():
        source = (ROOT / "src" / "attendrop" / file).read_text(encoding="utf-8")
        stale += [(file, old) for old, new, _ in mutants if source.count(old) != 1 or old == new]
    assert stale == []


def test_tests_of_each_mutant_exist() -> None:
    files = {path.stem.removeprefix("test_"): path for path in (ROOT / "tests").rglob("test_*.py")}
    missing = []
    for entry in {entry for mutants in MUTANTS.values() for *_, tests in mutants for entry in tests.split()}:
        name, _, chosen = entry.partition(":")
        if chosen.lower() not in METHODS and chosen.lower() not in files[name].read_text(encoding="utf-8").lower():
            missing.append(entry)
    assert missing == []
