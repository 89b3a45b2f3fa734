"""NoisyTune: the distribution of the noise, the weights that get it, and when it is added."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from attendrop import Engine, Mixout, NoisyTune, Progress
from helpers import zoo
from helpers.training import same_parameters, train


def noised(kind: str = "bert", strength: float = 0.3, **where: int) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """The weights before and during the first step."""
    model = zoo.make_model(kind).train()
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with Engine(model, [NoisyTune(strength)], **where) as engine:
        engine.begin_step()
    return before, {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


@pytest.mark.parametrize(("kind", "head"), [("bert", "classifier"), ("gpt2", None), ("llama", "lm_head")])
def test_noise_is_uniform_and_scaled_by_the_standard_deviation(kind: str, head: str | None) -> None:
    before, after = noised(kind)
    units = []
    for name, weight in before.items():
        values = weight.double().flatten().tolist()
        mean = sum(values) / len(values)
        deviation = (sum((v - mean) ** 2 for v in values) / (len(values) - 1)) ** 0.5
        difference = (after[name] - weight).double()
        if (head is not None and name.startswith(head)) or deviation == 0:
            assert torch.equal(after[name], weight)
            continue
        units.append((difference / deviation).flatten())
    draws = torch.cat(units)
    n = len(draws)
    assert n > 15_000
    assert draws.abs().max() < 0.15 + 1e-3  # rounding, of weights that are large beside their deviation
    assert abs(draws.mean()) < 5 * 0.3 / (12 * n) ** 0.5
    assert abs(draws.var() / (0.3**2 / 12) - 1) < 0.02
    for edge in (-0.1, 0.0, 0.1):
        share = (draws < edge).double().mean().item()
        assert share == pytest.approx((edge + 0.15) / 0.3, abs=0.02)


def test_noise_depends_on_the_seed_and_not_on_the_process() -> None:
    first, second, other = (noised(seed=seed, rank=rank, world=2)[1] for seed, rank in ((1, 0), (1, 1), (2, 0)))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_noise_is_added_once_and_not_when_a_run_is_resumed() -> None:
    model = zoo.make_model("bert").train()
    method = NoisyTune(0.5)
    with Engine(model, [method], steps_per_epoch=3) as engine:
        engine.begin_step()
        after = [parameter.detach().clone() for parameter in model.parameters()]
        for step in range(3):
            engine.begin_step(Progress(step=step, total_steps=3))
        tensors, values = method.state()
    with Engine(model, [method]) as engine:
        engine.begin_step(Progress(step=7, total_steps=9))
    with Engine(model, [method]) as engine:  # a loop that counts its steps from 0 again
        method.load_state(tensors, values)
        engine.begin_step()
    assert all(torch.equal(a, b) for a, b in zip(after, model.parameters(), strict=True))


def test_order_with_mixout_does_not_matter(tmp_path: Path) -> None:
    runs = [
        train(tmp_path, "bert", regularizers)[0]
        for regularizers in ([NoisyTune(0.5), Mixout(0.5)], [Mixout(0.5), NoisyTune(0.5)], [Mixout(0.5)])
    ]
    assert same_parameters(runs[0], runs[1])
    assert not same_parameters(runs[0], runs[2])


def test_mixout_uses_the_noisy_weights() -> None:
    model = zoo.make_model("bert").train()
    with Engine(model, [Mixout(0.5), NoisyTune(0.5)], seed=1) as engine:
        engine.begin_step()
        pretrained = engine.regularizers[0].state()[0]
    _, noisy = noised(strength=0.5, seed=1)
    assert len(pretrained) == 13
    assert all(torch.equal(weight, noisy[name]) for name, weight in pretrained.items())
    assert all(torch.equal(weight, noisy[name]) for name, weight in model.named_parameters())


@pytest.mark.parametrize("strength", [-0.1, 1.5, "much", True])
def test_strength_out_of_range_is_refused(strength: object) -> None:
    with pytest.raises(ValueError, match=r"NoisyTune\.strength is .*; it must be a number from 0 to 1"):
        NoisyTune(strength)  # type: ignore[arg-type]
