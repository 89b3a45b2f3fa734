"""A finished run is used as it was written, or refused in one sentence: damaged, swapped and re-saved files."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from attendrop import load_classifier
from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.runs import fine_tune
from attendrop.lab.runs.folder import RECORD_FILE, read_record
from attendrop.lab.runs.predict import predict_texts
from attendrop.utils.manifest import MANIFEST_FILE
from helpers.cli_tools import save_encoder, sentences, write_csv

# One process runs all of these tests, so that their model is trained once.
pytestmark = pytest.mark.xdist_group("sealed")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sealed")
    rows = sentences(32, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    for name, of in {"train": rows, "dev": sentences(12, seed=2)}.items():
        write_csv(folder / f"{name}.csv", of)
    write_csv(folder / "three.csv", [(text, f"class {i % 3}") for i, (text, _) in enumerate(rows)])
    return folder


def settings(place: Path, name: str, **more: Any) -> dict[str, Any]:
    return {
        "model": str(place / "model"), "train_file": str(place / "train.csv"),
        "validation_file": str(place / "dev.csv"), "num_train_epochs": 1, "per_device_train_batch_size": 16,
        "learning_rate": 1e-3, "use_cpu": True, "no_baselines": True, "head_start": "random",
        "output_dir": str(place / name), **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def finished(place: Path) -> Path:
    fine_tune(**settings(place, "finished"))
    return place / "finished"


@pytest.fixture(scope="module")
def other(place: Path) -> Path:
    """A run whose head has another size."""
    fine_tune(**settings(place, "other", train_file=str(place / "three.csv"), validation_file=None))
    return place / "other"


# ---- what can happen to a folder -----------------------------------------------------------------------------------

Damage = Callable[[Path, Path], None]


def in_json(name: str, change: Callable[[dict[str, Any]], Any]) -> Damage:
    def damage(folder: Path, other: Path) -> None:
        content = json.loads((folder / name).read_text())
        change(content)
        (folder / name).write_text(json.dumps(content, indent=1) + "\n")

    return damage


def swapped(name: str) -> Damage:
    return lambda folder, other: shutil.copy(other / name, folder / name) and None


def without_encoder(folder: Path, other: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    kept = {name: tensor for name, tensor in weights.items() if "encoder.layer.0" not in name}
    save_file(kept, folder / "model.safetensors", {"format": "pt"})


def one_bit(folder: Path, other: Path) -> None:
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def reversed_labels(record: dict[str, Any]) -> None:
    record["task_definition"]["labels"].reverse()


DAMAGES: dict[str, Damage] = {
    "swapped weights": swapped("model.safetensors"),
    "no encoder": without_encoder,
    "one bit": one_bit,
    "two heads": in_json("config.json", lambda config: config.update(num_attention_heads=2)),
    "fewer layers": in_json("config.json", lambda config: config.update(num_hidden_layers=1)),
    "swapped record": swapped(RECORD_FILE),
    "reversed labels": in_json(RECORD_FILE, reversed_labels),
    "temperature": in_json(RECORD_FILE, lambda record: record.update(temperature=-1)),
    "length": in_json(RECORD_FILE, lambda record: record.update(max_length=3)),
    "tokenizer": in_json(
        "tokenizer.json", lambda tokenizer: tokenizer["model"]["vocab"].update({"fine": 7, "dull": 8})
    ),
    "added adapter": lambda folder, other: (folder / "adapter_config.json").write_text("{}") and None,
    "seal": in_json(MANIFEST_FILE, lambda manifest: manifest["files"].pop("model.safetensors")),
}
# An older version wrote no seal. What the weights, the configuration and the record say must still agree.
UNSEALED = ("swapped weights", "no encoder", "fewer layers", "reversed labels", "temperature")


def refusal(folder: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one sentence with which a command on a folder ends."""
    capsys.readouterr()
    assert run(words) != 0
    error = capsys.readouterr().err.strip()
    assert error.startswith("error:")
    assert "Traceback" not in error
    sentence = " ".join(error.split())
    assert sentence.count("error:") == 1
    assert folder.name in sentence
    return sentence


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_changed_folder_is_never_used(
    damage: str, finished: Path, other: Path, place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(finished, tmp_path / "damaged")
    DAMAGES[damage](folder, other)
    data = ["--file", str(place / "dev.csv")]
    for words in (
        ["predict", str(folder), "a fine film"],
        ["evaluate", str(folder), *data, "--output", str(tmp_path / "evaluated")],
        ["robustness", str(folder), *data, "--output", str(tmp_path / "robustness.png")],
    ):
        sentence = refusal(folder, words, capsys)
        assert f"delete {MANIFEST_FILE} in it, and it is read without this check" in sentence
    assert not list(tmp_path.glob("[er]*"))


@pytest.mark.parametrize("damage", UNSEALED)
def test_a_folder_without_a_seal_is_checked_too(
    damage: str, finished: Path, other: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(finished, tmp_path / "damaged")
    (folder / MANIFEST_FILE).unlink()
    DAMAGES[damage](folder, other)
    refusal(folder, ["predict", str(folder), "a fine film"], capsys)


@pytest.mark.parametrize("damage", ["swapped weights", "no encoder", "one bit", "two heads", "fewer layers"])
def test_load_classifier_refuses_it_too(damage: str, finished: Path, other: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "damaged")
    DAMAGES[damage](folder, other)
    with pytest.raises(UserError, match="is not as it was written: "):
        load_classifier(folder)
    (folder / MANIFEST_FILE).unlink()
    if damage in UNSEALED:
        with pytest.raises(ValueError, match="is no finished model: "):
            load_classifier(folder)


def test_a_folder_may_be_moved_and_its_other_files_edited(finished: Path, tmp_path: Path) -> None:
    before = list(predict_texts(finished, ["a fine film"]))
    moved = shutil.move(shutil.copytree(finished, tmp_path / "copy"), tmp_path / "moved")
    for name in ("README.md", "metrics.json", "notes.txt"):
        (moved / name).write_text("mine")
    for name in ("curves.png", "run.yaml"):
        (moved / name).unlink()
    assert list(predict_texts(moved, ["a fine film"])) == before


def test_a_model_that_was_saved_again_is_read_when_its_seal_is_deleted(finished: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "copy")
    weights = load_file(folder / "model.safetensors")
    save_file({name: tensor.half() for name, tensor in weights.items()}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(UserError, match="has .* bytes and was written with .*; copy the folder again, or, if you"):
        list(predict_texts(folder, ["a fine film"]))
    (folder / MANIFEST_FILE).unlink()
    assert list(predict_texts(folder, ["a fine film"])) == list(predict_texts(finished, ["a fine film"]))


def test_a_changed_run_is_no_start_for_another_one(finished: Path, other: Path, place: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(finished, tmp_path / "damaged")
    one_bit(folder, other)
    with pytest.raises(UserError, match=r"the content of model\.safetensors was changed"):
        fine_tune(**settings(place, "second", model=str(folder)))
    assert not (place / "second").exists()


# ---- when a run counts as finished ---------------------------------------------------------------------------------


class Killed(BaseException):
    """Ends the process, without anything that would tidy up."""


@pytest.mark.parametrize("moment", ["runs.run.Run.predict", "report.card.write_card", "runs.folder.seal_model"])
def test_a_record_is_never_beside_weights_that_it_does_not_describe(
    moment: str, place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A finished run is trained on, and stopped when its new weights have been written."""
    first = settings(place, "", output_dir=str(tmp_path / "run"), keep_checkpoints=True)
    fine_tune(**first)
    folder = tmp_path / "run"
    before = (folder / "model.safetensors").read_bytes()

    def killed(*args: Any, **kwargs: Any) -> None:
        raise Killed

    monkeypatch.setattr(f"attendrop.lab.{moment}", killed)
    more = {**first, "num_train_epochs": 2, "resume": True, "resume_changed": True}
    with pytest.raises(Killed):
        fine_tune(**more)
    assert (folder / "model.safetensors").read_bytes() != before
    with pytest.raises(UserError, match=f"has no {RECORD_FILE}"):
        list(predict_texts(folder, ["a fine film"]))
    monkeypatch.undo()
    fine_tune(**more)
    assert read_record(folder).cost.steps == 4
    assert list(predict_texts(folder, ["a fine film"]))
