"""The driver of a study: whatever stops it, started again it goes on, and no record is lost, repeated or misread."""

from __future__ import annotations

import json
import os
import resource
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
from attendrop.lab.studies.driver import Study, Watcher, run_study
from attendrop.lab.studies.executors import make_executor
from attendrop.lab.studies.records import failed_record, read_record, read_records, record_path, write_record
from attendrop.lab.studies.spec import RunSpec
from helpers.cli_tools import ENVIRONMENT
from helpers.study_workers import LIGHT, light_specs, make_record
from scripts.kill_driver import CONFIGURATION, kill_at_random_moments

COMPARE = {"kind": "compare", "seeds": 3, "settings": {"learning_rate": 2e-5}}


def study(folder: Path, specs: list[RunSpec], configuration: dict[str, Any] | None = None, **options: Any) -> Any:
    executor = make_executor(workers=options.pop("workers", 0), device="cpu", make_worker=LIGHT)
    return run_study(folder, configuration or COMPARE, specs, executor, **options)


class Notes(Watcher):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.ended_ids: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)

    def ended(self, record: StudyRecord, status: Any) -> None:
        self.ended_ids.append(record.id)


def attempts(marks: Path) -> Counter[str]:
    return Counter(path.name.partition("-")[0] for path in marks.iterdir())


def record(seed: int = 0, **more: Any) -> StudyRecord:
    spec = RunSpec(settings={}, method="plain", task="t", seed=seed, size=more.pop("size", "all"))
    return make_record(spec, "2026-01-01T00:00:00Z", "cpu", **more)


# ---- records ---------------------------------------------------------------------------------------------------


def test_a_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    written = record(scores={"validation": {"accuracy": 0.1 + 0.2}})
    read = read_record(write_record(tmp_path, written))
    assert read == written
    assert read_records(tmp_path) == {written.id: read}
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [f"{written.id}.json"]


def half(text: str) -> str:
    return text[: len(text) // 2]


BROKEN: dict[str, tuple[Callable[[str], str], str]] = {
    "half": (half, "it cannot be read, JSONDecodeError"),
    "empty": (lambda text: "", "it cannot be read"),
    "list": (lambda text: "[1]", "it holds a list"),
    "changed": (lambda text: text.replace("0.5", "0.9"), "its content does not match its checksum"),
    "later schema": (lambda text: json.dumps({**_plain(text), "schema": 3}), "its schema is 3, and this version"),
    "unknown schema": (lambda text: json.dumps({**_plain(text), "schema": 1}), "its format is None, not 1"),
    "no scores": (lambda text: json.dumps({**_plain(text), "scores": None}), "'scores' is missing"),
    "other scores": (lambda text: json.dumps({**_plain(text), "scores": {"validation": {"f1": "high"}}}), "'f1' of"),
    "no method": (lambda text: json.dumps({**_plain(text), "method": None}), "'method' is missing"),
    "no status": (lambda text: json.dumps({**_plain(text), "status": "done"}), "its status is 'done'"),
    "other run": (lambda text: json.dumps({**_plain(text), "id": "abc"}), "its id is 'abc'"),
}


def _plain(text: str) -> dict[str, Any]:
    content = json.loads(text)
    del content["checksum"]
    return content


@pytest.mark.parametrize("damage", BROKEN)
def test_broken_record_is_reported_and_repeated_or_refused(damage: str, tmp_path: Path) -> None:
    specs = light_specs(2)
    study(tmp_path, specs)
    path = record_path(tmp_path, specs[0].id)
    change, reason = BROKEN[damage]
    path.write_text(change(path.read_text()))
    with pytest.raises(UserError, match=f"{path.name}' is not a whole record \\({reason}.*delete it"):
        read_records(tmp_path)
    notes = Notes()
    records = study(tmp_path, specs, watcher=notes)
    assert notes.ended_ids == [specs[0].id]
    assert len(notes.notes) == 1
    assert path.name in notes.notes[0]
    assert records == read_records(tmp_path) | records
    assert len(read_records(tmp_path)) == 2


def test_a_record_without_its_fields_is_never_written(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'scores' is missing"):
        write_record(tmp_path, record(scores={}))
    assert not (tmp_path / "runs").exists()


def test_a_failed_record_has_no_secret() -> None:
    spec = RunSpec(settings={"hub_token": "hf_x", "seed": 1}, method="plain", task="t", seed=1)
    failed = failed_record(spec, "ValueError", "a\nb", started="", worker="w")
    assert "hf_x" not in json.dumps(failed.to_json())
    assert failed.error == RunError("ValueError", "a b")


FOREIGN = {
    "version of torch": {"versions": {"torch": "2"}},
    "model": {"model": {"name": "large", "fingerprint": "m"}},
    "fingerprint of the model for t": {"model": {"name": "tiny", "fingerprint": "other"}},
    "fingerprint of the validation data of t": {"data": {"train": "t", "validation": "other"}},
}


@pytest.mark.parametrize("fact", FOREIGN)
def test_foreign_records_are_refused(fact: str, tmp_path: Path) -> None:
    write_record(tmp_path, record(0))
    write_record(tmp_path, record(1, **FOREIGN[fact]))
    with pytest.raises(UserError, match=f"has another {fact} than .* instead of"):
        read_records(tmp_path)


def test_a_new_record_that_does_not_fit_ends_the_study_and_is_not_written(tmp_path: Path) -> None:
    good = light_specs(1)
    study(tmp_path, good)
    other = light_specs(1, record={"data": {"train": "changed", "validation": "v"}})
    with pytest.raises(UserError, match="has another fingerprint of the train data of t .*'changed' instead of 't'"):
        study(tmp_path, [*good, *other])
    assert list(read_records(tmp_path)) == [good[0].id]


def test_other_amounts_of_data_may_have_other_training_data(tmp_path: Path) -> None:
    write_record(tmp_path, record(0))
    write_record(tmp_path, record(0, size="shots=4", data={"train": "few", "validation": "v"}))
    write_record(tmp_path, record(1, data={"train": "resampled", "validation": "v"}))
    assert len(read_records(tmp_path)) == 3
    write_record(tmp_path, record(2, data={"train": "t2", "validation": "v"}, resample=False))
    write_record(tmp_path, record(3, data={"train": "t3", "validation": "v"}, resample=False))
    with pytest.raises(UserError, match="fingerprint of the train data"):
        read_records(tmp_path)


# ---- the driver ------------------------------------------------------------------------------------------------


def test_finished_runs_are_never_repeated(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    specs = light_specs(4, marks=str(marks))
    study(tmp_path / "s", specs[:2])
    assert len(study(tmp_path / "s", specs, workers=2)) == 4
    assert attempts(marks) == {spec.id: 1 for spec in specs}
    assert not list((tmp_path / "s").glob("*reserved"))
    # All records are delivered, of runs that were done before too, and once for each time that they are asked for.
    with Study(tmp_path / "s", COMPARE) as again:
        remaining = iter([*specs, specs[0]])
        executor = make_executor(workers=0, make_worker=LIGHT)
        seeds = [record.seed for record in again.run(lambda: next(remaining, None), executor)]
    assert seeds == [0, 1, 2, 3, 0]


def test_run_requested_twice_at_once_runs_once(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    spec = light_specs(1, marks=str(marks), seconds=0.5)[0]
    with Study(tmp_path / "s", COMPARE) as one:
        remaining = iter([spec, spec])
        executor = make_executor(workers=2, device="cpu", make_worker=LIGHT)
        ids = [record.id for record in one.run(lambda: next(remaining, None), executor)]
        executor.close()
    assert ids == [spec.id, spec.id]
    assert attempts(marks) == {spec.id: 1}


def test_failed_runs_are_only_retried_on_request(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    specs = [*light_specs(1), *light_specs(1, fault="diverges", marks=str(marks))]
    for retry_failed, count in ((False, 1), (False, 1), (True, 2)):
        records = study(tmp_path / "s", specs, retry_failed=retry_failed)
        assert records[specs[1].id].has_failed
        assert attempts(marks)[specs[1].id] == count


def test_mistake_shared_by_all_runs_ends_the_study(tmp_path: Path) -> None:
    wrong = light_specs(3, fault="user")
    with pytest.raises(UserError, match="^task is 'nope'; it must be one of 'a', 'b'.$"):
        study(tmp_path / "new/study", wrong)
    assert not (tmp_path / "new").exists()  # so that the user can correct the input
    records = study(tmp_path, [*light_specs(1), *wrong[1:]])  # only some runs are wrong
    assert Counter(record.status for record in records.values()) == {"finished": 1, "failed": 2}


def test_a_mistake_in_one_method_is_detected_before_the_first_run(tmp_path: Path) -> None:
    good = light_specs(1)[0]
    bad = RunSpec(settings={"fault": "user"}, method="other", task="t", seed=0)
    with closing(make_executor(workers=0, make_worker=LIGHT)) as executor:
        with pytest.raises(UserError, match="task is 'nope'"), Study(tmp_path / "study", {}) as made:
            made.check([good, bad], executor)
        assert not (tmp_path / "study").exists()
        with Study(tmp_path / "study", {}) as made:
            works = RunSpec(settings={}, method="other", task="t", seed=0)
            assert len(made.check([good, bad, works], executor)) == 3  # one setting of the method works
            remaining = iter([good])
            list(made.run(lambda: next(remaining, None), executor))
            assert made.check([good], executor) == []  # it has a result


def test_another_configuration_is_refused_unless_it_has_grown(tmp_path: Path) -> None:
    study(tmp_path, light_specs(1), {**COMPARE, "settings": {"learning_rate": 2e-5, "hub_token": "hf_x"}})
    assert "hf_x" not in (tmp_path / "study.json").read_text()
    study(tmp_path, light_specs(1), {**COMPARE, "seeds": 4, "command": "again"})
    assert json.loads((tmp_path / "study.json").read_text())["seeds"] == 4
    with pytest.raises(UserError, match="seeds is 1, and 4 in the study that"):
        study(tmp_path, light_specs(1), {**COMPARE, "seeds": 1})
    other = {**COMPARE, "seeds": 4, "settings": {"learning_rate": 1e-5}}
    with pytest.raises(UserError, match="settings.learning_rate is 1e-05, and 2e-05 in the study"):
        study(tmp_path, light_specs(1), other)


def test_two_drivers_are_refused(tmp_path: Path) -> None:
    with Study(tmp_path, COMPARE), pytest.raises(UserError, match="which another run uses"):
        study(tmp_path, light_specs(1))


@pytest.mark.parametrize("workers", [0, 1])
def test_full_disk_raises_one_line_error_and_loses_no_record(workers: int, tmp_path: Path) -> None:
    """A real file system of two megabytes: it fills up while a run trains, and the record of that run is still kept."""
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2M", "tmpfs", str(disk)], capture_output=True).returncode:
        pytest.skip("this user may not mount a file system")
    try:
        specs = light_specs(3)

        class Fill(Notes):
            def ended(self, record: StudyRecord, status: Any) -> None:
                with (disk / "film.mp4").open("wb") as file:
                    while True:
                        file.write(b"x" * 4096)
                        file.flush()

        class Filled(Fill):
            def ended(self, record: StudyRecord, status: Any) -> None:
                if not (disk / "film.mp4").exists():
                    with pytest.raises(OSError, match="No space"):
                        super().ended(record, status)

        with pytest.raises(UserError, match="the disk is full, .* stops with 2 runs recorded; free some space"):
            study(disk / "s", specs, workers=workers, watcher=Filled())
        assert len(read_records(disk / "s")) == 2
        with pytest.raises(UserError, match="the disk is full"):
            study(disk / "s", specs)
        (disk / "film.mp4").unlink()
        assert len(study(disk / "s", specs)) == 3
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_a_limit_of_file_sizes_is_reported_like_a_full_disk(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(UserError, match="the disk is full"):
            study(tmp_path, light_specs(1))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert len(study(tmp_path, light_specs(1))) == 1


def test_a_disk_that_is_full_for_a_worker_ends_the_study(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the disk is full, .* stops with 1 runs recorded"):
        study(tmp_path, [*light_specs(1), *light_specs(3, fault="disk")])
    assert len(read_records(tmp_path)) == 1


def test_killed_driver_resumes(tmp_path: Path) -> None:
    """`tests/scripts/kill_driver.py` does the same at 20 moments."""
    counts = kill_at_random_moments(tmp_path, runs=12, kills=2, seconds=0.3, workers=2)
    assert counts == {"killed": 2, "records": 12, "repeated": 0, "lost": 0, "broken": 0}


def test_ctrl_c_ends_the_driver_and_its_workers_cleanly(tmp_path: Path) -> None:
    script = str(Path(__file__).parents[2] / "scripts" / "kill_driver.py")
    words = [sys.executable, script, str(tmp_path), "--drive", "--runs", "4", "--seconds", "60"]
    # A shell starts background jobs with SIGINT ignored, which child processes inherit.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    driver = subprocess.Popen(words, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "marks").glob("*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(driver.pid, signal.SIGINT)
    _, errors = driver.communicate(timeout=30)
    assert driver.returncode == 130, errors
    assert "Traceback" not in errors
    assert len(study(tmp_path / "study", [], CONFIGURATION)) == 0  # the lock is free
