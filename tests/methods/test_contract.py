"""What every method guarantees, on several tiny models. The cases come from the table in helpers/settings.py."""

from __future__ import annotations

import dataclasses
import functools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch

from attendrop import METHODS, Engine, Loop, load_regularizers
from attendrop.methods import make_method
from helpers import zoo
from helpers.precision import assert_same_numbers
from helpers.settings import SETTINGS
from helpers.traces import traces
from helpers.training import same_parameters, train

ROOT = Path(__file__).parents[2]
CASES = [(method, kind) for method, setting in SETTINGS.items() for kind in setting.models]


def cases_but(*kinds: str) -> Any:
    """All cases; those of these kinds are among the slow tests."""
    marked = [pytest.param(*case, marks=pytest.mark.slow if case[1] in kinds else ()) for case in CASES]
    return pytest.mark.parametrize(("method", "kind"), marked)


# GPT-2 is causal as Llama is, and BART is trained in a test of its own below.
each_case = cases_but("gpt2")
each_case_in_short = cases_but("gpt2", "bart")


@functools.cache
def plainly_trained(kind: str) -> Any:
    """The model after training on the same data with the stock Trainer."""
    with tempfile.TemporaryDirectory() as folder:
        return train(Path(folder), kind, None)[0]


@each_case
def test_zero_strength_is_exactly_plain_fine_tuning(method: str, kind: str, tmp_path: Path) -> None:
    if error := SETTINGS[method].zero_error:
        with pytest.raises(ValueError, match=error):
            train(tmp_path, kind, [make_method(method, {})], strength="zero")
        return
    plain = plainly_trained(kind)
    model, _ = train(tmp_path, kind, [make_method(method, SETTINGS[method].zero)], strength="zero")
    assert same_parameters(model, plain)


@each_case_in_short
def test_evaluation_is_unchanged(method: str, kind: str) -> None:
    model, batch = zoo.make_model(kind).eval(), zoo.make_batch(kind)
    before = model(**batch).logits
    engine = Engine(model, [make_method(method, SETTINGS[method].usual)])
    assert torch.equal(before, model(**batch).logits)
    engine.close()


@each_case_in_short
def test_training_leaves_no_traces_and_resumes_exactly(method: str, kind: str, tmp_path: Path) -> None:
    regularizers = [make_method(method, SETTINGS[method].usual)]
    whole, trainer = train(tmp_path / "a", kind, regularizers, save_strategy="steps", save_steps=4)
    assert trainer.state.global_step == 6
    assert all(torch.tensor(entry["loss"]).isfinite() for entry in trainer.state.log_history if "loss" in entry)
    assert not same_parameters(whole, plainly_trained(kind))
    assert traces(whole) == []
    # by its name: the Trainer saves one at the end too, from which nothing would be left to train
    checkpoint = str(tmp_path / "a" / "checkpoint-4")
    resumed, trainer = train(tmp_path / "a", kind, regularizers, resume=checkpoint, save_strategy="no")
    assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry][-2:] == [5, 6]
    assert same_parameters(whole, resumed)
    assert load_regularizers(tmp_path / "a" / "checkpoint-4") == regularizers


@pytest.mark.usefixtures("float64")
@each_case_in_short
def test_gradient_checkpointing_gives_the_same_gradients(method: str, kind: str) -> None:
    if kind in zoo.NO_CHECKPOINTING:
        pytest.skip("transformers does not support checkpointing here")
    batch = zoo.make_batch(kind)
    batch |= SETTINGS[method].columns(batch, "usual")
    gradients = []
    for checkpointing in (False, True):
        model = zoo.make_model(kind).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        loop = Loop(optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
        engine = Engine(model, [make_method(method, SETTINGS[method].usual)], loop=loop)
        torch.manual_seed(9)
        with engine.micro_batch(batch) as inputs:
            engine.loss(model(**inputs)).backward()
        engine.close()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        if a is not None or b is not None:
            assert_same_numbers(a, b)


@each_case_in_short
def test_lora_trains_only_its_adapters(method: str, kind: str, tmp_path: Path) -> None:
    model = zoo.make_model(kind)
    SETTINGS[method].before_lora(model)
    if not kind.endswith("_lora"):
        model = zoo.with_adapters(model)
    if error := SETTINGS[method].lora_error:
        with pytest.raises(ValueError, match=error):
            train(tmp_path, kind, [make_method(method, SETTINGS[method].usual)], model=model)
        return
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trained, _ = train(tmp_path, kind, [make_method(method, SETTINGS[method].usual)], model=model)
    changed = {name for name, p in trained.named_parameters() if not torch.equal(p, before[name])}
    assert changed
    assert all("lora" in name or "classifier" in name for name in changed)


@each_case_in_short
@pytest.mark.parametrize("steps", [20, pytest.param(200, marks=pytest.mark.slow)])
def test_bfloat16_at_the_highest_strength_stays_finite(method: str, kind: str, steps: int) -> None:
    model, batch = zoo.make_model(kind).train(), zoo.make_batch(kind)
    batch |= SETTINGS[method].columns(batch, "strongest")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loop = Loop(optimizer=optimizer, examples=lambda source, count, draws: zoo.make_batch(kind))
    regularizer = make_method(method, SETTINGS[method].strongest)
    losses = []
    with Engine(model, [regularizer], epochs=1, steps_per_epoch=steps, loop=loop) as engine:
        for _ in range(steps):
            with torch.autocast("cpu", torch.bfloat16), engine.micro_batch(batch) as inputs:
                loss = engine.loss(model(**inputs))
                loss.backward()
            engine.before_optimizer()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            engine.after_optimizer()
            optimizer.zero_grad()
            losses.append(loss.detach())
    assert torch.stack(losses).isfinite().all()
    assert all(p.isfinite().all() for p in model.parameters())


# Mixup of hidden states and losses on distances refuse language models, LP-FT models without a head of their own, LoRA
# Dropout models without adapters. With frozen embeddings, a step that skips all blocks has nothing to train.
NOT_ON_BART = ("hidden_mixup", "lp_ft", "lora_dropout", "freeze", "supcon", "softtriple")


@pytest.mark.parametrize("method", [method for method in SETTINGS if method not in NOT_ON_BART])
def test_model_with_its_own_layer_skipping_trains(method: str) -> None:
    """BART draws in every forward whether it runs a block (`encoder_layerdrop`): a block may have no record."""
    model, batch = zoo.make_model("bart").train(), zoo.make_batch("bart")
    model.model.encoder.layerdrop = model.model.decoder.layerdrop = 0.5
    batch |= SETTINGS[method].columns(batch, "usual")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loop = Loop(optimizer=optimizer, examples=lambda source, count, draws: zoo.make_batch("bart"))
    with Engine(model, make_method(method, SETTINGS[method].usual), loop=loop) as engine:
        for seed in range(6):
            torch.manual_seed(seed)
            with engine.micro_batch(batch) as inputs:
                engine.loss(model(**inputs)).backward()
            engine.before_optimizer()
            optimizer.step()
            engine.after_optimizer()
            optimizer.zero_grad()
    assert all(parameter.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("method", SETTINGS)
def test_configuration_survives_json(method: str) -> None:
    for fields in (SETTINGS[method].usual, SETTINGS[method].zero, SETTINGS[method].strongest):
        regularizer = make_method(method, fields)
        plain = json.loads(json.dumps(regularizer.to_dict()))
        assert make_method(plain.pop("method"), plain) == regularizer


def test_every_method_has_its_files_and_entries() -> None:
    """Its module, its line in `__init__.pyi`, its row of settings, its test, its card."""
    stub = (ROOT / "src/attendrop/__init__.pyi").read_text(encoding="utf-8")
    for name, cls in METHODS.items():
        assert cls.name == name
        assert f"from .methods.{name} import {cls.__name__} as {cls.__name__}\n" in stub
        assert name in SETTINGS
        assert (ROOT / "tests/methods" / f"test_{name}.py").is_file()
        assert (ROOT / "docs/methods" / f"{name}.md").is_file()
    modules = {path.stem for path in (ROOT / "src/attendrop/methods").iterdir() if not path.name.startswith("_")}
    assert modules == set(METHODS)
    assert set(SETTINGS) == set(METHODS)


WITH_LAYERS = [
    name for name, cls in METHODS.items() if any(field.name == "layers" for field in dataclasses.fields(cls))
]
# HiddenCut needs self attention in a block, and a structure mask describes the input.
REFUSED_PARTS = {("hiddencut", "cross"), ("structure_mask", "decoder"), ("structure_mask", "cross")}


@pytest.mark.parametrize("part", ["encoder", "decoder", "cross"])
@pytest.mark.parametrize("method", WITH_LAYERS)
def test_layers_may_name_a_part_of_an_encoder_decoder_model(method: str, part: str) -> None:
    """Only the attention of that part, and the blocks that it is in, are changed."""
    model, batch = zoo.make_model("bart").train(), zoo.make_batch("bart")
    batch |= SETTINGS[method].columns(batch, "usual")
    regularizer = make_method(method, {**SETTINGS[method].usual, "layers": part})
    if (method, part) in REFUSED_PARTS:
        with pytest.raises(
            ValueError, match=rf"{type(regularizer).__name__}\.layers is '{part}', which selects no self"
        ):
            Engine(model, [regularizer])
        return
    with Engine(model, [regularizer]) as engine, engine.micro_batch(batch) as inputs:
        plan, sites = engine.seams.plan, engine.seams.sites
        chosen = [site for site in sites if site.part == part]
        assert [site for site in sites if plan.touches(site.index)] == chosen
        assert len(chosen) == 2
        assert {*plan.edits, *plan.ffn, *plan.inner, *plan.skip} <= {site.block for site in chosen}
        engine.loss(model(**inputs)).backward()


@pytest.mark.parametrize("method", WITH_LAYERS)
def test_layers_cannot_name_a_part_of_a_model_with_one_stack(method: str) -> None:
    regularizer = make_method(method, {**SETTINGS[method].usual, "layers": "encoder"})
    with pytest.raises(ValueError, match=rf"{type(regularizer).__name__}\.layers is 'encoder'"):
        Engine(zoo.make_model("bert"), [regularizer])
