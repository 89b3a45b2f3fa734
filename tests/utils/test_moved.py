"""Imports of modules that have moved fail with an error that names the new path."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

from attendrop.utils.moved import MOVED, new_path


@pytest.mark.parametrize("old", MOVED)
def test_import_of_an_old_path_names_a_module_that_exists(old: str) -> None:
    with pytest.raises(ImportError) as error:
        importlib.import_module(f"attendrop.{old}")
    new = new_path(f"attendrop.{old}")
    assert str(error.value) == f"attendrop.{old} has moved: import {new} instead."
    assert importlib.import_module(str(new))


def test_new_paths_have_not_moved_again() -> None:
    assert not [new for old in MOVED if new_path(new := str(new_path(f"attendrop.{old}")))]


@pytest.mark.parametrize(
    ("statement", "old", "new"),
    [
        ("import attendrop.experiments", "experiments", "lab.runs"),
        ("import attendrop.experiments.judging", "experiments.judging", "lab.evaluation.evaluator"),
        ("from attendrop.study.engines.places import Places", "study.engines.places", "lab.studies.executors.capacity"),
        ("from attendrop.study.engines import Engine", "study.engines", "lab.studies.executors"),
        ("from attendrop.cli.demo import downloads", "cli.demo", "lab.cli.demo"),
        ("import attendrop.trainer.manifest", "trainer.manifest", "utils.manifest"),
    ],
)
def test_import_statement_is_answered_for_its_whole_path(statement: str, old: str, new: str) -> None:
    with pytest.raises(ImportError, match=f"^attendrop.{old} has moved: import attendrop.{new} instead.$"):
        exec(statement)


def test_other_missing_modules_are_reported_by_python() -> None:
    with pytest.raises(ModuleNotFoundError, match="^No module named 'attendrop.nothing'$"):
        importlib.import_module("attendrop.nothing")


def test_traceback_of_an_old_import_ends_with_the_sentence() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import attendrop.report.page.check"], capture_output=True, text=True, check=False
    )
    last = done.stderr.splitlines()[-1]
    assert last == "ImportError: attendrop.report.page.check has moved: import attendrop.lab.report.analysis instead."
