"""The command line: flags, help, presets, and one sentence for every mistake."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

from attendrop import METHODS, __version__, parse_method
from attendrop.cli.app import COMMANDS, dashed, run
from attendrop.cli.flags import as_arguments
from attendrop.cli.methods import description_of, field_descriptions
from attendrop.cli.reference import reference
from attendrop.errors import UserError
from attendrop.experiments.presets import apply_preset
from attendrop.experiments.run import training_arguments
from attendrop.experiments.settings import all_settings, make_config, read_yaml
from attendrop.tasks import find_task
from helpers.cli_tools import save_encoder, sentences, write_csv

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    rows = sentences(40, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    write_csv(folder / "train.csv", rows)
    return folder


def test_every_training_argument_is_a_flag_of_the_same_name() -> None:
    names = {field.name for field in dataclasses.fields(TrainingArguments)}
    assert names <= all_settings().keys()
    assert (ROOT / "docs/flags.md").read_text(encoding="utf-8") == reference()


def test_flags_yaml_and_keywords_give_the_same_settings(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "model: m\ntask: glue/rte\nlearning-rate: 2e-5\nbf16: true\n"
        "method: [addrop, rdrop]\nlr_scheduler_kwargs: {a: 1}\n"
    )
    config = make_config(read_yaml(tmp_path / "run.yaml"))
    assert config.training["learning_rate"] == 2e-5
    assert config.training["bf16"] is True
    assert config.training["lr_scheduler_kwargs"] == {"a": 1}
    assert config.method == ["addrop", "rdrop"]
    assert config.output_dir == Path("runs/m-glue-rte-addrop-rdrop")
    assert make_config(config.settings()).settings() == config.settings()
    zeros = make_config({"model": "m", "task": "t", "seed": 0, "weight_decay": 0, "load_best_model_at_end": False})
    assert make_config(zeros.settings()).training == zeros.training
    assert as_arguments({"a_b": [1, 2], "c": True, "d": False, "e": {"x": 1}}) == [
        "--a-b", "1", "--a-b", "2", "--c", "--no-d", "--e", '{"x": 1}',
    ]  # fmt: skip
    assert dashed(["--learning_rate=1e_5", "a_b", "--x_y"]) == ["--learning-rate=1e_5", "a_b", "--x-y"]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"task": "glue/rte"}, "no model is given"),
        ({"model": "m"}, "no data are given"),
        ({"model": "m", "task": "t", "train_file": "f"}, "both task and train_file"),
        ({"model": "m", "task": "t", "learning_rat": 1}, "did you mean 'learning_rate'"),
        ({"model": "m", "task": "t", "learning_rate": "fast"}, "learning_rate is 'fast'; it must be a number"),
        ({"model": "m", "task": "t", "max_steps": 1.5}, "max_steps is 1.5; it must be a whole number"),
        ({"model": "m", "task": "t", "bf16": "maybe"}, "bf16 is 'maybe'; it must be true or false"),
        ({"model": "m", "task": "t", "shots": 0}, "shots is 0; it must be at least 1"),
        ({"model": "m", "task": "t", "fraction": 1.5}, "fraction is 1.5; it must be above 0 and at most 1"),
        ({"model": "m", "task": "t", "shots": 4, "fraction": 0.5}, "both shots and fraction"),
        ({"model": "m", "task": "t", "preset": "papers"}, "preset is 'papers'"),
        ({"model": "m", "task": "t", "resume": True, "overwrite": True}, "both resume and overwrite"),
    ],
)
def test_wrong_setting_is_named_in_the_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make_config(settings)


def test_paper_preset_is_applied_and_reported() -> None:
    config = make_config({"model": "roberta-base", "task": "glue/rte", "preset": "paper", "learning_rate": 3e-5})
    message = " ".join(apply_preset(config, "roberta"))
    assert config.method == ["addrop:p=0.7,q=0.1,layers=all,end_on=either"]
    assert config.training["learning_rate"] == 3e-5  # somebody chose it
    assert config.training["per_device_train_batch_size"] == 16
    assert (config.max_length, config.patience) == (128, 5)
    assert "Table 11" in message
    assert make_config(config.settings()).settings() == config.settings()  # what a resumed run reads
    assert "preset" not in config.settings()
    assert "learning_rate" not in message
    config = make_config({"model": "bert-base-uncased", "task": "glue/sst2", "preset": "paper", "method": ["addrop"]})
    apply_preset(config, "bert")
    assert config.method == ["addrop:p=0.6,q=0.8,layers=first,end_on=either"]
    config = make_config({"model": "m", "task": "glue/rte", "preset": "paper", "method": ["attendout"]})
    apply_preset(config, "bert")
    assert config.method[0].startswith("attendout:T=15,samples=0")
    for wrong in ({"method": ["addrop:p=0.3"]}, {"method": ["rdrop"]}, {"task": "imdb"}):
        with pytest.raises(UserError, match="preset is 'paper'"):
            apply_preset(make_config({"model": "m", "task": "glue/rte", "preset": "paper", **wrong}), "bert")
    with pytest.raises(UserError, match="family 'gpt2'"):
        apply_preset(make_config({"model": "m", "task": "glue/rte", "preset": "paper"}), "gpt2")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _model(place: Path, folder: Path, change: str) -> Path:
    """A copy of the tiny model with something wrong."""
    target = folder / change
    shutil.copytree(place / "model", target)
    weights = target / "model.safetensors"
    if change == "cut":
        _cut(weights)
    elif change == "pickle":
        weights.unlink()
        torch.save({"a": torch.ones(1)}, target / "pytorch_model.bin")
    elif change == "remote":
        config = json.loads((target / "config.json").read_text())
        config["auto_map"] = {"AutoConfig": "code.Config", "AutoModel": "code.Model"}
        config["model_type"] = "something_new"
        (target / "config.json").write_text(json.dumps(config))
        (target / "code.py").write_text("raise RuntimeError('must never run')")
    return target


MISTAKES: dict[str, tuple[dict[str, Any], str]] = {
    "no such file": ({"train_file": "nowhere.csv"}, "nowhere.csv"),
    "empty file": ({"train_file": ""}, "empty"),
    "not UTF-8": ({"train_file": b"text,label\n\xff\xfe,a\n"}, "UTF-8"),
    "missing column": ({"train_file": "a,b,c\n1,2,3\n", "text": "words"}, "words"),
    "duplicated column": ({"train_file": "text,text,label\na,b,c\n"}, "text"),
    "empty texts": ({"train_file": "text,label\n,a\nx,b\ny,a\nz,b\n"}, "text"),
    "one class": ({"train_file": "text,label\nx,a\ny,a\nz,a\n"}, "one class"),
    "label only in validation": ({"validation_file": "text,label\nx,good\ny,ugly\n"}, "ugly"),
    "regression label": ({"train_file": "text,label\nx,1.5\ny,high\n", "kind": "regression"}, "high"),
    "NaN": ({"train_file": "text,label\nx,1.5\ny,nan\n", "kind": "regression"}, "line 3 .* no label"),
    "an id as label": (
        {"train_file": "text,label\n" + "".join(f"word {i},id{i}\n" for i in range(1500))}, "1,?500|classes",
    ),
    "ragged CoNLL": ({"train_file.conll": "EU B-ORG\nrejects\n\n"}, "line 2"),
    "no such model": ({"model": "no/such-model-anywhere"}, "no/such-model-anywhere"),
    "no such folder": ({"model": "./nowhere"}, "nowhere"),
    "no such task": ({"task": "glue/rtee", "train_file": None}, "glue/rte"),
    "no network": ({"task": "glue/rte", "train_file": None}, "data-dir|network|connection"),
    "broken Parquet": ({"train_file.parquet": b"PAR1 and then nothing"}, "parquet|Parquet"),
    "weights cut short": ({"model": ":cut"}, "cut short|damaged|broken|incomplete"),
    "a pickle": ({"model": ":pickle"}, "pickle"),
    "remote code": ({"model": ":remote"}, "trust-remote-code|trust_remote_code"),
    "no such method": ({"method": ["adrop"]}, "did you mean 'addrop'"),
    "no such field": ({"method": ["addrop:r=1"]}, "r"),
    "out of range": ({"method": ["addrop:p=2"]}, "from 0 to 1"),
    "too few epochs": ({"method": ["addrop"], "num_train_epochs": 1}, "at least 2 epochs"),
    "unknown scheduler": ({"lr_scheduler_type": "zigzag"}, "zigzag"),
    "captured on a CPU": ({"step": "captured"}, "because the model is on cpu; it must be 'auto' or 'eager'"),
    "no such step": ({"step": "graph"}, "step is 'graph'; it must be one of"),
    "no such checkpoint": ({"resume_from_checkpoint": "gone/checkpoint-3"}, "gone/checkpoint-3.*must be a checkpoint"),
    "more shots than examples": ({"shots": 500}, "500"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistake_gives_one_sentence_and_writes_nothing(
    mistake: str, place: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.chdir(tmp_path)
    wrong, message = MISTAKES[mistake]
    settings: dict[str, Any] = {
        "model": str(place / "model"), "train_file": str(place / "train.csv"), "output_dir": str(tmp_path / "out"),
        "use_cpu": True, "num_train_epochs": 2,
    }  # fmt: skip
    for key, value in wrong.items():
        name, _, suffix = key.partition(".")
        if name.endswith("_file") and value is not None and value != "nowhere.csv":
            file = tmp_path / f"given.{suffix or 'csv'}"
            file.write_bytes(value if isinstance(value, bytes) else value.encode())
            value = str(file)
        if name == "model" and str(value).startswith(":"):
            value = str(_model(place, tmp_path, value[1:]))
        settings[name] = value
    code = run(["train", *as_arguments({name: value for name, value in settings.items() if value is not None})])
    error = capfd.readouterr().err
    assert code == 2
    assert "Traceback" not in error
    lines = [line for line in error.splitlines() if line.strip()]
    assert len(lines) == 1, error
    assert lines[0].startswith("error: ")
    assert re.search(message, lines[0]), lines[0]
    assert not (tmp_path / "out").exists()


def test_help_methods_and_tasks_commands(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["methods"]) == 0
    assert "addrop" in capfd.readouterr().out
    assert run(["methods", "addrop"]) == 0
    assert "candidate region" in capfd.readouterr().out
    assert run(["methods", "addrp"]) == 2
    assert "did you mean 'addrop'" in capfd.readouterr().err
    assert run(["methods", "AD-DROP"]) == 2
    assert "method is 'AD-DROP' (did you mean 'addrop'?); it must be one of addrop" in capfd.readouterr().err
    assert run(["tasks"]) == 0
    assert "glue/rte" in capfd.readouterr().out
    assert run(["train", "--help"]) == 0
    assert "--learning-rate" in capfd.readouterr().out
    assert run(["train", "--learnin-rate", "1"]) == 2


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["methods"]])
def test_what_only_lists_imports_no_large_library(arguments: list[str]) -> None:
    code = (
        "import sys; from attendrop.cli.app import run\n"
        f"assert run({arguments!r}) == 0\n"
        "print(sorted({'torch', 'transformers', 'datasets', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    *output, imported = done.stdout.splitlines()
    assert imported == "[]"
    expected = {"--help": list(COMMANDS), "--version": [f"attendrop {__version__}"], "methods": METHODS}
    assert all(any(word in line for line in output) for word in expected[arguments[0]])


def test_every_method_and_every_field_has_a_description() -> None:
    for name, cls in METHODS.items():
        docstring = " ".join(str(sys.modules[cls.__module__].__doc__).split())
        assert description_of(name) in docstring
        assert len(description_of(name)) > 20
        fields = {field.name for field in dataclasses.fields(cls)}
        assert field_descriptions(cls).keys() == fields, name


def test_every_recipe_of_the_paper_index_is_a_configuration(tmp_path: Path) -> None:
    text = (ROOT / "PAPER_INDEX.md").read_text(encoding="utf-8")
    recipes = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(recipes) >= 15
    named = set()
    for number, recipe in enumerate(recipes):
        file = tmp_path / f"{number}.yaml"
        file.write_text(recipe)
        config = make_config(read_yaml(file))
        find_task(str(config.task))
        training_arguments(config)
        for method in config.method:
            named.add(parse_method(method).name)
    not_a_recipe = {"structure_mask", "supertickets"}  # a matrix for each example; several trainings
    assert named | not_a_recipe == set(METHODS)
    for method in METHODS:
        assert f"docs/methods/{method}.md" in text or method in ("attention_layerdrop", "scheduled_dropout")
