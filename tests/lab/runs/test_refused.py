"""What would train something else than was meant is refused: settings that are unknown or given twice, odd weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from attendrop.errors import UserError
from attendrop.lab import tasks
from attendrop.lab.runs.run_yaml import read_yaml
from attendrop.lab.runs.settings import make_config
from attendrop.lab.studies.data_sets import read_data_sets
from attendrop.lab.studies.design import parse_contender
from attendrop.methods import parse_method
from helpers.cli_tools import save_encoder, sentences


def test_a_sampling_strategy_that_the_trainer_does_not_know_is_refused() -> None:
    given = {"model": "m", "task": "glue/rte", "train_sampling_strategy": "group-by-length"}
    with pytest.raises(UserError, match=r"train_sampling_strategy is 'group-by-length' \(did you mean 'group_by_len"):
        make_config(given)


@pytest.mark.parametrize("value", ["[[1]]", [[1]], "fast"])
def test_a_mode_of_torch_compile_that_does_not_exist_is_refused(value: object) -> None:
    with pytest.raises(
        UserError, match=r"torch_compile_mode is .* it must be (one of default, reduce-overhead, max-|text)"
    ):
        make_config({"model": "m", "task": "glue/rte", "torch_compile_mode": value})


@pytest.mark.parametrize("name", ["model", "train_file", "validation_file", "test_file"])
@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://me:SECRET@host/a.csv", "https://me:…@host/a.csv"),
        ("https://SECRET@host/a.csv", "https://…@host/a.csv"),
        ("s3:/me:SECRET@host/a.csv", "s3:/me:…@host/a.csv"),  # as `Path` writes it
    ],
)
def test_a_url_with_a_login_is_refused_and_not_shown(name: str, url: str, shown: str) -> None:
    settings = {"model": "m", "train_file": "a.csv", name: url}
    with pytest.raises(UserError, match=f"^{name} is '{re.escape(shown)}', with a password or a token") as refused:
        make_config(settings)
    assert "SECRET" not in str(refused.value)


@pytest.mark.parametrize(
    ("read", "text", "name"),
    [
        (parse_method, "addrop:p=0.3,q=0.1,p=0.5", "p"),
        (parse_contender, "plain@learning_rate=1e-5,learning-rate=1e-4", "learning_rate"),
        (lambda text: read_data_sets([text]), "reviews=a.csv@text=one,text=two", "text"),
    ],
)
def test_a_value_that_is_given_twice_is_refused(read: Callable[[str], object], text: str, name: str) -> None:
    with pytest.raises(ValueError, match=f"has '?{name}'? several times"):
        read(text)


@pytest.mark.parametrize(
    ("text", "name", "line"),
    [
        ("model: a\ntask: b\nmodel: c\n", "model", 3),
        ("learning_rate: 1\nlearning-rate: 2\n", "learning-rate", 2),
        ("optim_args:\n  a: 1\n  a: 2\n", "a", 3),
    ],
)
def test_a_name_that_stands_twice_in_a_configuration_is_refused(
    text: str, name: str, line: int, tmp_path: Path
) -> None:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    with pytest.raises(UserError, match=f"has {name} a second time, in line {line}"):
        read_yaml(path)
    path.write_text("a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}\n")
    assert read_yaml(path) == {"a": {"b": 1}, "c": {"b": 1}, "d": {"b": 1, "e": 2}}


# ---- weights ---------------------------------------------------------------------------------------------------------

TASK = tasks.Task(
    name="t", kind="classification", hub=None, hub_config=None, text=("text",), label="label", metrics=("accuracy",),
    splits={}, labels=("bad", "good"),
)  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return save_encoder(tmp_path / "model", [text for text, _ in sentences(8, seed=1)])


def rewrite(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, {"format": "pt"})


def test_a_model_whose_tensors_have_other_names_is_refused(folder: Path) -> None:
    rewrite(folder, lambda weights: {f"net.{name}": tensor for name, tensor in weights.items()})
    with pytest.raises(UserError, match=r"has no weights for a .*Bert.* \(its tensors are called net\."):
        tasks.load_model(folder, TASK)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_no_numbers_are_named_before_training(value: float, folder: Path) -> None:
    name = "encoder.layer.1.output.dense.weight"

    def damage(weights: dict[str, Tensor]) -> dict[str, Tensor]:
        weights[name][3, 5] = value
        return weights

    rewrite(folder, damage)
    with pytest.raises(UserError, match=rf"has weights that are no numbers \(NaN or infinite, in bert\.{name}\)"):
        tasks.load_model(folder, TASK)


def test_a_model_without_its_pooler_or_head_is_read(folder: Path) -> None:
    rewrite(folder, lambda weights: {name: tensor for name, tensor in weights.items() if "pooler" not in name})
    notes: list[str] = []
    model = tasks.load_model(folder, TASK, notes=notes)
    assert torch.equal(
        dict(model.named_parameters())["bert.encoder.layer.0.output.dense.weight"],
        load_file(folder / "model.safetensors")["encoder.layer.0.output.dense.weight"],
    )
