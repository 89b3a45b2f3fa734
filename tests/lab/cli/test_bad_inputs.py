"""Every bad input is answered by one sentence and exit code 2, without a traceback, and leaves nothing behind."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification, BertConfig

from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.cli.arguments import as_arguments
from attendrop.lab.runs import fine_tune
from attendrop.utils.manifest import MANIFEST_FILE
from helpers.bad_inputs import BAD_INPUTS, Bad, File, Model, Run, written
from helpers.cli_tools import ENVIRONMENT, save_encoder, sentences, write_csv

# One process runs all of these tests, so that the model and the finished run are created once.
pytestmark = pytest.mark.xdist_group("bad_inputs")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a model of few positions, a training file and a finished run."""
    folder = tmp_path_factory.mktemp("bad")
    rows = sentences(16, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    write_csv(folder / "train.csv", rows)
    shutil.copytree(folder / "model", folder / "short")
    config = BertConfig.from_pretrained(folder / "model", max_position_embeddings=64)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder / "short")
    fine_tune(
        model=str(folder / "model"), train_file=str(folder / "train.csv"), output_dir=str(folder / "run"),
        use_cpu=True, max_steps=1, save_strategy="no", load_best_model_at_end=False,
    )  # fmt: skip
    (
        folder / "run" / MANIFEST_FILE
    ).unlink()  # as in a folder of an older version, so that more than the seal is tested
    return folder


def _real(value: Any, place: Path) -> Any:
    """What a row stands for, in the working folder."""
    if isinstance(value, File):
        _write(value)
        return value.name
    if isinstance(value, Model):
        copy = Path("run" if isinstance(value, Run) else "model")
        shutil.copytree(place / copy.name, copy)
        for name, change in value.changes.items():
            path = copy / name
            if change is None:
                path.unlink()
            elif callable(change):
                path.write_bytes(change(path.read_bytes()))
            else:
                path.write_text(change)
        return str(copy)
    return str(place / "short") if value == "short" else value


def _write(file: File) -> None:
    path = Path(file.name)
    if file.name.endswith("/"):
        path.mkdir(parents=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.content if isinstance(file.content, bytes) else file.content.encode())


def settings_of(bad: Bad, place: Path) -> dict[str, Any]:
    """The settings of a row; its files are written into the working folder."""
    for file in bad.files:
        _write(file)
    usual = {
        "model": str(place / "model"), "train_file": str(place / "train.csv"), "use_cpu": True, "num_train_epochs": 2,
    }  # fmt: skip
    given = {**usual, **(bad.settings or {})}
    return {name: _real(value, place) for name, value in given.items() if value is not None}


def words_of(bad: Bad, place: Path) -> list[str]:
    """The command line of a row; its files are written into the working folder."""
    if bad.settings is not None:
        return ["train", *as_arguments(settings_of(bad, place))]
    for file in bad.files:
        _write(file)
    return [str(_real(word, place)) for word in bad.command]


def one_sentence(error: str) -> str:
    """The only line of an error stream, which must be a sentence about a mistake of the user."""
    lines = [line for line in error.splitlines() if line.strip()]
    assert len(lines) == 1, error
    assert re.fullmatch(r"error: \S.*[.?]", lines[0]), error
    return lines[0]


@pytest.mark.parametrize("bad", BAD_INPUTS, ids=lambda bad: bad.name)
def test_bad_input_gives_one_sentence_and_leaves_nothing_behind(
    bad: Bad, place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("ATTENDROP_CACHE", str(tmp_path))
    words = words_of(bad, place)
    before = written(tmp_path)
    assert run(words) == 2
    sentence = one_sentence(capfd.readouterr().err)
    assert re.search(bad.words, sentence), sentence
    assert written(tmp_path) == before


def test_the_table_has_200_different_rows() -> None:
    assert len({(bad.name, bad.words) for bad in BAD_INPUTS}) == len(BAD_INPUTS)
    assert len(BAD_INPUTS) >= 200


@pytest.mark.parametrize(
    "words",
    [
        "learning_rate is nan",
        pytest.param("batch_size is 0", marks=pytest.mark.slow),
        pytest.param("report_to is 'wandbb'", marks=pytest.mark.slow),
    ],
)
def test_a_new_process_answers_in_the_same_way(
    words: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bad = next(bad for bad in BAD_INPUTS if bad.words.startswith(words))
    command = words_of(bad, place)
    before = written(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "attendrop", *command], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert re.search(bad.words, one_sentence(done.stderr))
    assert written(tmp_path) == before


OF_THE_COMMAND_LINE = {"config", "nproc", "nnodes", "node_rank", "main_address", "main_port"}
SETTINGS = [bad for bad in BAD_INPUTS if bad.settings and not OF_THE_COMMAND_LINE & bad.settings.keys()]


@pytest.mark.parametrize("bad", SETTINGS[::12], ids=lambda bad: bad.name)
def test_python_raises_the_same_sentence(
    bad: Bad, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = settings_of(bad, place)
    before = written(tmp_path)
    with pytest.raises(UserError) as raised:
        fine_tune(**{name: str(value) if isinstance(value, float) else value for name, value in settings.items()})
    assert re.search(bad.words, str(raised.value))
    assert written(tmp_path) == before
