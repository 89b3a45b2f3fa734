"""Engines: runs are handed out to workers, and whatever happens to a worker concerns its run only."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from attendrop.errors import UserError
from attendrop.lab.records import RunError, StudyRecord
from attendrop.lab.studies.executors import make_executor
from attendrop.lab.studies.executors.capacity import Device, find_devices
from attendrop.lab.studies.executors.host import load_worker
from attendrop.lab.studies.spec import RunSpec
from helpers.cli_tools import ENVIRONMENT
from helpers.study_workers import BROKEN, LIGHT, light_specs, real_specs

GIB = 1 << 30


def spec(seed: int = 0, **settings: Any) -> RunSpec:
    return RunSpec(settings=settings, method="plain", task="t", seed=seed)


def results(specs: list[RunSpec], workers: int | None = 2, **options: Any) -> list[dict[str, Any]]:
    remaining = iter(specs)
    with closing(make_executor(workers=workers, device="cpu", make_worker=LIGHT)) as executor:
        return list(executor.results(lambda: next(remaining, None), **options))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_each_run_gets_its_record(workers: int) -> None:
    specs = light_specs(5)
    records = results(specs, workers)
    assert sorted(record.id for record in records) == sorted(spec.id for spec in specs)
    assert {record.status for record in records} == {"finished"}
    processes = {record.worker for record in records}
    assert len(processes) <= max(1, workers)
    if workers:
        assert f"/{os.getpid()}/" not in "".join(processes)


def test_workers_live_for_many_runs_and_no_more_start_than_there_are_runs() -> None:
    records = results(light_specs(6, seconds=0.05), workers=2)
    assert len({record.worker for record in records}) <= 2  # a slow start leaves all runs to the other worker
    executor: Any = make_executor(workers=4, device="cpu", make_worker=LIGHT)
    with closing(executor):
        remaining = iter(light_specs(2))
        assert len(list(executor.results(lambda: next(remaining, None)))) == 2
        assert len(executor.handles) <= 2


def test_only_dedicated_worker_processes_freeze_the_garbage_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    frozen: list[str] = []
    monkeypatch.setattr(gc, "freeze", lambda: frozen.append("frozen"))
    results(light_specs(1), workers=0)
    assert frozen == []  # this process has objects of others
    load_worker(LIGHT, "cpu", owns_process=True)
    assert frozen == ["frozen"]


def test_worker_death_only_affects_its_run(tmp_path: Path) -> None:
    """Each fault in one run of a study with good ones: retried once on a fresh worker, then recorded as failed."""
    faults = ["dies", "dies once", "segfault", "exits", "memory once", "memory", "diverges"]
    bad = [spec(seed=number, fault=fault, marks=str(tmp_path)) for number, fault in enumerate(faults)]
    good = light_specs(3, marks=str(tmp_path))
    records = {record.id: record for record in results([*bad[:4], *good, *bad[4:]])}
    assert all(records[spec.id].status == "finished" for spec in good)
    by_fault = dict(zip(faults, (records[spec.id] for spec in bad), strict=True))
    attempts = Counter(path.name.partition("-")[0] for path in tmp_path.iterdir())
    assert [attempts[spec.id] for spec in bad] == [2, 2, 2, 2, 2, 2, 1]
    assert by_fault["dies once"].status == by_fault["memory once"].status == "finished"
    assert "SIGKILL" in by_fault["dies once"].lost_workers[0]
    messages = {name: record.error.message for name, record in by_fault.items() if record.status == "failed"}
    assert "killed by SIGKILL" in messages["dies"]
    assert "killed by SIGSEGV" in messages["segfault"]
    assert "ended with code 7: the driver of the GPU is broken" in messages["exits"]
    assert by_fault["exits"].error.type == "WorkerLost"
    assert by_fault["memory"].error.type == "MemoryError"
    assert messages["diverges"] == "the loss is not finite in step 3"
    assert by_fault["diverges"].error.type == "DivergedError"


def test_hanging_worker_is_killed_and_others_continue(tmp_path: Path) -> None:
    """A run that shows signs of progress may take longer than the patience; one that shows none is ended, once."""
    hangs, slow = spec(seed=8, fault="hangs", marks=str(tmp_path)), spec(seed=9, signs=7)
    remaining = iter([hangs, slow, *light_specs(2)])
    with closing(make_executor(workers=2, device="cpu", make_worker=LIGHT, patience=2.5)) as executor:
        records = {
            record.id: record for record in executor.results(lambda: next(remaining, None), lambda report: False)
        }
    message = "the worker showed no progress for 0.0417 minutes and was killed"
    assert records.pop(hangs.id).error == RunError("WorkerHung", message)
    assert len(list(tmp_path.iterdir())) == 1
    assert {record.status for record in records.values()} == {"finished"}
    assert len(records) == 3


def test_worker_start_failure_raises_one_line_error() -> None:
    with closing(make_executor(workers=2, device="cpu", make_worker=BROKEN)) as executor:
        remaining = iter(light_specs(3))
        with pytest.raises(UserError, match="no worker could be started: .*RuntimeError: no CUDA here"):
            list(executor.results(lambda: next(remaining, None)))


def test_a_run_is_stopped_by_its_progress() -> None:
    reports: list[dict[str, Any]] = []

    def stop(report: dict[str, Any]) -> bool:
        reports.append(report)
        return report["score"] < 0.15

    records = {record.seed: record.status for record in results(light_specs(3), on_progress=stop)}
    assert records == {0: "stopped", 1: "stopped", 2: "finished"}
    assert Counter(round(report["score"] * 10) for report in reports) == {0: 1, 1: 1, 2: 2}
    assert all(report["worker"] for report in reports)


def test_next_run_is_asked_for_again_after_each_result() -> None:
    """A study that decides by results: nothing at present, and more after the next result."""
    finished: list[int] = []
    asked: list[int] = []

    def next_spec() -> RunSpec | None:
        if len(asked) <= len(finished) and len(asked) < 3:
            asked.append(len(asked))
            return spec(seed=asked[-1])
        return None

    with closing(make_executor(workers=2, device="cpu", make_worker=LIGHT)) as executor:
        for record in executor.results(next_spec):
            finished.append(record.seed)
    assert finished == [0, 1, 2]


def test_closed_results_end_their_workers() -> None:
    executor: Any = make_executor(workers=2, device="cpu", make_worker=LIGHT)
    with closing(executor):
        remaining = iter([*light_specs(1), *light_specs(2, seconds=60)[1:]])
        for _ in (results := executor.results(lambda: next(remaining, None))):
            break
        results.close()
        assert all(worker.job is None for worker in executor.handles)
        again = iter(light_specs(2))
        assert len(list(executor.results(lambda: next(again, None)))) == 2


def children_of(pid: int) -> list[int]:
    children = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == pid and fields[0] != "Z":
            children.append(int(path.parent.name))
    return children


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="reads /proc")
def test_workers_end_with_their_driver(tmp_path: Path) -> None:
    script = str(Path(__file__).parents[2] / "scripts" / "kill_driver.py")
    words = [sys.executable, script, str(tmp_path), "--drive", "--runs", "2", "--seconds", "60"]
    driver = subprocess.Popen(words, env=ENVIRONMENT)
    wait_until(lambda: len(list(tmp_path.glob("marks/*"))) == 2)  # both train
    workers = children_of(driver.pid)
    assert len(workers) == 2
    driver.kill()
    driver.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def wait_until(happened: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.05)


# ---- how many fit ----------------------------------------------------------------------------------------------


def test_threads_of_all_workers_together_are_the_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr("attendrop.lab.studies.executors.capacity.cpu_count", lambda: 8)
    devices, threads = find_devices(2, "cpu")
    assert (devices[0].limit, threads) == (2, 4)
    assert find_devices(20, "cpu")[1] == 1
    monkeypatch.setenv("OMP_NUM_THREADS", "4")
    devices, threads = find_devices(None, "cpu")
    assert (devices[0].limit, threads) == (2, 4)
    assert results(light_specs(1))[0].notes == ["threads: 4"]


def test_gpus_are_filled_by_the_memory_that_a_run_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("attendrop.lab.studies.executors.capacity.cpu_count", lambda: 16)
    monkeypatch.setattr("attendrop.lab.studies.executors.capacity._visible_gpus", lambda: ["2", "GPU-b"])
    devices, _ = find_devices(None, None)
    assert [(device.visible, device.limit, device.most) for device in devices] == [("2", 1, 8), ("GPU-b", 1, 7)]
    gpu = devices[0]
    # 80 GiB, of which another program uses 10: 90 % of 80 less 10 is 62, and a worker needs 12 + 1.
    gpu.learn({"total": 80 * GIB, "free": 60 * GIB, "reserved": 9 * GIB, "peak": 12 * GIB})
    assert gpu.limit == 62 // 13
    gpu.learn({"total": 80 * GIB, "free": 20 * GIB, "reserved": 9 * GIB, "peak": 30 * GIB})  # a method that needs more
    assert gpu.limit == 2
    gpu.learn({"total": 80 * GIB, "free": 70 * GIB, "reserved": 1 * GIB, "peak": 2 * GIB})
    assert gpu.limit == 2
    gpu.workers = 1
    gpu.ran_out()
    gpu.learn({"total": 80 * GIB, "free": 70 * GIB, "reserved": 1 * GIB, "peak": 2 * GIB})
    assert gpu.limit == 1
    assert [device.limit for device in find_devices(5, None)[0]] == [3, 2]
    fixed = Device("cuda", "0", 3, 3)
    fixed.learn({"total": 80 * GIB, "free": 1 * GIB, "reserved": 60 * GIB, "peak": 60 * GIB})
    assert fixed.limit == 3  # the user wants three


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "slurm"}, "engine is 'slurm'; it must be one of 'local', 'ray'"),
        ({"workers": -1}, "workers is -1; it must be a whole number of at least 0"),
        ({"address": "a:1"}, "address is 'a:1', which only --engine ray uses"),
        ({"gpus_per_worker": 0.5}, "gpus_per_worker is 0.5, which only --engine ray uses"),
        ({"patience": -1}, "patience is -1; it must be a number above 0"),
        ({"device": "tpu"}, "device is 'tpu'; it must be one of None, 'cpu', 'cuda'"),
        ({"name": "ray", "workers": 0}, "workers is 0, .* with --engine ray it must be"),
        ({"name": "ray", "gpus_per_worker": -0.5}, "gpus_per_worker is -0.5; it must be a number from 0 to 1"),
    ],
)
def test_invalid_executor_options_are_refused(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        make_executor(**options)


# ---- real training ---------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_killed_worker_changes_no_score(tmp_path: Path) -> None:
    """The worker of the package, in this process and in another, which is killed in the middle of a run."""
    specs = real_specs(tmp_path, seeds=1)
    killed: list[str] = []

    def kill_one(report: dict[str, Any]) -> bool:
        if not killed:
            killed.append(report["id"])
            os.kill(int(report["worker"].split("/")[1]), signal.SIGKILL)
        return False

    records_of: dict[int, dict[str, StudyRecord]] = {}
    for workers, on_progress in ((0, None), (1, kill_one)):
        remaining = iter(specs)
        with closing(make_executor(workers=workers, device="cpu")) as executor:
            results = executor.results(lambda remaining=remaining: next(remaining, None), on_progress)  # type: ignore[misc]
            records_of[workers] = {record.id: record for record in results}
    assert records_of[0].keys() == records_of[1].keys() == {spec.id for spec in specs}
    assert [record.id for record in records_of[1].values() if record.lost_workers] == killed
    assert len({record.scores["validation"]["loss"] for record in records_of[0].values()}) == len(specs)
    for name, record in records_of[0].items():
        assert record.status == "finished"
        assert all(
            getattr(record, key) == getattr(records_of[1][name], key)
            for key in ("scores", "curves", "predictions", "data")
        )


@pytest.mark.gpu
def test_several_workers_share_a_gpu(tmp_path: Path) -> None:
    """The first run is alone; its memory decides how many workers there are for the others."""
    remaining = iter(real_specs(tmp_path, seeds=8))
    executor: Any = make_executor()
    with closing(executor):
        records = list(executor.results(lambda: next(remaining, None)))
    assert {record.status for record in records} == {"finished"}
    assert executor.devices[0].footprint > 0
    assert 1 < len({record.worker for record in records}) <= executor.devices[0].limit
