"""Bi-Drop compared with two passes by hand: the mean gradient, the scores and the weights that are left out."""

from __future__ import annotations

import copy

import pytest
import torch

from attendrop import EMA, SAM, BiDrop, Engine, Loop, RDrop
from attendrop.methods.bi_drop import relative_size, stability
from helpers import zoo
from helpers.precision import assert_same_numbers


def literal_gradients(
    model: torch.nn.Module, batches: list[dict[str, torch.Tensor]], p: float, by: str
) -> dict[str, torch.Tensor]:
    """Every pass begins with the random state that the one before has left."""
    sums: list[dict[str, torch.Tensor]] = [{}, {}]
    for batch in batches:
        for of_pass in sums:
            model.zero_grad()
            model(**batch).loss.backward()
            for name, weight in model.named_parameters():
                if weight.grad is not None:
                    of_pass[name] = of_pass.get(name, 0) + weight.grad
    gradients = {name: (sums[0][name] + sums[1][name]) / 2 for name in sums[0]}
    scores: list[tuple[float, str, int]] = []
    weights = dict(model.named_parameters())
    for name, mean in gradients.items():
        if ".layer." in name:
            one, two, weight = (x.flatten().tolist() for x in (sums[0][name], sums[1][name], weights[name]))
            for i, g in enumerate(mean.flatten().tolist()):
                spread = ((one[i] - g) ** 2 + (two[i] - g) ** 2) ** 0.5 if by == "perturbation" else abs(weight[i])
                scores.append((abs(g) / spread if g != 0 and spread > 0 else float("inf") if g != 0 else 0.0, name, i))
    scores.sort(key=lambda x: x[0], reverse=True)
    for _, name, i in scores[round(p * len(scores)) :]:
        gradients[name].flatten()[i] = 0
    return gradients


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("by", ["perturbation", "scaling"])
def test_accumulated_step_matches_two_passes_by_hand(by: str) -> None:
    model = zoo.make_model("bert").train()
    batches = [zoo.make_batch("bert", seed=1), zoo.make_batch("bert", seed=2)]
    literal = copy.deepcopy(model)
    torch.manual_seed(5)
    with Engine(model, [BiDrop(0.3, by)]) as engine:
        for batch in batches:
            with engine.micro_batch(batch) as inputs:
                engine.loss(model(**inputs)).backward()
        engine.before_optimizer()
    torch.manual_seed(5)
    expected = literal_gradients(literal, batches, 0.3, by)
    zeros, inside = 0, 0
    for name, weight in model.named_parameters():
        if weight.grad is None:
            continue
        ours, theirs = weight.grad, expected[name]
        if ".layer." in name:
            # A gradient that is rounding alone, such as that of a key's bias, has no score to speak of.
            clear = theirs.abs().amax() > 1e-12
            zeros, inside = zeros + int((ours == 0).sum()), inside + ours.numel()
            if not clear and ours.abs().amax() < 1e-12:
                continue
        assert_same_numbers(ours, theirs, name)
    assert zeros / inside == pytest.approx(0.7, abs=0.01)


@pytest.mark.usefixtures("float64")
def test_scores_of_zero_gradients_and_of_agreement() -> None:
    first, mean = torch.tensor([3.0, 0.0, 2.0, 1.0]), torch.tensor([2.0, 0.0, 2.0, -1.0])
    assert_same_numbers(stability(mean, first)[[0, 3]], torch.tensor([2 / 2**0.5, 1 / 8**0.5]))
    assert stability(mean, first)[1] == 0
    assert stability(mean, first)[2] == float("inf")
    assert relative_size(mean, torch.tensor([4.0, 0.0, 0.0, 2.0])).tolist() == [0.5, 0.0, float("inf"), 0.5]


@pytest.mark.usefixtures("float64")
def test_passes_draw_different_dropout_and_the_heads_gradient_is_their_mean() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    literal = copy.deepcopy(model)
    torch.manual_seed(5)
    with Engine(model, [BiDrop(0.3)]) as engine:
        with engine.micro_batch(batch) as inputs:
            engine.loss(model(**inputs)).backward()
        engine.before_optimizer()
    torch.manual_seed(5)
    losses = [literal(**batch).loss for _ in range(2)]
    assert losses[0] != losses[1]
    (sum(losses) / 2).backward()
    assert_same_numbers(model.classifier.weight.grad, literal.classifier.weight.grad)


def test_a_step_without_gradients_in_the_blocks_passes() -> None:
    """With LayerDrop by the model itself a whole step may have none."""
    model, batch = zoo.make_model("bart").train(), zoo.make_batch("bart")
    model.model.encoder.layerdrop = model.model.decoder.layerdrop = 1.0
    with Engine(model, [BiDrop(0.3)], loop=Loop()) as engine:
        with engine.micro_batch(batch) as inputs:
            engine.loss(model(**inputs)).backward()
        engine.before_optimizer()
        engine.after_optimizer()


def test_other_methods_that_replace_weights_and_bad_fields_are_refused() -> None:
    model = zoo.make_model("bert")
    with pytest.raises(ValueError, match="BiDrop and SAM, of which the first compares the gradients of two passes"):
        Engine(model, [BiDrop(), SAM()])
    Engine(model, [BiDrop(p=1.0), SAM()]).close()
    Engine(model, [BiDrop(), EMA(), RDrop()]).close()
    for bad in (0, 1.5):
        with pytest.raises(ValueError, match=rf"BiDrop\.p is {bad}; it must be a number above 0 and at most 1"):
            BiDrop(p=bad)
    with pytest.raises(ValueError, match=r"BiDrop\.by is 'size'; it must be one of 'perturbation', 'scaling'"):
        BiDrop(by="size")
