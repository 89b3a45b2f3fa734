"""Settings are resolved into new objects, in the order user, preset, other settings, recipe, default."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoConfig

from attendrop.errors import UserError
from attendrop.lab.runs import RunConfig, make_config
from attendrop.lab.runs.resolve import resolve_recipe, resolve_settings
from attendrop.lab.tasks import Task

MODEL = AutoConfig.for_model("bert", hidden_size=384)


def config_of(**settings: Any) -> RunConfig:
    return make_config({"model": "m", "task": "glue/rte", "use_cpu": True, "pooling": "model", **settings})


def data_of(examples: int) -> Any:
    return SimpleNamespace(train=range(examples), task=Task("t", "classification", ("text",), "label", ("no", "yes")))


def test_resolved_configuration_has_every_value_and_the_given_one_stays() -> None:
    config = config_of(preset="recommended")
    before = dataclasses.asdict(config)
    resolved = resolve_settings(config, MODEL)
    assert "learning_rate" in resolved.config.training  # of the preset
    complete = resolve_recipe(resolved, data_of(300), MODEL)
    assert dataclasses.asdict(config) == before
    assert "num_train_epochs" not in resolved.config.training
    assert resolved.arguments.num_train_epochs == 3  # the default of the Trainer
    assert complete.recipe.settings == {"num_train_epochs": 32.0}
    assert complete.config.training["num_train_epochs"] == complete.arguments.num_train_epochs == 32.0
    assert [type(method).__name__ for method in complete.regularizers] == ["ADDrop"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        complete.config.max_length = 5  # type: ignore[misc]


def test_recipe_leaves_what_the_user_has_set() -> None:
    config = config_of(num_train_epochs=2, learning_rate=1e-3)
    resolved = resolve_recipe(resolve_settings(config, MODEL), data_of(300), MODEL)
    assert not resolved.recipe.choices
    assert not resolved.recipe.sentences
    assert (resolved.arguments.num_train_epochs, resolved.arguments.learning_rate) == (2, 1e-3)
    (choice,) = resolve_recipe(
        resolve_settings(config_of(num_train_epochs=2), MODEL), data_of(300), MODEL
    ).recipe.choices
    assert (choice.setting, choice.value) == ("learning_rate", 4e-5)
    assert choice.reason == "a learning rate of 4e-05 for a model of width 384"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, ("epoch", True)),
        ({"eval_strategy": "steps", "eval_steps": 7}, ("steps", True)),
        ({"eval_strategy": "no"}, ("no", False)),
        ({"eval_strategy": "steps", "eval_steps": 7, "save_strategy": "no", "load_best_model_at_end": False},
         ("no", False)),
    ],
)  # fmt: skip
def test_defaults_follow_from_other_settings(given: dict[str, Any], expected: tuple[str, bool]) -> None:
    resolved = resolve_settings(config_of(**given), MODEL)
    training = resolved.config.training
    assert (training["save_strategy"], training["load_best_model_at_end"]) == expected
    assert resolved.arguments.save_strategy == expected[0]
    if expected[0] == "steps":
        assert training["save_steps"] == resolved.arguments.save_steps == 7


def test_wrong_methods_and_arguments_are_one_sentence() -> None:
    for wrong, message in (({"method": ["addrp"]}, "did you mean 'addrop'"), ({"method": ["addrop:p=2"]}, "p is 2")):
        with pytest.raises(UserError, match=message):
            resolve_settings(config_of(**wrong), MODEL)
    with pytest.raises(UserError, match="a training argument is not allowed"):
        resolve_settings(config_of(eval_strategy="steps", save_strategy="epoch"), MODEL)
