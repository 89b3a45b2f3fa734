"""The command line: flags, help, presets, and one sentence for every mistake."""

from __future__ import annotations

import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
from transformers import AutoConfig, TrainingArguments

from attendrop import METHODS, __version__
from attendrop.errors import UserError
from attendrop.lab.cli.app import COMMANDS, dashed, run
from attendrop.lab.cli.arguments import as_arguments
from attendrop.lab.cli.methods import description_of, field_descriptions
from attendrop.lab.cli.reference import reference
from attendrop.lab.runs.presets import apply_preset
from attendrop.lab.runs.resolve import resolve_settings
from attendrop.lab.runs.run_yaml import read_yaml
from attendrop.lab.runs.settings import all_settings, make_config
from attendrop.lab.tasks import find_task

ROOT = Path(__file__).parents[3]


def test_every_training_argument_is_a_flag_of_the_same_name() -> None:
    names = {field.name for field in dataclasses.fields(TrainingArguments)}
    assert names <= all_settings().keys()


@pytest.mark.skipif(
    f"transformers=={transformers.__version__}\n" not in (ROOT / "constraints.txt").read_text(),
    reason="the page has the help texts of another version of transformers",
)
def test_the_page_of_flags_is_up_to_date() -> None:
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


def test_deprecated_flag_and_setting_still_work() -> None:
    with pytest.warns(FutureWarning, match="--step is deprecated and will be removed; use --capture instead"):
        assert dashed(["train", "--step=eager"]) == ["train", "--capture=eager"]
    with pytest.warns(FutureWarning, match="the setting step is deprecated and will be removed; use capture instead"):
        assert make_config({"model": "m", "task": "glue/rte", "step": "eager"}).capture == "eager"


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
        ({"model": "m", "task": "t", "shots": 0}, "shots is 0; it must be a whole number of at least 1"),
        ({"model": "m", "task": "t", "fraction": 1.5}, "fraction is 1.5; it must be a number above 0 and at most 1"),
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
    given = config
    config, notes = apply_preset(given, AutoConfig.for_model("roberta"))
    message = " ".join(notes)
    assert (given.preset, given.method) == ("paper", [])  # nothing is changed in place
    assert config.method == ["addrop:p=0.7,q=0.1,layers=all,end_on=either"]
    assert config.training["learning_rate"] == 3e-5  # somebody chose it
    assert config.training["per_device_train_batch_size"] == 16
    assert (config.max_length, config.patience) == (128, 5)
    assert "Table 11" in message
    assert make_config(config.settings()).settings() == config.settings()  # what a resumed run reads
    assert "preset" not in config.settings()
    assert "learning_rate" not in message
    config = make_config({"model": "bert-base-uncased", "task": "glue/sst2", "preset": "paper", "method": ["addrop"]})
    config, _ = apply_preset(config, AutoConfig.for_model("bert"))
    assert config.method == ["addrop:p=0.6,q=0.8,layers=first,end_on=either"]
    config = make_config({"model": "m", "task": "glue/rte", "preset": "paper", "method": ["attendout"]})
    config, _ = apply_preset(config, AutoConfig.for_model("bert"))
    assert config.method[0].startswith("attendout:T=15,samples=0")
    for wrong in ({"method": ["addrop:p=0.3"]}, {"method": ["rdrop"]}, {"task": "imdb"}):
        with pytest.raises(UserError, match="preset is 'paper'"):
            apply_preset(
                make_config({"model": "m", "task": "glue/rte", "preset": "paper", **wrong}),
                AutoConfig.for_model("bert"),
            )
    large = AutoConfig.for_model("roberta", num_hidden_layers=24, hidden_size=1024)
    _, notes = apply_preset(given, large)
    assert "its values are for base models, and this one has 24 layers of width 1024" in notes[0]
    pruning = make_config({"model": "m", "task": "t", "preset": "paper", "method": ["attendout:mode=prune"]})
    config, notes = apply_preset(pruning, AutoConfig.for_model("bert"))
    assert config.method[0].startswith("attendout:mode=prune,T=15")
    assert "2104.04692 v1" in notes[0]
    tags = make_config({"model": "m", "task": "conll2003", "preset": "paper"})
    config, notes = apply_preset(tags, AutoConfig.for_model("electra"))
    assert config.method == ["addrop:p=0.8,q=0.1,layers=all,end_on=either"]
    assert (config.training["per_device_train_batch_size"], config.training["num_train_epochs"]) == (32, 9)
    with pytest.raises(UserError, match="for conll2003 the scripts of AD-DROP's authors have electra"):
        apply_preset(tags, AutoConfig.for_model("bert"))
    translation = make_config({"model": "m", "task": "wmt16/tr-en", "preset": "paper", "max_length": 64})
    config, _ = apply_preset(translation, AutoConfig.for_model("marian"))
    assert (config.method, config.max_length) == (["addrop:p=0.6,q=0.1,layers=encoder,end_on=either"], 64)
    with pytest.raises(UserError, match="family 'gpt2'"):
        apply_preset(make_config({"model": "m", "task": "glue/rte", "preset": "paper"}), AutoConfig.for_model("gpt2"))


def test_recommended_preset_is_plain_fine_tuning_by_the_default_recipe() -> None:
    small = AutoConfig.for_model("bert", hidden_size=384)
    plain = make_config({"model": "m", "task": "glue/rte"})
    config, (note,) = apply_preset(make_config({"model": "m", "task": "glue/rte", "preset": "recommended"}), small)
    assert config.settings() == plain.settings()
    assert note.startswith("preset recommended: plain fine-tuning by the default recipe")
    with pytest.raises(UserError, match="preset is 'recommended' and method is 'rdrop'"):
        apply_preset(make_config({"model": "m", "task": "t", "preset": "recommended", "method": ["rdrop"]}), small)


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


def test_flags_with_the_names_of_other_libraries_are_recognised(capfd: pytest.CaptureFixture[str]) -> None:
    for given, flag in (("--epochs", "--num-train-epochs"), ("--lr", "--learning-rate")):
        assert run(["train", given, "3"]) == 2
        assert f"no such option: {given}; did you mean {flag}?" in capfd.readouterr().err
    assert run(["predict", "--epochs", "3"]) == 2
    assert "num-train-epochs" not in capfd.readouterr().err


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["methods"]])
def test_what_only_lists_imports_no_large_library(arguments: list[str]) -> None:
    code = (
        "import sys; from attendrop.lab.cli.app import run\n"
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
    text = (ROOT / "docs/paper-index.md").read_text(encoding="utf-8")
    recipes = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    assert len(recipes) >= 15
    named = set()
    for number, recipe in enumerate(recipes):
        file = tmp_path / f"{number}.yaml"
        file.write_text(recipe)
        # A method that was not published for fine-tuning names itself only.
        config = make_config({"model": "roberta-base", "task": "glue/rte", **read_yaml(file)})
        find_task(str(config.task))
        named.update(method.name for method in resolve_settings(config, AutoConfig.for_model("roberta")).regularizers)
    not_a_recipe = {"structure_mask", "supertickets"}  # a matrix for each example; several trainings
    assert named | not_a_recipe == set(METHODS)
    for method in METHODS:
        assert f"(methods/{method}.md)" in text or method in ("attention_layerdrop", "scheduled_dropout")
