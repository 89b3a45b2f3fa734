"""Runs of one study have one model, by its content, and the same settings; everything else is refused in a sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from attendrop.errors import UserError
from attendrop.lab.records import ModelFacts, StudyRecord
from attendrop.lab.runs import fine_tune
from attendrop.lab.studies.design import make_design
from attendrop.lab.studies.driver import Study
from attendrop.lab.studies.records import SameStudy, write_record
from attendrop.lab.studies.tune_design import make_tune_config
from attendrop.utils.model_files import model_checksums
from helpers.cli_tools import save_encoder, sentences, write_csv

pytestmark = pytest.mark.xdist_group("same_study")

Change = Callable[[Path], None]


@pytest.fixture(scope="module")
def pretrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_encoder(tmp_path_factory.mktemp("same") / "model", [text for text, _ in sentences(16, seed=1)])


@pytest.fixture
def model(pretrained: Path, tmp_path: Path) -> Path:
    return shutil.copytree(pretrained, tmp_path / "model")


def other_weights(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    name = min(weights)
    save_file({**weights, name: weights[name] + 1}, model / "model.safetensors", {"format": "pt"})


def other_configuration(model: Path) -> None:
    path = model / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_attention_heads": 2}))


def other_tokenizer(model: Path) -> None:
    path = model / "tokenizer.json"
    content = json.loads(path.read_text())
    content["normalizer"]["lowercase"] = False
    path.write_text(json.dumps(content))


CHANGES: dict[str, Change] = {
    "weights": other_weights, "configuration": other_configuration, "tokenizer": other_tokenizer
}  # fmt: skip


def record_of(number: int, model: Path | str, content: dict[str, str] | None = None, **more: Any) -> StudyRecord:
    settings = {"learning_rate": 1e-4, "model": str(model), "seed": number, "method": []}
    values: dict[str, Any] = {
        "id": f"run{number}", "status": "finished", "method": "plain", "task": "reviews.csv", "seed": number,
        "settings": settings, "versions": {"torch": "2"}, "data": {"train": "t"},
        "scores": {"validation": {"accuracy": 0.5}}, "resample": False,
        "model": ModelFacts(str(model), "shapes", model_checksums(model) if content is None else content),
    }  # fmt: skip
    return StudyRecord(**{**values, **more})


# ---- one model -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("part", CHANGES)
def test_a_study_whose_model_has_changed_is_not_continued(part: str, model: Path, tmp_path: Path) -> None:
    folder, configuration = tmp_path / "study", {"kind": "compare"}
    write_record(folder, record_of(0, model))
    with Study(folder, configuration):
        pass
    CHANGES[part](model)
    with pytest.raises(UserError, match=f"the {part} of the model .*model changed after runs of the study in .*study"):
        Study(folder, configuration).__enter__()


@pytest.mark.parametrize("changes", ["train_file", "validation_file"])
@pytest.mark.parametrize("kind", ["compare", "tune"])
def test_a_study_whose_file_has_changed_is_refused_before_a_run(
    changes: str, kind: str, model: Path, tmp_path: Path
) -> None:
    files = {name: tmp_path / f"{name}.csv" for name in ("train_file", "validation_file")}
    for seed, file in enumerate(files.values()):
        write_csv(file, sentences(8, seed=seed))
    settings, folder = {"model": str(model), **{name: str(file) for name, file in files.items()}}, tmp_path / "study"

    def start() -> None:
        words = {**settings, "method": ["rdrop"]}
        configuration = (
            make_tune_config(words).configuration()
            if kind == "tune"
            else make_design(settings, ["rdrop"]).configuration(kind=kind)
        )
        with Study(folder, configuration):
            pass

    start()
    write_csv(files[changes], sentences(8, seed=5))
    start()  # no run has read it
    write_record(folder, record_of(0, model))
    start()
    before = files[changes].read_bytes()
    write_csv(files[changes], sentences(8, seed=6))
    with pytest.raises(UserError, match=f"the file '.*{changes}.csv' changed after runs of the study in .*study"):
        start()
    files[changes].write_bytes(before)
    start()


@pytest.mark.parametrize("part", CHANGES)
def test_records_of_another_model_are_refused_whatever_it_is_called(part: str, model: Path) -> None:
    before = record_of(0, model)
    CHANGES[part](model)
    with pytest.raises(UserError, match=f"has another checksum of the {part} of the model than that of run run0"):
        SameStudy([before, record_of(1, model)])


def test_a_copy_of_the_model_and_another_path_to_it_are_the_same_model(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = shutil.copytree(model, tmp_path / "copy")
    (copy / "README.md").write_text("not read when the model is loaded")
    SameStudy([record_of(0, model), record_of(1, copy)])
    monkeypatch.chdir(tmp_path)
    write_csv(tmp_path / "train.csv", sentences(4, seed=1))
    for place in (str(model), "model", "./model", "copy/../model"):
        assert Path(str(design_of(place).settings["model"])).samefile(model)
    assert design_of("model") == design_of(str(model)) == design_of("../" + tmp_path.name + "/model")
    assert design_of("roberta-base").settings["model"] == "roberta-base"
    names = {make_tune_config(settings_of(place)).study_name("plain") for place in ("model", str(model), "copy")}
    assert len(names) == 1
    other_weights(copy)
    assert make_tune_config(settings_of("copy")).study_name("plain") not in names


def settings_of(model: str) -> dict[str, Any]:
    return {"model": model, "train_file": "train.csv"}


def design_of(model: str) -> Any:
    return make_design(settings_of(model), ["plain", "rdrop"])


# ---- the same settings -----------------------------------------------------------------------------------------------


def changed(record: StudyRecord, **settings: Any) -> StudyRecord:
    record.settings = {**record.settings, **settings}
    return record


@pytest.mark.parametrize(("name", "value"), [("learning_rate", 1e-3), ("weight_decay", 0.1), ("num_train_epochs", 9.0)])
@pytest.mark.parametrize("method", ["plain", "rdrop"])
def test_records_with_other_settings_are_refused(name: str, value: float, method: str, model: Path) -> None:
    first = changed(record_of(0, model), weight_decay=0.01, num_train_epochs=3.0)
    second = changed(record_of(1, model, method=method), weight_decay=0.01, num_train_epochs=3.0)
    SameStudy([first, second])
    with pytest.raises(UserError, match=f"has another {name} than that of run run0: {value!r} instead of"):
        SameStudy([first, changed(second, **{name: value})])


def test_a_contender_may_have_settings_of_its_own(model: Path) -> None:
    own = "rdrop@learning_rate=1e-3"
    records = [
        record_of(0, model),
        changed(record_of(1, model, method=own), learning_rate=1e-3, method=["rdrop"]),
        changed(record_of(2, model, method=own), learning_rate=1e-3),
        changed(record_of(3, model, size="shots=8"), shots=8, num_train_epochs=10.0),
        changed(record_of(4, model), num_train_epochs=3.0),
    ]
    SameStudy(records)
    with pytest.raises(UserError, match="has another learning_rate"):
        SameStudy([*records, changed(record_of(5, model, method=own), learning_rate=1e-2)])


def test_the_trials_of_a_search_have_settings_of_their_own(model: Path) -> None:
    final = changed(record_of(1000, model, method="rdrop"), learning_rate=1e-3)
    SameStudy([final, record_of(1001, model), record_of(0, model, trial=0, fold=0)])


# ---- a run that is resumed -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def interrupted(pretrained: Path) -> dict[str, Any]:
    """A run that has a checkpoint."""
    place = pretrained.parent
    settings = {
        "model": str(pretrained), "train_file": str(write_csv(place / "train.csv", sentences(16, seed=1))),
        "validation_file": str(write_csv(place / "dev.csv", sentences(6, seed=2))), "num_train_epochs": 1,
        "learning_rate": 1e-3, "use_cpu": True, "no_baselines": True, "head_start": "random",
        "output_dir": str(place / "run"), "keep_checkpoints": True,
    }  # fmt: skip
    fine_tune(**settings)
    (place / "run" / "record.json").unlink()
    return settings


@pytest.mark.parametrize("part", CHANGES)
def test_a_run_is_not_resumed_with_a_changed_model(
    part: str, interrupted: dict[str, Any], model: Path, tmp_path: Path
) -> None:
    run = shutil.copytree(interrupted["output_dir"], tmp_path / "run")
    CHANGES[part](model)
    with pytest.raises(UserError, match=f"the {part} of the model is '.*' and was '.*' when checkpoint-1 was written"):
        fine_tune(**{**interrupted, "model": str(model), "output_dir": str(run), "resume": True})


def test_a_run_is_resumed_with_the_same_model_at_another_path(
    interrupted: dict[str, Any], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(interrupted["output_dir"], tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    fine_tune(**{**interrupted, "model": "model", "output_dir": str(run), "resume": True})
    assert (run / "record.json").is_file()
