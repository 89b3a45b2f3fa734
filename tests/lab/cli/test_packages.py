"""A package that is not installed is named in one sentence, at once and before torch is imported."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from attendrop.errors import UserError
from attendrop.lab.cli import packages
from attendrop.lab.cli.app import COMMANDS
from attendrop.lab.studies.driver import run_study
from attendrop.lab.studies.executors import make_executor
from attendrop.lab.tasks.catalogue import RENAMED_KINDS
from helpers.study_workers import LIGHT, light_specs

# Python imports this module when it starts. To import torch ends the program with a traceback and another exit code.
BLOCKER = """
import os, sys
from importlib.machinery import PathFinder

class Finder:
    invalidate_caches, find_distributions = PathFinder.invalidate_caches, PathFinder.find_distributions

    def find_spec(name, path=None, target=None):
        if name in ("torch", "transformers"):
            raise AssertionError(f"{name} was imported")
        return None if name in os.environ["MISSING"].split() else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""


@pytest.fixture(scope="module")
def blocker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("blocker")
    (folder / "sitecustomize.py").write_text(BLOCKER, encoding="utf-8")
    return folder


def run_without(missing: str, blocker: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """Run the command line without some packages.

    Returns:
        What it did, and the seconds of processor time that it took: the machine may be busy.
    """
    path = os.pathsep.join([str(blocker), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONPATH": path, "MISSING": missing}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-m", "attendrop", *arguments], env=environment, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return done, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


@pytest.mark.parametrize("command", [name for name in COMMANDS if packages.NEEDED[name]])
def test_missing_package_of_a_command_is_reported_before_torch_is_imported(command: str, blocker: Path) -> None:
    missing = packages.NEEDED[command][-1]
    done, seconds = run_without(missing, blocker, command, "--flag", "value")
    extra = {"optuna": "tune", "fastapi_offline": "serve"}.get(missing, "cli")
    assert done.stderr == (
        f"error: attendrop {command} needs {packages.NAMES[missing]}, which is not installed: pip install "
        f"'attendrop[{extra}]'.\n"
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert seconds < 1


@pytest.mark.parametrize(
    ("missing", "arguments", "message"),
    [
        ("datasets scipy", ["compare"], "datasets and scipy, which are not installed: pip install 'attendrop[cli]'."),
        (
            "peft yaml",
            ["train", "--lora"],
            "pyyaml and peft, which are not installed: pip install 'attendrop[cli,p",
        ),
        ("bitsandbytes", ["train", "--quantize", "4bit"], "bitsandbytes, which is not installed: pip install bitsandb"),
        ("ray", ["compare", "--engine=ray"], "ray, which is not installed: pip install 'attendrop[ray]'."),
        ("datasets optuna", ["tune"], "datasets and optuna, which are not installed: pip install 'attendrop[tune]'."),
        ("seqeval", ["train", "--kind", "token_classification"], "seqeval, which is not installed: pip install 'att"),
        ("typer", ["train"], "the command line needs typer, which is not installed: pip install 'attendrop[cli]'."),
        ("rich", [], "the command line needs rich, which is not installed: pip install 'attendrop[cli]'."),
    ],
)
def test_sentence_names_every_package_and_what_to_type(
    missing: str, arguments: list[str], message: str, blocker: Path
) -> None:
    done, _ = run_without(missing, blocker, *arguments)
    assert message in done.stderr
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize(("command", "shown"), [("tasks", "glue/rte"), ("study", "2/2 done"), ("methods", "addrop")])
def test_commands_that_need_no_package_run_without_any(command: str, shown: str, blocker: Path, tmp_path: Path) -> None:
    """A study is driven and shown without torch, which its workers alone import."""
    words = [command]
    if command == "study":
        run_study(tmp_path, {"kind": "compare"}, light_specs(2), make_executor(workers=0, make_worker=LIGHT))
        words = [command, str(tmp_path)]
    everything = " ".join(set(packages.NAMES) - {"typer", "rich"})
    done, _ = run_without(everything, blocker, *words)
    assert done.returncode == 0, done.stderr
    assert shown in done.stdout


def test_every_command_says_what_it_needs() -> None:
    assert packages.NEEDED.keys() == COMMANDS.keys()
    assert {module for needed in packages.NEEDED.values() for module in needed} <= packages.NAMES.keys()


def test_package_that_a_finder_refuses_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(module: str) -> None:
        raise ModuleNotFoundError(module)

    monkeypatch.setattr(packages, "find_spec", refuse)
    with pytest.raises(UserError, match="attendrop curves needs scipy and matplotlib, which are not installed"):
        packages.check_packages("curves", [])


def test_packages_of_flags_are_needed_only_with_their_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packages, "_is_installed", lambda module: module not in ("ray", "peft", "seqeval"))
    packages.check_packages("compare", ["--engine", "local", "--kind", "regression"])
    packages.check_packages("predict", ["folder", "ray"])
    for arguments in (["--engine", "ray"], ["--lora"], ["--kind=tokens"], ["--kind=token_classification"]):
        with pytest.raises(UserError, match=r"attendrop train needs \w+, which is not installed"):
            packages.check_packages("train", arguments)


def test_deprecated_name_of_a_kind_needs_the_same_packages() -> None:
    for old, new in RENAMED_KINDS.items():
        assert packages._of_flags(["--kind", old]) == packages._of_flags(["--kind", new])
