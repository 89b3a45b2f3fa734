"""Damaged values in the JSON files of a study: one sentence that names the file and the field, never another error."""

from __future__ import annotations

import io
import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attendrop.errors import UserError
from attendrop.lab.cli.study_view import study_view
from attendrop.lab.records import StudyConfiguration
from attendrop.lab.report.analysis import checked_analysis
from attendrop.lab.studies.analysis import analyse
from attendrop.lab.studies.compare import compare
from attendrop.lab.studies.configuration import write_configuration
from attendrop.lab.studies.design import make_design
from attendrop.lab.studies.plan import make_plan
from attendrop.lab.studies.status import read_status
from attendrop.lab.studies.tune import tune
from attendrop.lab.studies.tune_design import make_tune_config
from helpers.studies import MadeUpExecutor, noisy

ABSENT = object()
ODD: tuple[Any, ...] = (ABSENT, None, [], {}, "x", "", -1, 2.5, 1e300, float("nan"), True, [None], {"a": None}, [[1]],
                        10**400)  # fmt: skip
SHARED: dict[str, Any] = {"model": "m", "task": "glue/rte"}


@pytest.fixture(scope="module")
def studies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A comparison with a plan, and a search over a grid: real files of runs with made-up scores."""
    folder = tmp_path_factory.mktemp("studies")
    design = make_design({"model": "m"}, ["plain", "rdrop"], tasks=("glue/rte",))
    plan = make_plan(design, 3, None, {})
    compare(design, folder / "compare", MadeUpExecutor(noisy({"rdrop": 0.02})), seeds=3, plan=plan)
    space = ["addrop.p=0.2,0.4", "addrop.q=0.3,0.5", "learning_rate=1e-5"]
    search = make_tune_config({**SHARED, "method": ["addrop"]}, sampler="grid", spaces=space, repeats=1, final_seeds=1)
    tune(search, folder / "tune", MadeUpExecutor(noisy({"addrop": 0.02})))
    running = {"id": "a", "method": "plain", "task": "t", "size": "all", "seed": 1, "since": time.time(),
               "worker": "w", "epoch": 0.5, "epochs": 3.0, "score": 0.7}  # fmt: skip
    progress = {"pid": os.getpid(), "host": socket.gethostname(), "total": 9, "running": [running], "updated": 1.0}
    for name in ("compare", "tune"):
        (folder / name / "progress.json").write_text(json.dumps(progress))
    return {name: folder / name for name in ("compare", "tune")}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The place of each value in nested lists and objects, of a list that of the first two."""
    if path:
        yield path
    keys = list(value) if isinstance(value, dict) else range(min(2, len(value))) if isinstance(value, list) else ()
    for key in keys:
        yield from places(value[key], (*path, key))


def changed(content: str, path: tuple[Any, ...], value: Any) -> str:
    whole = json.loads(content)
    holder = whole
    for key in path[:-1]:
        holder = holder[key]
    if value is ABSENT:
        del holder[path[-1]]
    else:
        holder[path[-1]] = value
    return json.dumps(whole)


def report(folder: Path) -> None:
    checked_analysis(analyse(folder))


def show(folder: Path) -> None:
    status = read_status(folder)
    Console(file=io.StringIO()).print(study_view(status))


def resume(folder: Path) -> None:
    whole = StudyConfiguration.from_json(json.loads((folder / "whole.json").read_text()))
    write_configuration(folder, whole, may_grow=("seeds", "delta", "methods"))


FILES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "the report of a comparison": ("compare/study.json", report),
    "the view of a comparison": ("compare/study.json", show),
    "the report of a search": ("tune/tuning.json", report),
    "the view of a search": ("tune/study.json", show),
    "the view of its progress": ("tune/progress.json", show),
    "a resumed comparison": ("compare/study.json", resume),
}


@pytest.mark.parametrize("case", FILES)
@pytest.mark.parametrize("count", [30, pytest.param(None, marks=pytest.mark.slow)])
def test_any_damaged_value_is_one_sentence_that_names_the_file(
    case: str, count: int | None, studies: dict[str, Path]
) -> None:
    name, use = FILES[case]
    path = studies["compare"].parent / name
    whole, wrong = path.read_text(), []
    (path.parent / "whole.json").write_text(whole)
    cases = [(place, value) for place in places(json.loads(whole)) for value in ODD]
    try:
        for place, value in cases if count is None else random.Random(case).sample(cases, count):
            path.write_text(changed(whole, place, value))
            try:
                use(path.parent)
            except UserError as error:
                sentence = str(error)
                if "\n" in sentence or str(path.parent) not in sentence or str(place[0]) not in sentence:
                    wrong.append(f"{place} {value!r}: {error}"[:300])
            except Exception as error:
                wrong.append(f"{place} {value!r}: {error!r}"[:300])
    finally:
        path.write_text(whole)
    assert not wrong, "\n".join(wrong)


def test_a_study_in_which_only_a_method_has_ended_has_a_report(tmp_path: Path) -> None:
    design = make_design({"model": "m"}, ["plain", "rdrop"], tasks=("glue/rte",))
    compare(design, tmp_path, MadeUpExecutor(noisy({"rdrop": 0.02})), seeds=1)
    for path in (tmp_path / "runs").iterdir():
        if json.loads(path.read_text())["method"] == "plain":
            path.unlink()
    analysis = checked_analysis(analyse(tmp_path))
    assert [(cell.method, cell.outcomes["score"].comparison.verdict) for cell in analysis.cells] == [
        ("rdrop", "too few seeds")
    ]
