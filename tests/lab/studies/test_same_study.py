"""Runs of one study have one model, by its content, and the same settings; everything else is refused in a sentence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet
from safetensors.torch import load_file, save_file

from attendrop.errors import UserError
from attendrop.lab.records import ModelFacts, StudyRecord
from attendrop.lab.runs import fine_tune
from attendrop.lab.studies.design import make_design
from attendrop.lab.studies.driver import Study
from attendrop.lab.studies.records import SameStudy, write_record
from attendrop.lab.studies.spec import RunSpec
from attendrop.lab.studies.tune_design import make_tune_config
from attendrop.lab.studies.worker import Worker
from attendrop.utils.model_files import model_checksums
from helpers import media
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


def other_image(photos: Path) -> None:
    """Another picture of the same class under the same name."""
    place, other = photos / "red" / "0.jpg", photos / "red" / "2.jpg"
    assert place.read_bytes() != other.read_bytes()
    shutil.copy(other, place)


def other_class(photos: Path) -> None:
    (photos / "red" / "0.jpg").rename(photos / "green" / "new.jpg")


@pytest.mark.parametrize("change", [other_image, other_class])
@pytest.mark.parametrize("name", ["train_file", "validation_file"])
def test_a_study_whose_folder_of_images_has_changed_is_refused_before_a_run(
    name: str, change: Change, model: Path, tmp_path: Path
) -> None:
    photos = media.write_images(tmp_path / "photos", 4)
    others = media.write_images(tmp_path / "others", 4, seed=1)
    files = {"train_file": str(others), "validation_file": str(others), name: str(photos)}
    design, folder = make_design({"model": str(model), **files}, ["rdrop"]), tmp_path / "study"
    search = make_tune_config({"model": str(model), **files, "method": ["rdrop"]})

    def start() -> None:
        with Study(folder, design.configuration(kind="compare")):
            pass

    start()
    write_record(folder, record_of(0, model))
    (photos / "Thumbs.db").write_text("no image is read from it")
    start()
    before = search.study_name("rdrop")
    change(photos)
    with pytest.raises(UserError, match="what is in the folder '.*photos' changed after runs of the study in .*study"):
        start()
    assert search.study_name("rdrop") != before
    assert search.configuration().data_files == design.configuration(kind="compare").data_files


@pytest.mark.parametrize("changes", ["rte/train", "hans/validation"])
def test_a_study_whose_folder_of_tasks_has_changed_is_refused_before_a_run(
    changes: str, model: Path, tmp_path: Path
) -> None:
    data, folder = write_tasks(tmp_path / "data"), tmp_path / "study"
    settings = {"model": str(model), "data_dir": str(data), "also_eval": ["hans"]}
    design = make_design(settings, ["rdrop"], tasks=["rte"])
    search = make_tune_config({**settings, "task": "rte", "method": ["rdrop"]})

    def start() -> None:
        with Study(folder, design.configuration(kind="compare")):
            pass

    start()
    write_record(folder, record_of(0, model))
    (data / "glue-qqp").mkdir()
    start()  # of another task
    before = search.study_name("rdrop")
    write_pairs(data / f"{changes}.parquet", seed=9)
    with pytest.raises(UserError, match=f"the file '.*{changes}.parquet' changed after runs of the study in .*study"):
        start()
    assert search.study_name("rdrop") != before


def test_records_of_other_images_and_other_tasks_are_refused(model: Path, tmp_path: Path) -> None:
    """Where study.json cannot tell: a table names the images, and the study is older than its checksums."""
    photos, data = media.write_images(tmp_path / "photos", 4), write_tasks(tmp_path / "data")
    rows = [(path.relative_to(tmp_path), path.parent.name) for path in sorted(photos.rglob("*.*"))]
    of_images = {"train_file": str(write_csv(tmp_path / "photos.csv", rows)), "validation_share": 0.5}
    of_images["model"] = str(media.save_vit(tmp_path / "vit"))
    of_texts = {"model": str(model), "task": "rte", "data_dir": str(data), "also_eval": ["hans"]}
    usual = {"num_train_epochs": 1, "learning_rate": 1e-3, "use_cpu": True, "head_start": "random"}

    def record(settings: dict[str, Any], seed: int) -> StudyRecord:
        own = {**settings, **usual, "method": [], "seed": seed}
        return Worker("cpu").run(RunSpec(own, "plain", "task", seed, resample=True))

    first, other = record(of_images, 0), record(of_texts, 0)
    SameStudy([first, record(of_images, 1)])
    SameStudy([other, record(of_texts, 1)])
    assert set(other.data) == {"train", "validation", "hans"}
    photos.rename(tmp_path / "moved")
    write_csv(tmp_path / "photos.csv", [(Path("moved", *path.parts[1:]), label) for path, label in rows])
    SameStudy([first, record(of_images, 0)])
    other_image(tmp_path / "moved")
    with pytest.raises(UserError, match="has another fingerprint of the (train|validation) data of task"):
        SameStudy([first, record(of_images, 0)])
    write_pairs(data / "hans" / "validation.parquet", seed=9)
    with pytest.raises(UserError, match="has another fingerprint of the hans data of task"):
        SameStudy([other, record(of_texts, 1)])


def write_tasks(folder: Path) -> Path:
    """Two tasks as they are on the Hub."""
    for place, seed in (("rte/train", 1), ("rte/validation", 2), ("hans/validation", 3)):
        write_pairs(folder / f"{place}.parquet", seed)
    return folder


def write_pairs(path: Path, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    texts = [text for text, _ in sentences(16, seed=seed)]
    columns = ("premise", "hypothesis") if "hans" in path.parts else ("sentence1", "sentence2")
    parquet.write_table(pyarrow.table({**dict.fromkeys(columns, texts), "label": [0, 1] * 8}), path)


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


@pytest.mark.parametrize("name", ["training", "evaluation"])
def test_a_run_is_resumed_with_moved_images_but_not_with_others(name: str, tmp_path: Path) -> None:
    folders = {
        "training": media.write_images(tmp_path / "photos", 4),
        "evaluation": media.write_images(tmp_path / "others", 4, seed=1),
    }
    run = tmp_path / "run"

    def train(**more: Any) -> None:
        fine_tune(
            model=str(media.save_vit(tmp_path / "vit")), train_file=str(folders["training"]),
            validation_file=str(folders["evaluation"]), num_train_epochs=1, learning_rate=1e-3, use_cpu=True,
            no_baselines=True, head_start="random", output_dir=str(run), keep_checkpoints=True, **more,
        )  # fmt: skip

    train()
    (run / "record.json").unlink()
    folders[name] = folders[name].rename(tmp_path / "moved")
    other_image(folders[name])
    with pytest.raises(UserError, match=f"{name} data is '8 examples, .* and was .* when checkpoint-1 was written"):
        train(resume=True)
    assert not (run / "record.json").exists()
    shutil.rmtree(folders[name])
    media.write_images(folders[name], 4, seed=int(name == "evaluation"))
    train(resume=True)
    assert (run / "record.json").is_file()
