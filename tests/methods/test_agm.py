"""Attribution-guided masking compared with manual passes: the attribution, the masked tokens, and both losses."""

from __future__ import annotations

import copy

import pytest
import torch

from attendrop import AGM, ADDrop, Engine, LabelSmoothing, RDrop
from attendrop.kernels.draws import uniform
from attendrop.methods.agm import most_attributed
from attendrop.random import key_of
from helpers import zoo
from helpers.literal import FIRST_BLOCK, reading
from helpers.precision import assert_same_gradients, assert_same_numbers

WEIGHT, SHARE = 0.7, 0.4


def masked_by_hand(kind: str, scores: list[list[float]], mask: torch.Tensor) -> torch.Tensor:
    """The tokens that are masked, bool [B, L]."""
    masked = torch.zeros(mask.shape, dtype=torch.bool)
    for b, row in enumerate(mask):
        real = [t for t in range(len(row)) if row[t]]
        allowed = {"bert": real[1:], "llama": real[:-1]}.get(kind, real)
        count = max(1, int(SHARE * len(real) + 1e-9))
        for t in sorted(allowed, key=lambda t: -scores[b][t])[:count]:
            masked[b, t] = True
    return masked


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("by", ["gradient", "random"])
@pytest.mark.parametrize("kind", ["bert", "llama", "bart", "pooled"])
def test_whole_step_matches_manual_passes(kind: str, by: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    with Engine(model, [AGM(WEIGHT, SHARE, by)], seed=3) as engine, engine.micro_batch(batch) as inputs:
        assert all(p.grad is None for p in model.parameters())  # the probe gives none
        total = engine.loss(model(**inputs))
        total.backward()

    first = literal.get_submodule({**FIRST_BLOCK, "pooled": FIRST_BLOCK["bert"]}[kind])
    mask, read = batch["attention_mask"], []
    with reading(first, lambda x: read.append(x) or x):
        clean = literal(**batch).loss
    (gradient,) = torch.autograd.grad(clean, read[0], retain_graph=True)
    scores = gradient.square().sum(-1).sqrt()
    if by == "random":
        scores = uniform(key_of(3, 0, -1, "agm"), torch.arange(len(mask)), (1, 1, mask.shape[1])).reshape(mask.shape)
    gone = masked_by_hand(kind, scores.tolist(), mask)
    # A token that is masked is hidden from attention as padding is.
    hidden = {**batch, "attention_mask": mask * ~gone}
    if kind == "pooled":  # its head still averages over all real tokens
        with reading(first, lambda x: x.masked_fill(gone.unsqueeze(-1), 0)):
            states = literal.base_model(input_ids=batch["input_ids"], attention_mask=hidden["attention_mask"])[0]
        logits = literal.pooled_head(literal.features(states, mask))
        without = torch.nn.functional.cross_entropy(logits, batch["labels"])
    else:
        if kind == "llama":
            positions = torch.arange(mask.shape[1]).expand(mask.shape)
            hidden["position_ids"] = positions
        with reading(first, lambda x: x.masked_fill(gone.unsqueeze(-1), 0)):
            without = literal(**hidden).loss
    expected = clean + WEIGHT * without
    expected.backward()
    assert_same_numbers(total, expected)
    assert_same_gradients(model, literal)


@pytest.mark.usefixtures("float64")
def test_most_attributed_tokens_are_among_the_allowed_ones() -> None:
    attribution = torch.tensor([[9.0, 1.0, 5.0, 3.0, 8.0], [2.0, 1.0, 7.0, 7.0, 0.0]])
    real = torch.tensor([[True] * 4 + [False], [True] * 5])
    allowed = real.clone()
    allowed[:, 0] = False
    assert most_attributed(attribution, real, allowed, 0.5).int().tolist() == [[0, 0, 1, 1, 0], [0, 0, 1, 1, 0]]
    assert most_attributed(attribution, real, allowed, 0.01).sum(-1).tolist() == [1, 1]
    assert torch.equal(most_attributed(attribution, real, allowed, 1.0), allowed)


@pytest.mark.parametrize("kind", ["multilabel", "regression", "token", "choice", "vit", "t5", "albert"])
def test_every_head_trains(kind: str) -> None:
    model, batch = zoo.make_model(kind).train(), zoo.make_batch(kind)
    with Engine(model, [AGM(), ADDrop(cross_tuning=False)]) as engine, engine.micro_batch(batch) as inputs:
        engine.loss(model(**inputs)).backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_other_losses_views_heads_and_bad_fields_are_refused() -> None:
    assert (AGM().views, AGM(weight=0).views, AGM(share=0).views) == (2, 1, 1)
    for other in (RDrop(), LabelSmoothing()):
        with pytest.raises(ValueError, match="of which the first weighs the losses of its two views by itself"):
            Engine(zoo.make_model("bert"), [AGM(), other])
    with pytest.raises(ValueError, match="span head"):
        Engine(zoo.make_model("span"), [AGM()])
    with pytest.raises(ValueError, match=r"AGM\.share is 2; it must be from 0 to 1"):
        AGM(share=2)
    with pytest.raises(ValueError, match=r"AGM\.weight is -1"):
        AGM(weight=-1)
    with pytest.raises(ValueError, match=r"AGM\.by is 'attention'; it must be one of 'gradient', 'random'"):
        AGM(by="attention")
