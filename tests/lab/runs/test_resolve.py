"""Settings are resolved into new objects, in the order user, preset, other settings, recipe, default."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

import pytest
from datasets import Dataset
from transformers import AutoConfig, TrainingArguments

from attendrop.errors import UserError
from attendrop.lab.runs import RunConfig, make_config
from attendrop.lab.runs.presets import paper_layers
from attendrop.lab.runs.recipe import choose_recipe
from attendrop.lab.runs.resolve import resolve_recipe, resolve_settings
from attendrop.lab.tasks import Task

MODEL = AutoConfig.for_model("bert", hidden_size=384)


def config_of(**settings: Any) -> RunConfig:
    return make_config({"model": "m", "task": "glue/rte", "use_cpu": True, "pooling": "model", **settings})


def data_of(*counts: int, kind: str = "classification") -> Any:
    """Data with so many training examples of each class; of two classes of one size if there is one number."""
    sizes = (counts[0] - counts[0] // 2, counts[0] // 2) if len(counts) == 1 else counts
    labels = [label for label, size in enumerate(sizes) for _ in range(size)]
    values = [[label] for label in labels] if kind in ("multilabel", "token_classification") else labels
    names = tuple(f"class {number}" for number in range(len(sizes)))
    task = Task("t", kind, ("text",), "label", names)
    return SimpleNamespace(train=Dataset.from_dict({"label": values}), task=task)


def test_resolved_configuration_has_every_value_and_the_given_one_stays() -> None:
    config = config_of(method=["addrop"], preset="paper")
    before = dataclasses.asdict(config)
    resolved = resolve_settings(config, MODEL)
    assert "learning_rate" in resolved.config.training  # of the preset
    complete = resolve_recipe(resolved, data_of(300), MODEL)
    assert dataclasses.asdict(config) == before
    assert complete.config.training["num_train_epochs"] == complete.arguments.num_train_epochs == 50
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


@pytest.mark.filterwarnings("error::FutureWarning")
@pytest.mark.parametrize("prefix", ["gradient", "activation"])
def test_checkpointing_has_the_name_that_transformers_knows(prefix: str) -> None:
    settings = {f"{prefix}_checkpointing": True, f"{prefix}_checkpointing_kwargs": {"use_reentrant": False}}
    if prefix == "activation" and not hasattr(TrainingArguments, "activation_checkpointing"):
        with pytest.raises(UserError, match="there is no setting 'activation_checkpointing'"):
            config_of(**settings)
        return
    arguments = resolve_settings(config_of(**settings), MODEL).arguments
    assert arguments.gradient_checkpointing
    assert arguments.gradient_checkpointing_kwargs == {"use_reentrant": False}


def test_wrong_methods_and_arguments_raise_one_line_errors() -> None:
    for wrong, message in (({"method": ["addrp"]}, "did you mean 'addrop'"), ({"method": ["addrop:p=2"]}, "p is 2")):
        with pytest.raises(UserError, match=message):
            resolve_settings(config_of(**wrong), MODEL)
    with pytest.raises(UserError, match="a training argument is not allowed"):
        resolve_settings(config_of(eval_strategy="steps", save_strategy="epoch"), MODEL)


def recipe_of(data: Any, model: Any = MODEL, **settings: Any) -> Any:
    return resolve_recipe(resolve_settings(config_of(**settings), model), data, model).recipe


def test_classes_of_different_sizes_have_weights_unless_the_user_says_otherwise() -> None:
    recipe = recipe_of(data_of(120, 30, 10))
    assert recipe.settings["class_weights"] == ["sqrt"]
    assert recipe.choices[-1].reason == (
        "class weights by the square root of the counts, because the largest class has 12 times the examples of the "
        "smallest"
    )
    assert recipe.sentences[0].endswith("and --class-weights")
    assert recipe_of(data_of(120, 0, 60, 45)).settings.keys() == {"num_train_epochs", "learning_rate"}
    for given in ({"class_weights": ["none"]}, {"class_weights": ["balanced"]}, {"focal_gamma": 2.0},
                  {"balanced_sampling": True}):  # fmt: skip
        assert "class_weights" not in recipe_of(data_of(120, 10), **given).settings
    assert "class_weights" not in recipe_of(data_of(120, 10, kind="multilabel")).settings


def test_methods_that_need_the_loss_of_the_model_get_no_weights() -> None:
    recipe = recipe_of(data_of(120, 10), method=["smart"])
    assert "class_weights" not in recipe.settings
    assert recipe.remarks == (
        "the largest class has 12 times the examples of the smallest, and no class weights are chosen, because SMART "
        "needs the model's own loss",
    )


def test_papers_have_no_weights() -> None:
    model = AutoConfig.for_model("bert")
    resolved = resolve_settings(config_of(preset="paper"), model)
    assert resolved.config.class_weights == ["none"]
    assert "class_weights" not in resolve_recipe(resolved, data_of(120, 10), model).recipe.settings


@pytest.mark.parametrize(
    ("task", "layers"),
    [
        ("glue/rte", "all"),
        ("RTE", "all"),
        ("sts-b", "first"),
        ("conll2003", "all"),
        ("wmt16/en-ro", "encoder"),
        (None, "first"),
    ],
)
def test_layers_of_the_paper_for_every_name_of_a_task(task: str | None, layers: str) -> None:
    assert paper_layers(task) == layers


def test_preset_paper_knows_the_aliases_of_a_task() -> None:
    model = AutoConfig.for_model("bert")
    one, other = (
        resolve_settings(config_of(preset="paper", task=name, output_dir="out"), model) for name in ("glue/rte", "RTE")
    )
    assert one.config.method == other.config.method
    assert one.config.training == other.config.training


def test_many_classes_have_more_epochs_and_pairs_encoded_apart_fewer() -> None:
    many = recipe_of(data_of(*[5] * 77))
    assert many.settings["num_train_epochs"] == 40
    assert "40 epochs (1,000 steps) for 385 examples, because few examples of 77 classes need" in many.sentences[0]
    assert recipe_of(data_of(*[5] * 24)).settings["num_train_epochs"] == 24
    assert recipe_of(data_of(*[2] * 48, kind="multilabel")).settings["num_train_epochs"] == 40
    resolved = resolve_settings(config_of(), MODEL)
    apart = resolved.config.replaced({"pairs": "separate"})
    recipe = choose_recipe(apart, resolved.arguments, data_of(300), MODEL)
    assert recipe.settings["num_train_epochs"] == 4
    assert "because pairs that are encoded apart need few passes" in recipe.sentences[0]
