"""`attendrop study` and the live view: what is done, running, failed and left, and when the study ends."""

from __future__ import annotations

import io
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attendrop.lab.cli import study as study_command
from attendrop.lab.cli import study_view
from attendrop.lab.cli.app import run
from attendrop.lab.records import RunningRun
from attendrop.lab.studies.driver import run_study
from attendrop.lab.studies.executors import make_executor
from attendrop.lab.studies.spec import RunSpec
from attendrop.lab.studies.status import Status, read_status
from helpers.cli_tools import ENVIRONMENT, attendrop
from helpers.study_workers import LIGHT, light_specs, make_record

SCORED = {"metric": "accuracy", "scores": {"validation": {"accuracy": 0.75}}}


@pytest.fixture
def printed(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    """What the commands print, on a console that is no terminal."""
    text = io.StringIO()
    for module in (study_command, study_view):
        monkeypatch.setattr(module, "console", Console(file=text, width=160))
    return text


def run_all(folder: Path, specs: list[RunSpec], **options: Any) -> None:
    executor = make_executor(workers=0, make_worker=LIGHT)
    run_study(folder, {"kind": "compare"}, specs, executor, **options)


def test_done_failed_and_broken_runs_are_shown_with_reasons(tmp_path: Path, printed: io.StringIO) -> None:
    specs = [*light_specs(3, record=SCORED), *light_specs(2, fault="diverges")]
    run_all(tmp_path, specs)
    (tmp_path / "runs" / f"{specs[0].id}.json").write_text("{")
    assert run(["study", str(tmp_path)]) == 0
    text = printed.getvalue()
    assert "2/5 done, 2 failed, 0 running, 1 not started" in text
    assert "plain seed 1 on t  accuracy 0.7500, 0 s" in text
    assert "DivergedError: the loss is not finite in step 3" in text
    assert f"{specs[0].id}.json' is not a whole record" in text.replace("\n", "")
    assert "the study is not running; rerun its command to continue (with --retry-failed" in text


def test_folder_without_study_raises_one_line_error(tmp_path: Path) -> None:
    done = attendrop("study", tmp_path)
    assert (done.code, done.out) == (2, "")
    assert (
        done.err
        == f"error: '{tmp_path}' has no study.json; it must be the folder of `attendrop compare` or `attendrop tune`.\n"
    )


def test_a_running_study_shows_its_runs_and_epochs(tmp_path: Path, printed: io.StringIO) -> None:
    """A driver in another process writes what its workers report."""
    script = str(Path(__file__).parents[2] / "scripts" / "kill_driver.py")
    words = [sys.executable, script, str(tmp_path), "--drive", "--runs", "5", "--seconds", "6"]
    driver = subprocess.Popen(words, env=ENVIRONMENT)
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if (tmp_path / "study/study.json").exists():
            status = read_status(tmp_path / "study")
            if sum(run.epoch is not None for run in status.running) == 2:
                break
        time.sleep(0.1)
    assert run(["study", str(tmp_path / "study")]) == 0
    text = printed.getvalue()

    def end() -> None:
        driver.kill()
        driver.wait()

    threading.Timer(1, end).start()
    assert run(["study", str(tmp_path / "study"), "--watch"]) == 0  # until the driver has ended
    assert "the study is not running; rerun its command to continue" in printed.getvalue()
    assert "0/5 done, 2 running, 3 not started" in text
    for seed in (0, 1):
        assert re.search(rf"plain seed {seed} on t  {socket.gethostname()}/\d+/cpu  1/2 +0.{seed}000  \d s", text)
    assert "the study is running" in text
    assert not read_status(tmp_path / "study").is_active


def test_the_progress_of_a_killed_driver_is_not_shown(tmp_path: Path) -> None:
    run_all(tmp_path, light_specs(1))
    dead = subprocess.Popen(["true"])
    dead.wait()
    running = {"id": "x", "method": "plain", "task": "t", "size": "all", "seed": 1, "since": time.time()}
    content = {"pid": dead.pid, "host": socket.gethostname(), "total": 3, "running": [running], "updated": time.time()}
    for change, is_active in (({}, False), ({"pid": os.getpid()}, True), ({"host": "elsewhere"}, True),
                              ({"host": "elsewhere", "updated": time.time() - 3600}, False)):  # fmt: skip
        (tmp_path / "progress.json").write_text(json.dumps({**content, **change}))
        status = read_status(tmp_path)
        assert status.is_active is is_active
        assert (len(status.running), status.left) == ((1, 1) if is_active else (0, 2))
    (tmp_path / "progress.json").write_text("{ha")
    assert read_status(tmp_path).total is None


def test_the_remaining_time_follows_from_the_last_runs() -> None:
    specs = light_specs(4)
    times = {"ended": "2026-01-01T00:01:40Z"}
    records = {spec.id: make_record(spec, "2026-01-01T00:00:00Z", "cpu", **times) for spec in specs}
    running = [
        RunningRun(id=str(i), method="plain", task="t", size="all", seed=i, since=time.time() - 40) for i in (0, 1)
    ]
    status = Status(Path(), "compare", 10, records, running, True)
    # 4 runs of 100 s are left, and 60 s of each that runs: 520 s of work for two workers.
    assert status.eta == pytest.approx((4 * 100 + 2 * 60) / 2, abs=1)
    assert status.left == 4
    assert Status(Path(), "compare", None, records, running, True).eta is None
    assert Status(Path(), "compare", 10, {}, running, True).eta is None


def test_the_view_prints_one_line_for_each_run_where_there_is_no_terminal(tmp_path: Path, printed: io.StringIO) -> None:
    run_all(
        tmp_path, [*light_specs(1, record=SCORED), *light_specs(1, fault="diverges")], watcher=study_view.StudyView()
    )
    assert printed.getvalue().splitlines() == [
        "1/2 done: plain seed 0 on t, accuracy 0.7500, 0 s",
        "1/2 done, 1 failed: plain seed 0 on t, failed: DivergedError: the loss is not finite in step 3",
    ]


def test_the_view_is_live_in_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = io.StringIO()
    terminal = Console(file=text, width=120, force_terminal=True, _environ={"TERM": "xterm"})
    monkeypatch.setattr(study_view, "console", terminal)
    view = study_view.StudyView()
    assert view.is_live
    executor = make_executor(workers=2, device="cpu", make_worker=LIGHT)
    run_study(tmp_path, {"kind": "compare"}, light_specs(4, seconds=1.5, record=SCORED), executor, watcher=view)
    shown = text.getvalue()
    assert "running" in shown
    assert "1/2" in shown  # an epoch
    assert "last results" in shown
    assert "not started" in shown


@pytest.mark.parametrize(("changes", "words"), [
    ({}, "'methods' is missing or empty"), ({"methods": []}, "'methods' is missing or empty"),
    ({"methods": "plain"}, "'methods' is a str, not a list"),
    ({"methods": [1]}, "entry 0 of 'methods' is 1; it must be a text"),
    ({"methods": ["plain"], "confidence": "x"}, "'confidence' is 'x'; it must be a number"),
    ({"methods": ["plain"], "confidence": 1}, "'confidence' is 1; it must be between 0 and 1"),
    ({"methods": ["plain"], "max_seeds": -1}, "'max_seeds' is -1; it must be from 1 to 500"),
    ({"methods": ["plain"], "delta": {"loss": "x"}}, "'loss' of 'delta' is 'x'; it must be a number"),
])  # fmt: skip
def test_a_report_names_the_wrong_value_of_study_json(
    tmp_path: Path, changes: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_all(tmp_path, light_specs(2, record=SCORED))
    content = json.loads((tmp_path / "study.json").read_text())
    (tmp_path / "study.json").write_text(json.dumps({**content, **changes}))
    assert run(["report", str(tmp_path)]) == 2
    assert f"study.json' is damaged ({words}); copy it again, or repeat the study." in capsys.readouterr().err
