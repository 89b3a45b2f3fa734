"""The supervised contrastive loss compared with the equation of the paper by loops."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from attendrop import R3F, Engine, LabelSmoothing, RDrop, RegularizedTrainer, SupCon
from attendrop.methods.supcon import contrastive
from helpers import zoo
from helpers.data import make_arguments, make_examples, pad
from helpers.literal import giving
from helpers.precision import assert_same_gradients, assert_same_numbers

WEIGHT, TAU = 0.7, 0.3


def contrastive_by_hand(texts: list[torch.Tensor], labels: list[int]) -> torch.Tensor:
    """Sum over the examples."""
    unit = [h / h.square().sum().sqrt() for h in texts]
    total = torch.zeros((), dtype=texts[0].dtype)
    for i, own in enumerate(labels):
        partners = [j for j, other in enumerate(labels) if j != i and other == own]
        for j in partners:
            below = sum(((unit[i] @ unit[k]) / TAU).exp() for k in range(len(labels)) if k != i)
            total = total - (((unit[i] @ unit[j]) / TAU).exp() / below).log() / len(partners)
    return total


def texts_by_hand(kind: str, model: Any, batch: dict[str, torch.Tensor]) -> tuple[Any, list[torch.Tensor]]:
    """The outputs, and each text as the vector that the head reads."""
    states: list[torch.Tensor] = []
    last = {"mpnet": "mpnet.encoder.layer.1"}.get(kind, "bert.encoder.layer.1")
    with giving(model.get_submodule(last), lambda x: states.append(x) or x):
        outputs = model(**batch)
    if kind in ("bert", "mpnet"):
        return outputs, [x[0] for x in states[0]]
    mask = batch["attention_mask"].flatten(0, -2)
    means = [x[m.bool()].sum(0) / m.sum() for x, m in zip(states[0], mask, strict=True)]
    if kind == "pooled":
        return outputs, means
    pairs = [x / x.norm() for x in means]
    return outputs, [torch.cat([u, v, (u - v).abs(), u * v]) for u, v in zip(pairs[::2], pairs[1::2], strict=True)]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kind", ["bert", "mpnet", "pooled", "pooled_pairs"])
def test_whole_step_matches_the_equation(kind: str, reduction: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind, size=6)
    batch["labels"] = torch.tensor([0, 1, 0, 2, 1, 0])  # class 2 has one example
    literal = copy.deepcopy(model)
    with Engine(model, [SupCon(WEIGHT, TAU, reduction)]) as engine, engine.micro_batch(batch) as inputs:
        total = engine.loss(model(**inputs))
        total.backward()
    outputs, texts = texts_by_hand(kind, literal, batch)
    distances = contrastive_by_hand(texts, batch["labels"].tolist())
    expected = (1 - WEIGHT) * outputs.loss + WEIGHT * distances / (1 if reduction == "sum" else 6)
    expected.backward()
    assert_same_numbers(total, expected)
    assert_same_gradients(model, literal)


@pytest.mark.usefixtures("float64")
def test_views_are_examples_of_the_same_class() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    literal = copy.deepcopy(model)
    with Engine(model, [SupCon(WEIGHT, TAU), RDrop()]) as engine, engine.micro_batch(batch) as inputs:
        total = engine.loss(model(**inputs))
    twice = {name: torch.cat([x, x]) for name, x in batch.items()}
    outputs, texts = texts_by_hand("bert", literal, twice)
    distances = contrastive_by_hand(texts, twice["labels"].tolist()) / len(texts)
    assert_same_numbers(total, (1 - WEIGHT) * outputs.loss + WEIGHT * distances)


@pytest.mark.usefixtures("float64")
def test_ignored_and_lonely_examples_add_nothing() -> None:
    h = torch.nn.functional.normalize(torch.randn(5, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    labels = torch.tensor([0, 0, 1, -100, 0])
    terms = contrastive(h, labels, TAU)
    assert terms[2] == terms[3] == 0
    counted = [0, 1, 2, 4]
    assert_same_numbers(terms.sum(), contrastive_by_hand([h[i] for i in counted], [0, 0, 1, 0]))
    one = h[:1].clone().requires_grad_()
    contrastive(one, labels[:1], TAU).sum().backward()
    assert torch.equal(one.grad, torch.zeros_like(one))


def test_term_is_computed_in_float32() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    with Engine(model, [SupCon(1.0, 0.05)]) as engine, engine.micro_batch(batch) as inputs:
        exact = engine.loss(model(**inputs)).item()
        with torch.autocast("cpu", torch.bfloat16):
            loss = engine.loss(model(**inputs))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact, rel=0.1)


def test_unsupported_heads_losses_and_fields_are_refused(tmp_path: Path) -> None:
    for kind in ("regression", "multilabel", "token", "choice", "span", "gpt2"):
        with pytest.raises(ValueError, match=r"SupCon compares texts by their class, and .* head"):
            Engine(zoo.make_model(kind), [SupCon()])
    for other in (R3F(), LabelSmoothing()):
        with pytest.raises(ValueError, match="both replace a part of the model's own loss; choose one"):
            Engine(zoo.make_model("bert"), [SupCon(), other])
    Engine(zoo.make_model("bert"), [SupCon(weight=0), LabelSmoothing()]).close()
    args = make_arguments(tmp_path, max_steps=1, label_smoothing_factor=0.1)
    with pytest.raises(ValueError, match=r"SupCon\.weight replaces a share of the model's own loss, and another"):
        RegularizedTrainer(
            model=zoo.make_model("bert"),
            args=args,
            train_dataset=make_examples("bert", 4),
            data_collator=pad,
            regularizers=[SupCon()],
        ).train()
    with pytest.raises(ValueError, match=r"SupCon\.weight is 2; it must be from 0 to 1"):
        SupCon(weight=2)
    with pytest.raises(ValueError, match=r"SupCon\.tau is 0; it must be a number above 0"):
        SupCon(tau=0)
    with pytest.raises(ValueError, match=r"SupCon\.reduction is 'max'; it must be one of 'mean', 'sum'"):
        SupCon(reduction="max")
