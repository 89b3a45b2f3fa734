"""Re-initialisation: which weights become new, how they are distributed, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BertForSequenceClassification

from attendrop import Engine, Mixout, Progress, Reinit
from helpers import zoo
from helpers.training import same_parameters, train


def weights(model: Any) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


def changed(model: Any, method: Reinit, **where: int) -> set[str]:
    before = weights(model)
    with Engine(model.train(), method, **where) as engine:
        engine.begin_step()
    return {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}


def linear(prefix: str, names: set[str]) -> bool:
    return all(name.startswith(prefix) for name in names)


@pytest.mark.parametrize("from_files", [False, True])
def test_last_blocks_and_the_pooler_get_the_initialisation_of_the_model(from_files: bool, tmp_path: Path) -> None:
    model = zoo.make_model("bert")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 1.0  # unlike any initial value
    if from_files:  # transformers marks weights that come from files, and does not initialise them
        model.save_pretrained(tmp_path)
        model = BertForSequenceClassification.from_pretrained(tmp_path)
    names = changed(model, Reinit(blocks=1))
    expected = {n for n in weights(model) if n.startswith(("bert.encoder.layer.1.", "bert.pooler."))}
    assert names == expected
    dense = model.bert.encoder.layer[1].intermediate.dense
    assert not dense.bias.any()
    assert torch.equal(model.bert.encoder.layer[1].output.LayerNorm.weight, torch.ones(32))
    deviation = model.config.initializer_range
    assert dense.weight.std().item() == pytest.approx(deviation, rel=0.1)
    assert dense.weight.mean().abs().item() < 5 * deviation / dense.weight.numel() ** 0.5


def test_pooler_can_stay() -> None:
    assert linear("bert.encoder.layer.1.", changed(zoo.make_model("bert"), Reinit(1, pooler=False)))


def test_last_blocks_of_an_encoder_decoder_model_are_the_decoders() -> None:
    assert linear("model.decoder.layers.1.", changed(zoo.make_model("bart"), Reinit(1)))


def test_draws_depend_on_the_seed_and_not_on_the_process_or_the_global_generator() -> None:
    models = []
    for seed, rank in ((1, 0), (1, 1), (2, 0)):
        model = zoo.make_model("bert")
        torch.manual_seed(100 + rank)
        state = torch.get_rng_state()
        changed(model, Reinit(1), seed=seed, rank=rank, world=2)
        assert torch.equal(torch.get_rng_state(), state)
        models.append(model)
    assert same_parameters(models[0], models[1])
    assert not same_parameters(models[0], models[2])


def test_only_the_first_step_of_a_new_run_changes_weights() -> None:
    model, method = zoo.make_model("bert").train(), Reinit(1)
    before = weights(model)
    with Engine(model, method) as engine:
        engine.begin_step(Progress(step=3, total_steps=9))
    with Engine(model, method) as engine:
        method.load_state({}, {"done": True})
        engine.begin_step()
    assert all(torch.equal(before[name], parameter) for name, parameter in model.named_parameters())


def test_order_with_mixout_does_not_matter(tmp_path: Path) -> None:
    runs = [train(tmp_path, "bert", methods)[0] for methods in ([Reinit(1), Mixout(0.5)], [Mixout(0.5), Reinit(1)])]
    assert same_parameters(*runs)


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("bert", {"blocks": 3}, "Reinit.blocks is 3; it must be at most 2, the blocks of"),
        ("albert", {"blocks": 1}, "uses one block several times, so Reinit cannot choose the last ones"),
    ],
)
def test_unsupported_models_are_refused(kind: str, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Engine(zoo.make_model(kind), Reinit(**fields))


def test_frozen_blocks_are_refused() -> None:
    model = zoo.make_model("bert")
    model.bert.requires_grad_(False)
    with pytest.raises(ValueError, match="is not trained; train all weights of these blocks, without LoRA"):
        Engine(model, Reinit())


@pytest.mark.parametrize("value", [-1, 0.5, "all", True])
def test_blocks_out_of_range_are_refused(value: Any) -> None:
    with pytest.raises(ValueError, match=r"Reinit\.blocks is .*; it must be a whole number of at least 0"):
        Reinit(value)
