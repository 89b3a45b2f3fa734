"""SCAL compared with three manual passes: the adversarial step, both losses, and the contrastive term by loops."""

from __future__ import annotations

import copy

import pytest
import torch

from attendrop import SCAL, ADDrop, Engine, RDrop
from attendrop.methods.scal import adversarial, info_nce, pooled
from helpers import zoo
from helpers.literal import FIRST_BLOCK, LAST_BLOCK, giving, reading
from helpers.precision import assert_same_gradients, assert_same_numbers

EPSILON, ALPHA, TAU = 0.4, 0.6, 0.3


def pooled_by_hand(kind: str, hidden: torch.Tensor, batch: dict[str, torch.Tensor]) -> list[torch.Tensor]:
    pooled = []
    for b in range(len(hidden)):
        if kind == "bart":
            tokens = [t for t in range(hidden.shape[1]) if batch["labels"][b, t] != -100]
            pooled.append(sum(hidden[b, t] for t in tokens) / len(tokens))
        else:
            n = int(batch["attention_mask"][b].sum())
            pooled.append(hidden[b, n - 1 if kind in ("gpt2", "llama") else 0])
    return pooled


def contrast_by_hand(one: list[torch.Tensor], two: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros((), dtype=one[0].dtype)
    for i, a in enumerate(one):
        logits = torch.stack([(a @ b) / (a.norm() * b.norm()) / TAU for b in two])
        total = total - (logits[i].exp() / logits.exp().sum()).log()
    return total / len(one)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "bart", "mpnet"])
def test_whole_step_matches_three_manual_passes(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    with Engine(model, [SCAL(EPSILON, ALPHA, TAU)]) as engine, engine.micro_batch(batch) as inputs:
        assert all(p.grad is None for p in model.parameters())  # the probe gives none
        total = engine.loss(model(**inputs))
        total.backward()

    first, last = (literal.get_submodule(names[kind]) for names in (FIRST_BLOCK, LAST_BLOCK))
    read: list[torch.Tensor] = []
    with reading(first, lambda x: read.append(x) or x):
        (gradient,) = torch.autograd.grad(literal(**batch).loss, read[0])
    moved = torch.stack([EPSILON * g / g.square().sum().sqrt() for g in gradient])
    states: list[torch.Tensor] = []
    with giving(last, lambda x: states.append(x) or x):
        one = literal(**batch)
        with reading(first, lambda x: x + moved):
            two = literal(**batch)
    contrast = contrast_by_hand(*(pooled_by_hand(kind, hidden, batch) for hidden in states))
    assert two.loss > one.loss + 1e-3  # it is adversarial
    expected = (one.loss + two.loss + ALPHA * contrast) / 2
    expected.backward()
    assert_same_numbers(total, expected)
    assert_same_gradients(model, literal)


@pytest.mark.parametrize(
    "kind", ["multilabel", "regression", "token", "choice", "span", "masked", "albert", "vit", "t5", "modernbert"]
)
def test_every_head_and_other_architectures_train(kind: str) -> None:
    model, batch = zoo.make_model(kind).train(), zoo.make_batch(kind)
    with Engine(model, [SCAL(tau=1.0)]) as engine, engine.micro_batch(batch) as inputs:
        outputs = model(**inputs)
        loss = engine.loss(outputs)
        loss.backward()
        assert loss > outputs.loss
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.usefixtures("float64")
def test_adversarial_step_of_an_example_without_gradient_is_zero() -> None:
    gradient = torch.randn(3, 4, 5)
    gradient[1] = 0
    actual = adversarial(gradient, 2.0)
    assert_same_numbers(actual.flatten(1).norm(dim=1), torch.tensor([2.0, 0.0, 2.0]))
    assert torch.equal(actual[1], torch.zeros(4, 5))


def test_pooling_ignores_padding_on_either_side() -> None:
    hidden = torch.arange(8.0).view(2, 4, 1)
    real = torch.tensor([[True, True, False, False], [False, True, True, True]])
    assert pooled(hidden, real, "first").flatten().tolist() == [0, 5]
    assert pooled(hidden, real, "last").flatten().tolist() == [1, 7]
    assert pooled(hidden, real, "mean").flatten().tolist() == [0.5, 6]


def test_contrastive_term_is_computed_in_float32() -> None:
    h = torch.randn(4, 8, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        actual = info_nce(h, h.flip(0), TAU)
    rows = list(h.double())
    assert actual.dtype == torch.float32
    # float32 is off by about 1e-6, bfloat16 by 1e-2
    assert actual.item() == pytest.approx(contrast_by_hand(rows, rows[::-1]).item(), rel=1e-4)
    assert info_nce(h[:1], h[1:2], TAU) == 0  # a batch of one has no negatives


def test_probe_does_not_change_the_random_state_of_the_training_pass() -> None:
    """The probe restores the random state after its dropout: without a step the loss is that of two plain views."""
    losses = []
    for methods in ([SCAL(epsilon=1e-30, alpha=0)], [RDrop(alpha=1e-30)]):
        model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
        torch.manual_seed(3)
        with Engine(model, methods) as engine, engine.micro_batch(batch) as inputs:
            losses.append(engine.loss(model(**inputs)).item())
    assert losses[0] == losses[1]


def test_scal_composes_with_addrop_and_rdrop() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    methods = [ADDrop(p=0.5, q=0.5, cross_tuning=False), RDrop(), SCAL()]
    with Engine(model, methods) as engine, engine.micro_batch(batch) as inputs:
        assert engine.seams.plan.keep[0].shape[0] == 6
        engine.loss(model(**inputs)).backward()


def test_fields_out_of_range_are_refused() -> None:
    assert (SCAL(epsilon=0, alpha=0).views, SCAL(epsilon=0).views, SCAL(alpha=0).views) == (1, 2, 2)
    with pytest.raises(ValueError, match=r"SCAL\.epsilon is -1; it must be from 0\."):
        SCAL(epsilon=-1)
    with pytest.raises(ValueError, match=r"SCAL\.alpha is -1"):
        SCAL(alpha=-1)
    with pytest.raises(ValueError, match=r"SCAL\.tau is 0; it must be a number above 0"):
        SCAL(tau=0)
