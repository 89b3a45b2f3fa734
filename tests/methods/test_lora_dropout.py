"""LoRA Dropout compared with adapters whose rows and columns are deleted by hand."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from attendrop import R3F, Engine, LoRADropout, Progress, RDrop
from attendrop.kernels.draws import uniform
from attendrop.random import key_of
from helpers import zoo
from helpers.precision import assert_same_gradients, assert_same_numbers
from helpers.traces import traces

TARGETS = {"bert": ["query", "dense"], "gpt2": ["c_attn"], "llama": ["q_proj", "down_proj"]}


def layers_of(model: Any) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "lora_A") and len(module.lora_A)]


def dropped(model: Any, view: int, p: float, rescale: bool) -> tuple[Any, list[tuple[torch.Tensor, torch.Tensor]]]:
    """A copy of the model whose factors have lost rows and columns, and what is left of each, as factors."""
    changed, masks = copy.deepcopy(model), []
    for site, layer in enumerate(layers_of(changed)):
        a, b = layer.lora_A["default"].weight, layer.lora_B["default"].weight
        scale = 1 / (1 - p) if rescale else 1.0
        columns = uniform(key_of(5, 2, site, "lora_dropout A"), torch.tensor([view]), (a.shape[1],)) >= p
        rows = uniform(key_of(5, 2, site, "lora_dropout B"), torch.tensor([view]), (b.shape[0],)) >= p
        with torch.no_grad():
            a.mul_(columns * scale)
            b.mul_((rows * scale).T)
        masks.append((columns * scale, (rows * scale).T))
    return changed, masks


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("kind", "rescale"), [("bert", True), ("gpt2", True), ("llama", False)])
def test_step_matches_adapters_without_rows_and_columns(kind: str, rescale: bool) -> None:
    p, samples = 0.4, 3
    model = zoo.with_adapters(zoo.make_model(kind, dropout=False), TARGETS[kind]).train()
    batch, literal = zoo.make_batch(kind), copy.deepcopy(model)
    with Engine(model, [LoRADropout(p, samples, rescale)], seed=5) as engine:
        engine.begin_step(Progress(step=2, total_steps=10))
        with engine.micro_batch(batch) as inputs:
            total = engine.loss(model(**inputs))
            total.backward()
    assert traces(model) == []

    losses = []
    for view in range(samples):
        changed, masks = dropped(literal, view, p, rescale)
        loss = changed(**batch).loss / samples
        loss.backward()
        losses.append(loss.detach())
        for layer, other, (columns, rows) in zip(layers_of(literal), layers_of(changed), masks, strict=True):
            for name, mask in (("lora_A", columns), ("lora_B", rows)):
                weight, actual = (getattr(each, name)["default"].weight for each in (layer, other))
                gradient = actual.grad * mask
                weight.grad = gradient if weight.grad is None else weight.grad + gradient
    assert_same_numbers(total, sum(losses))
    assert_same_gradients(model, literal)
    assert abs(total - literal(**batch).loss) > 1e-3


def test_models_without_ordinary_adapters_are_refused() -> None:
    with pytest.raises(ValueError, match=r"BertForSequenceClassification has no LoRA layer that is trained"):
        Engine(zoo.make_model("bert"), [LoRADropout()])
    frozen = zoo.make_model("bert_lora")
    for parameter in frozen.parameters():
        parameter.requires_grad_(False)
    with pytest.raises(ValueError, match=r"has no LoRA layer that is trained"):
        Engine(frozen, [LoRADropout()])
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, target_modules=["query"], use_dora=True)
    dora = peft.get_peft_model(zoo.make_model("bert"), config)
    with pytest.raises(ValueError, match=r"query of BertForSequenceClassification is a variant of LoRA such as DoRA"):
        Engine(dora, [LoRADropout()])
    assert traces(dora) == []


def test_methods_that_compare_views_and_fields_out_of_range_are_refused() -> None:
    model, batch = zoo.make_model("bert_lora").train(), zoo.make_batch("bert")
    with pytest.raises(ValueError, match=r"RDrop compares two views and LoRADropout draws 3; set LoRADropout\.samples"):
        Engine(model, [LoRADropout(samples=3), RDrop()])
    with pytest.raises(ValueError, match=r"R3F trains on the first view alone and LoRADropout on both"):
        Engine(model, [LoRADropout(samples=2), R3F()])
    for samples in (1, 2):
        with Engine(model, [LoRADropout(samples=samples), RDrop()]) as engine, engine.micro_batch(batch) as inputs:
            engine.loss(model(**inputs)).backward()
    with pytest.raises(ValueError, match=r"LoRADropout\.p is 1; it must be from 0 to below 1"):
        LoRADropout(p=1)
    with pytest.raises(ValueError, match=r"LoRADropout\.samples is 0; it must be a whole number of at least 1"):
        LoRADropout(samples=0)
