"""DropConnect compared with its equation: weights, their mean, gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.func import functional_call

from attendrop import DropConnect, Engine, Progress
from helpers import zoo


@pytest.mark.parametrize("kind", ["bert", "gpt2", "mpnet"])
def test_weights_and_gradients_match_the_equation(kind: str) -> None:
    p = 0.3
    model, batch = zoo.make_model(kind, dropout=False).double().train(), zoo.make_batch(kind)
    true = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with Engine(model, [DropConnect(p=p)]) as engine:
        for _ in range(2):  # two micro-batches, one draw
            with engine.micro_batch(batch) as inputs:
                outputs = model(**inputs)
                engine.loss(outputs).backward()
                inside = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        engine.before_optimizer()
        assert all(torch.equal(parameter, true[name]) for name, parameter in model.named_parameters())

    masks = {name: (weight != 0).double() for name, weight in inside.items() if not torch.equal(weight, true[name])}
    leaves = {name: weight.clone().requires_grad_() for name, weight in true.items()}
    dropped = {n: masks[n] * w / (1 - p) if n in masks else w for n, w in leaves.items()}
    for name in masks:
        torch.testing.assert_close(inside[name], dropped[name], rtol=1e-12, atol=0)
    expected = functional_call(model, dropped, (), batch)
    torch.testing.assert_close(outputs.loss, expected.loss, rtol=1e-12, atol=1e-12)
    gradients = torch.autograd.grad(2 * expected.loss, list(leaves.values()), allow_unused=True)
    for (name, parameter), gradient in zip(model.named_parameters(), gradients, strict=True):
        if gradient is not None:
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-9, atol=1e-12, msg=name)
    kept = torch.cat([mask.flatten() for mask in masks.values()])
    assert abs(kept.mean() - 0.7) < 5 * (0.21 / len(kept)) ** 0.5
    assert not any("classifier" in name or "lm_head" in name or "embed" in name for name in masks)


def test_mean_of_the_dropped_weights_is_the_true_weight() -> None:
    p, steps, name = 0.4, 120, "bert.encoder.layer.1.output.dense.weight"
    model = zoo.make_model("bert").train()
    true = model.get_parameter(name).detach().clone()
    total: Tensor = torch.zeros_like(true)
    with Engine(model, [DropConnect(p=p)], seed=2) as engine:
        for step in range(steps):
            engine.begin_step(Progress(step=step, total_steps=steps))
            total += model.get_parameter(name).detach()
    deviations = (total / steps - true) / (true * (p / (1 - p) / steps) ** 0.5)
    assert deviations.abs().max() < 5
    assert abs(deviations.square().mean() - 1) < 5 * (2 / true.numel()) ** 0.5


def test_lora_adapters_are_dropped() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["query"], init_lora_weights=False)
    model = peft.get_peft_model(zoo.make_model("bert"), config).train()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with Engine(model, [DropConnect(p=0.5)]) as engine:
        engine.begin_step()
        changed = {name for name, weight in model.named_parameters() if not torch.equal(weight, before[name])}
    assert len(changed) == 4
    assert all(".lora_A." in name or ".lora_B." in name for name in changed)
    assert all(torch.equal(weight, before[name]) for name, weight in model.named_parameters())


def test_p_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"DropConnect\.p is 1\.0; it must be below 1"):
        DropConnect(p=1.0)
    with pytest.raises(ValueError, match=r"DropConnect\.p is 'much'; it must be a number from 0 to 1"):
        DropConnect(p="much")
