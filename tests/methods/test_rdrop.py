"""R-Drop compared with two manual passes: divergence by loops over examples and positions, loss and gradients."""

from __future__ import annotations

import copy
import logging
import math
import re
from pathlib import Path

import pytest
import torch

from attendrop import ADDrop, Engine, Progress, RDrop, RegularizedTrainer, parse_method
from attendrop.methods._shared.divergence import Pair, jensen_shannon, symmetric_kl
from helpers import zoo
from helpers.data import make_arguments
from helpers.literal import (
    FIRST_BLOCK,
    FixedNoise,
    kl,
    mean_over_rows,
    reading,
    rows_of,
)
from helpers.precision import assert_same_gradients, assert_same_numbers

HEADS = ["multilabel", "regression", "token", "choice", "masked", *zoo.POOLED]


def both(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return (kl(p, q) + kl(q, p)) / 2


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("reduction", ["batchmean", "sum"])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "bart", "mpnet", *HEADS])
def test_whole_step_matches_two_manual_passes(kind: str, reduction: str) -> None:
    alpha = 0.7
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    rows = batch["input_ids"].numel() // batch["input_ids"].shape[-1]
    noise = torch.randn(2 * rows, 1, 32, generator=torch.Generator().manual_seed(0)) * 0.3
    with Engine(model, [RDrop(alpha, reduction), FixedNoise(noise)]) as engine, engine.micro_batch(batch) as inputs:
        total = engine.loss(model(**inputs))
        total.backward()

    views = []
    for half in noise.chunk(2):
        block = literal.get_submodule(FIRST_BLOCK.get(kind, FIRST_BLOCK["bert"]))
        with reading(block, lambda x, half=half: x * (1 + half)):
            views.append(literal(**batch))
    one, two = views
    divergence = mean_over_rows(kind, one.logits, two.logits, batch["labels"], both)
    assert divergence > 1e-4
    if reduction == "sum":
        divergence = divergence * (
            one.logits.numel() if kind.endswith("regression") else len(rows_of(kind, one.logits, batch["labels"]))
        )
    expected = (one.loss + two.loss) / 2 + alpha * divergence
    expected.backward()
    assert_same_numbers(total, expected)
    assert_same_gradients(model, literal)


@pytest.mark.usefixtures("float64")
def test_divergences_match_values_computed_by_hand() -> None:
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.25, 0.5])
    # ½ ln 2 − ¼ ln 2 both ways; M = (⅜, ¼, ⅜)
    assert symmetric_kl(p.log(), q.log()).item() == pytest.approx(0.25 * math.log(2), rel=1e-12)
    middle = 0.5 * math.log(4 / 3) + 0.25 * math.log(2 / 3)
    assert jensen_shannon(p.log(), q.log()).item() == pytest.approx(middle, rel=1e-12)
    assert jensen_shannon(p.log(), p.log()).item() == pytest.approx(0, abs=1e-15)


def test_divergence_of_bfloat16_logits_is_computed_in_float32() -> None:
    model, batch = zoo.make_model("bert").to(torch.bfloat16).train(), zoo.make_batch("bert")
    with Engine(model, [RDrop(alpha=3)]) as engine, engine.micro_batch(batch) as inputs:
        outputs = model(**inputs)
        assert outputs.logits.dtype == torch.bfloat16
        penalty = engine.loss(outputs, torch.zeros(()))
        one, two = outputs.logits.double().chunk(2)
        expected = 3 * mean_over_rows("bert", one, two, batch["labels"], both)
        assert penalty.dtype == torch.float32
        # float32 is off by about 1e-6, bfloat16 by 1e-2
        assert penalty.item() == pytest.approx(expected.item(), rel=1e-4)


def test_divergence_of_extreme_logits_stays_finite() -> None:
    z = torch.tensor([[1e4, -1e4, 0.0]], requires_grad=True)
    for kind in ("kl", "js"):
        for head in ("classification", "multilabel"):
            value = Pair(head, torch.cat([z, -z]), None, None).divergence(kind)
            (gradient,) = torch.autograd.grad(value, z)
            assert value.isfinite()
            assert gradient.isfinite().all()


@pytest.mark.usefixtures("float64")
def test_rdrop_composes_with_addrop() -> None:
    """Both views use the mask of AD-DROP, and ordinary dropout makes them differ."""
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    addrop = ADDrop(p=0.5, q=0.5, cross_tuning=False)
    with Engine(model, [addrop, RDrop(alpha=2)]) as engine, engine.micro_batch(batch) as inputs:
        keep = engine.seams.plan.keep[0]
        assert torch.equal(keep[:3], keep[3:])
        assert not keep.all()
        outputs = model(**inputs)
        one, two = outputs.logits.chunk(2)
        expected = outputs.loss + 2 * mean_over_rows("bert", one, two, batch["labels"], both)
        assert_same_numbers(engine.loss(outputs), expected)
        assert expected > outputs.loss + 1e-4


@pytest.mark.usefixtures("float64")
def test_alpha_follows_a_schedule() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    with Engine(model, [RDrop(alpha="0..2")]) as engine:
        results = []
        for step in (0, 5, 10):
            engine.begin_step(Progress(step=step, total_steps=10))
            torch.manual_seed(0)
            with engine.micro_batch(batch) as inputs:
                assert inputs["input_ids"].shape[0] == 6
                outputs = model(**inputs)
                results.append((engine.loss(outputs) - outputs.loss).item())
    assert results[0] == 0
    assert results[2] == pytest.approx(2 * results[1], rel=1e-9)
    assert (RDrop(alpha=0).views, RDrop(alpha="0..1").views) == (1, 2)


def test_identical_views_are_logged_once(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    from attendrop.methods import rdrop

    monkeypatch.setattr(rdrop, "logger", logging.getLogger("here"))
    for dropout, count in ((False, 1), (True, 1)):  # the second adds nothing
        model, batch = zoo.make_model("gpt2", dropout=dropout).train(), zoo.make_batch("gpt2")
        with Engine(model, [RDrop()]) as engine:
            for _ in range(2):
                with engine.micro_batch(batch) as inputs:
                    engine.loss(model(**inputs))
        assert sum("views of the first batch are equal" in record.message for record in caplog.records) == count


@pytest.mark.parametrize("name", ["rdrop", "hiddencut", "r3f"])
def test_span_head_is_refused_when_the_trainer_is_created(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="compares the predictions of two views and is not defined for a span head"):
        RegularizedTrainer(
            model=zoo.make_model("span"), args=make_arguments(tmp_path), regularizers=[parse_method(name)]
        )


def test_fields_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"RDrop\.alpha is -1; it must be from 0\."):
        RDrop(alpha=-1)
    with pytest.raises(ValueError, match=r"RDrop\.reduction is 'mean'; it must be one of 'batchmean', 'sum'"):
        RDrop(reduction="mean")


@pytest.mark.usefixtures("float64")
def test_recipe_has_the_ratio_of_the_paper() -> None:
    """The paper adds the two losses: CE₁ + CE₂ + α · KL with α = 1 is twice ½ (CE₁ + CE₂) + ½ · KL."""
    index = (Path(__file__).parents[2] / "docs/paper-index.md").read_text(encoding="utf-8")
    (recipe,) = re.findall(r'"(rdrop:[^"]*)"', index)
    method = parse_method(recipe)
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    noise = torch.randn(6, 1, 32, generator=torch.Generator().manual_seed(0))
    with Engine(model, [method, FixedNoise(noise)]) as engine, engine.micro_batch(batch) as inputs:
        outputs = model(**inputs)
        loss = engine.loss(outputs)
    one, two = outputs.logits.log_softmax(-1).chunk(2)
    losses = [torch.nn.functional.nll_loss(x, batch["labels"]) for x in (one, two)]
    paper = losses[0] + losses[1] + 1.0 * symmetric_kl(one, two).mean()
    assert_same_numbers(2 * loss, paper)
