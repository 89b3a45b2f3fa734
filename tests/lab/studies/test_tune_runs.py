"""`attendrop tune` with real runs of a tiny model: splits, the command line, a kill in the middle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from attendrop.lab.cli.app import run
from attendrop.lab.report.page.words import PAPER_LABEL
from attendrop.lab.runs import make_config
from attendrop.lab.runs.data import load_data
from attendrop.lab.studies.analysis import analyse
from attendrop.lab.studies.splits import split_for
from attendrop.lab.studies.trials import open_storage
from attendrop.lab.studies.tune import Tuner, tune
from attendrop.lab.studies.tune_design import make_tune_config
from helpers.cli_tools import ENVIRONMENT, save_encoder, sentences, write_csv
from helpers.executors import WorkerExecutor

# One process runs all of these tests, so that the model is created once.
pytestmark = pytest.mark.xdist_group("tune")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("tune")
    rows = sentences(90, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    write_csv(folder / "train.csv", rows[:60])
    write_csv(folder / "dev.csv", rows[60:])
    return {
        "model": str(folder / "model"), "train_file": str(folder / "train.csv"),
        "validation_file": str(folder / "dev.csv"), "num_train_epochs": 2, "use_cpu": True,
    }  # fmt: skip


def arguments(settings: dict[str, Any], folder: Path, *more: str) -> list[str]:
    words = ["tune", "--output-dir", str(folder), "--workers", "0"]
    for name, value in settings.items():
        words += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return [*words, *more]


def test_splits_are_stratified_and_never_contain_the_development_set(settings: dict[str, Any]) -> None:
    config = make_tune_config(settings, trials=1, repeats=3)
    data = load_data(make_config(settings), 42)
    assert data.train is not None
    assert data.validation is not None
    everything = sorted(zip(data.train["text"], data.train["label"], strict=True))
    scored_on = []
    for spec in config.trial_specs("plain", {"learning_rate": 1e-4}, 0):
        parts = split_for(spec, data)
        assert parts.train is not None
        assert parts.validation is not None
        train, held_out = (
            list(zip(part["text"], part["label"], strict=True)) for part in (parts.train, parts.validation)
        )
        assert sorted(train + held_out) == everything  # nothing else is trained on or scored
        assert Counter(label for _, label in held_out) == {0: 6, 1: 6}
        assert parts.test is None
        scored_on.append(tuple(held_out))
    assert len(set(scored_on)) == 3
    (final,) = make_tune_config(settings, trials=1, final_seeds=1).final_specs("plain", {"learning_rate": 1e-4})
    dev = split_for(final, data).validation
    assert dev is not None
    assert dev["text"][:] == data.validation["text"][:]


@pytest.mark.slow
def test_records_show_that_the_development_set_was_used_last(settings: dict[str, Any], tmp_path: Path) -> None:
    config = make_tune_config({**settings, "method": ["rdrop"]}, trials=2, repeats=2, final_seeds=1)
    tuner = tune(config, tmp_path, WorkerExecutor())
    records = [json.loads(path.read_text()) for path in (tmp_path / "runs").iterdir()]
    finals = [record for record in records if record["fold"] is None]
    (dev,) = {record["data"]["validation"] for record in finals}
    trials = [record for record in records if record["fold"] is not None]
    assert len(trials) == 8
    assert dev not in {record["data"]["validation"] for record in trials}
    assert {record["examples"]["validation"] for record in trials} == {12}
    assert {record["examples"]["validation"] for record in finals} == {30}
    result = json.loads((tmp_path / "tuning.json").read_text())
    chosen = result["chosen"]["rdrop"]
    final = next(record for record in finals if record["method"] == "rdrop")
    assert final["settings"]["method"] == chosen["settings"]["method"]
    assert result["dev"]["rdrop"]["chosen"]["values"] == {"1042": final["scores"]["validation"]["accuracy"]}
    # Everything that is stored with the best trial repeats it.
    trial = next(t for t in result["trials"] if (t["method"], t["number"]) == ("rdrop", chosen["trial"]))
    assert trial["versions"]["torch"]
    specs = config.trial_specs("rdrop", trial["point"], trial["number"])
    assert [spec.id for spec in specs] == trial["runs"]
    again = [record for _, record in zip(specs, WorkerExecutor().results(iter([*specs, None]).__next__), strict=True)]
    assert [record["scores"]["validation"]["accuracy"] for record in again] == trial["scores"]
    assert tuner.settings


@pytest.mark.slow
def test_driver_that_was_killed_is_started_again_and_ends(settings: dict[str, Any], tmp_path: Path) -> None:
    words = arguments(settings, tmp_path, "--method", "rdrop", "--trials", "3", "--repeats", "2", "--final-seeds", "1")
    runs = tmp_path / "runs"
    first = subprocess.Popen([sys.executable, "-m", "attendrop", *words], env=ENVIRONMENT, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 200
        while len(list(runs.glob("*.json"))) < 4:
            assert first.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.kill(first.pid, signal.SIGKILL)
        first.wait()
    written = {path.name: path.read_bytes() for path in runs.glob("*.json")}
    assert not (tmp_path / "tuning.json").exists()
    assert run(words) == 0
    result = json.loads((tmp_path / "tuning.json").read_text())
    assert Counter(trial["method"] for trial in result["trials"]) == {"plain": 3, "rdrop": 3}
    assert {trial["state"] for trial in result["trials"]} == {"finished"}
    assert all((runs / name).read_bytes() == content for name, content in written.items())
    assert {run_id for trial in result["trials"] for run_id in trial["runs"]} <= {path.stem for path in runs.iterdir()}
    assert run([*words, "--seed", "7"]) == 2  # another search in the same folder


def test_paper_protocol_is_labelled_in_records_and_output(
    settings: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = arguments(settings, tmp_path, "--protocol", "paper", "--trials", "3", "--final-seeds", "1")
    assert run(words) == 0
    output = capfd.readouterr().out
    assert output.count(PAPER_LABEL) == 2  # before the search, and above the table
    assert "train with plain: attendrop train --model" in output
    records = [json.loads(path.read_text()) for path in (tmp_path / "runs").iterdir()]
    assert {record["protocol"] for record in records} == {PAPER_LABEL}
    assert {(record["keep"], record["trial"] is None) for record in records} == {("dev", False), ("last", True)}
    assert analyse(tmp_path).protocol == "paper"
    assert PAPER_LABEL in (tmp_path / "report.md").read_text()


BAD_WORDS: dict[str, tuple[list[str], str]] = {
    "space": (["--space", "learning_rate=fast"], "space is 'learning_rate=fast': learning_rate is 'fast'; it must be"),
    "trials": (["--trials", "0"], "trials is 0; it must be a whole number of at least 1"),
    "method": (["--method", "addrp"], "did you mean 'addrop'?"),
    "storage": (["--storage", "sqlite:////no/such/folder/x.db"], "which cannot be used ("),
    "executor": (["--engine", "slurm"], "engine is 'slurm'; it must be one of"),
    "sampler": (["--sampler", "best"], "sampler is 'best'; it must be one of"),
    "model": (["--model", "no/such-model"], "no/such-model"),
    "resume": (["--resume"], "no such option: --resume"),
}


@pytest.mark.parametrize("case", BAD_WORDS)
def test_bad_input_raises_one_line_error_and_writes_nothing(
    case: str, settings: dict[str, Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words, message = BAD_WORDS[case]
    assert run(arguments(settings, tmp_path / "out", *words)) == 2
    error = capfd.readouterr().err.strip()
    assert message in error
    assert "\n" not in error
    assert not (tmp_path / "out").exists()


def test_missing_optuna_raises_one_line_error(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    assert run(arguments(settings, tmp_path / "out")) == 2
    error = capfd.readouterr().err
    assert "attendrop tune needs optuna, which is not installed: pip install 'attendrop[tune]'." in error
    assert not (tmp_path / "out").exists()


def test_sampler_of_a_trial_is_the_same_with_several_workers(settings: dict[str, Any], tmp_path: Path) -> None:
    config = make_tune_config({**settings, "method": ["addrop"]}, trials=4, repeats=1, final_seeds=1)
    tuner = Tuner(config, open_storage(tmp_path, None), "me")
    specs = [tuner.next_spec() for _ in range(8)]  # four workers ask before anything has ended
    assert all(spec is not None for spec in specs)
    assert tuner.next_spec() is None
    asked = [spec.settings for spec in specs if spec is not None and spec.method == "addrop"]
    (tmp_path / "again").mkdir()
    other = Tuner(config, open_storage(tmp_path / "again", None), "me")
    assert asked == [spec.settings for _ in range(8) if (spec := other.next_spec()) and spec.method == "addrop"]
