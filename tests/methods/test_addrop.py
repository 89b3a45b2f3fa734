"""AD-DROP compared with slow reference versions: the mask, the masked attention, the whole step."""

from __future__ import annotations

import copy
from fractions import Fraction
from pathlib import Path

import pytest
import torch
from transformers import AttentionInterface
from transformers.models.bert.modeling_bert import eager_attention_forward

from attendrop import ADDrop, Engine, Plan, Progress, attribute, bind
from attendrop.kernels.attribution_mask import candidates, keep_mask
from attendrop.kernels.draws import uniform
from attendrop.methods import addrop
from attendrop.methods.addrop import random_keep_mask
from attendrop.random import key_of
from helpers import oracles, zoo
from helpers.precision import assert_as_exact_as_stock, assert_same_gradients, assert_same_numbers

P_Q = [(0.3, 0.3), (0.9, 0.5), (0.1, 1.0), (1.0, 1.0), (0.0, 0.7), (0.7, 0.0), (0.55, 0.4)]


def rows(causal: bool = False, ties: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(3)
    scores = torch.randn(4, 2, 11, 11, generator=g)
    if ties:
        scores = (scores * 2).round()
    valid = torch.ones(4, 1, 1, 11, dtype=torch.bool)
    for b, n in enumerate((11, 10, 4, 1)):
        valid[b, ..., n:] = False
    if causal:
        valid = valid & torch.ones(11, 11, dtype=torch.bool).tril()
    return scores, valid


@pytest.mark.parametrize("direction", ["high", "low"])
@pytest.mark.parametrize(("p", "q"), P_Q)
@pytest.mark.parametrize(("causal", "ties"), [(False, False), (True, False), (False, True)])
def test_keep_mask_matches_a_slow_sort(p: float, q: float, causal: bool, ties: bool, direction: str) -> None:
    scores, valid = rows(causal, ties)
    draws = torch.rand(scores.shape, generator=torch.Generator().manual_seed(4))
    keep, region = oracles.literal_keep(scores, valid, p, q, draws, direction)
    assert torch.equal(candidates(scores, valid, p, direction), region)
    assert torch.equal(keep_mask(scores, valid, p, q, draws, direction), keep)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("p", [0.0, 0.1, 0.3, 0.5, 0.9, 1.0])
def test_number_of_candidates_per_row_is_exact(p: float, dtype: torch.dtype) -> None:
    _, valid = rows()
    # all entries of a row differ in every precision
    scores = torch.stack([torch.randperm(11, generator=torch.Generator().manual_seed(i)) for i in range(88)])
    scores = scores.view(4, 2, 11, 11).to(dtype)
    region = candidates(scores, valid, p)
    assert not (region & ~valid).any()
    for b, n in enumerate((11, 10, 4, 1)):
        assert (region[b].sum(-1) == n - n * (1 - Fraction(str(p))) // 1).all()
        low = candidates(scores, valid, p, "low")[b]
        assert (low.sum(-1) == n * Fraction(str(p)) // 1).all()


def test_measured_drop_rate_equals_q() -> None:
    g = torch.Generator().manual_seed(0)
    scores, valid = torch.randn(8, 4, 64, 64, generator=g), torch.ones(1, 1, 1, 64, dtype=torch.bool)
    draws = uniform(key_of(0, 1, 2), torch.arange(8), (4, 64, 64))
    region = candidates(scores, valid, 0.4)
    for q in (0.1, 0.5, 0.9):
        dropped = ~keep_mask(scores, valid, 0.4, q, draws)
        n = region.sum().item()
        assert abs(dropped.sum().item() / n - q) < 4 * (q * (1 - q) / n) ** 0.5
        assert not (dropped & ~region).any()
    dropped = ~random_keep_mask(tuple(scores.shape), valid, 0.4, 0.5, draws)
    assert abs(dropped.float().mean() - 0.2) < 4 * (0.16 / dropped.numel()) ** 0.5


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_fully_dropped_row_outputs_the_mean_of_the_valid_values(attention: str, dtype: torch.dtype) -> None:
    """Forward and gradients match the formula: no NaN, no weight on padding, no gradient for query and key."""
    model = zoo.make_model("bert", dropout=False, attention=attention).to(dtype)
    module = model.bert.encoder.layer[0].attention.self
    seams = bind(model)
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, 6, 8, generator=g).to(dtype).requires_grad_() for _ in range(3))
    valid = torch.ones(2, 1, 1, 6, dtype=torch.bool)
    valid[1, ..., 4:] = False
    keep = torch.rand(2, 4, 6, 6, generator=g) > 0.5
    keep[:, 1] = False  # a head in which every row is dropped
    keep[1, :, 2] = False
    mask = (
        valid
        if attention == "sdpa"
        else torch.zeros(2, 1, 1, 6, dtype=dtype).masked_fill(~valid, torch.finfo(dtype).min)
    )
    weight = torch.randn(2, 4, 6, 8, generator=g)

    def results(name: str) -> tuple[torch.Tensor, ...]:
        attend = AttentionInterface()[name] if name != "eager" else eager_attention_forward
        output, _ = attend(module, q, k, v, mask, dropout=0.0, scaling=8**-0.5, is_causal=False)
        output = output.transpose(1, 2)
        return output, *torch.autograd.grad((output.float() * weight).sum(), (q, k, v))

    def truth(keep: torch.Tensor) -> tuple[torch.Tensor, ...]:
        exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
        output = oracles.literal_masked_attention(*exact, valid, keep)
        return output, *torch.autograd.grad((output * weight).sum(), exact)

    with seams.applied(Plan(keep={0: keep})):
        actual = results(f"attendrop_{attention}")
    stock = results(attention)
    assert all(x.isfinite().all() for x in actual)
    assert (actual[1][:, 1] == 0).all()
    for ours, theirs in zip(
        zip(actual, truth(keep), strict=True), zip(stock, truth(torch.ones_like(keep)), strict=True), strict=True
    ):
        assert_as_exact_as_stock(ours, theirs)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "bart", "t5", "albert", "mpnet", "deberta_v2"])
def test_loss_and_gradients_are_finite_when_everything_is_dropped(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    engine = Engine(model, [ADDrop(p=1, q=1, layers="all", cross_tuning=False)])
    with engine.micro_batch(batch) as inputs:
        loss = model(**inputs).loss
        loss.backward()
    assert loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    engine.close()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", zoo.ARCHITECTURES + zoo.HEADS + zoo.POOLED)
def test_whole_step_matches_a_slow_reference_step(kind: str) -> None:
    """Attribution, mask and second pass, computed with eager attention, give the same loss and gradients."""
    p, q = 0.5, 0.6
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    scores = oracles.literal_ga(kind, copy.deepcopy(model), batch)

    engine = Engine(model, [ADDrop(p=p, q=q, layers="all", cross_tuning=False)], seed=11)
    engine.begin_step(Progress(step=5, total_steps=10))
    with engine.micro_batch(batch) as inputs:
        plan = engine.seams.plan
        actual = model(**inputs)
        engine.loss(actual).backward()
    for site, keep in plan.keep.items():
        score = scores[site]
        valid = _valid(kind, batch, engine.seams.sites[site], score)
        draws = uniform(key_of(11, 5, site, "addrop"), torch.arange(score.shape[0]), tuple(score.shape[1:]))
        expected = keep_mask(score, valid, p, q, draws)
        assert (keep == expected)[valid.expand_as(keep)].all()
    engine.close()

    literal = _MaskedLiteral(plan.keep)
    oracle = copy.deepcopy(model)
    oracle.zero_grad()
    literal.attach(oracle)
    outputs = oracle(**batch)
    outputs.loss.backward()
    assert_same_numbers(actual.loss, outputs.loss)
    assert_same_gradients(model, oracle)


def _valid(kind: str, batch: dict, site, score: torch.Tensor) -> torch.Tensor:
    queries, keys = score.shape[-2:]
    decoder_self = kind in ("gpt2", "llama", "qwen2") or ("decoder" in site.stack and site.kind == "self")
    valid = torch.ones(1, 1, queries, keys, dtype=torch.bool)
    if decoder_self:
        valid = valid.tril()
    if "attention_mask" in batch and not ("decoder" in site.stack and site.kind == "self"):
        valid = valid & batch["attention_mask"].view(-1, 1, 1, keys).bool()
    if kind == "modernbert" and site.layer % 2 == 1:
        near = (torch.arange(queries)[:, None] - torch.arange(keys)).abs() <= 3
        valid = valid & near
    return valid


class _MaskedLiteral(oracles.LiteralAttention):
    """Eager attention whose map is multiplied by the keep mask and renormalised."""

    def __init__(self, keep: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self.keep = keep

    def _see(self, attention: torch.Tensor) -> torch.Tensor:
        keep = self.keep[len(self.maps)]
        self.maps.append(attention)
        kept = attention * keep
        total = kept.sum(-1, keepdim=True)
        valid = attention > 0
        even = valid / valid.sum(-1, keepdim=True)
        return torch.where(total > 0, kept / total.where(total > 0, 1.0), even)


def test_zero_strength_skips_the_probe() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    for method in (ADDrop(p=0, cross_tuning=False), ADDrop(q=0, cross_tuning=False)):
        engine = Engine(model, [method])
        with engine.micro_batch(batch):
            assert not engine.seams.plan
        engine.close()


def test_low_direction_drops_positions_with_low_attribution() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    scores = attribute(model, batch, layers="first")[0]
    means = {}
    for direction in ("high", "low"):
        engine = Engine(model, [ADDrop(p=0.4, q=1, direction=direction, cross_tuning=False)])
        with engine.micro_batch(batch):
            means[direction] = scores[~engine.seams.plan.keep[0]].mean()
        engine.close()
    assert means["high"] > scores.mean() > means["low"]


def test_scheduled_strength_follows_training_progress() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert", size=8, length=20)
    engine = Engine(model, [ADDrop(p=1, q="0..1", cross_tuning=False)])
    rates = []
    for step in (0, 5, 10):
        engine.begin_step(Progress(step=step, total_steps=10), measure=True)
        with engine.micro_batch(batch) as inputs:
            model(**inputs).loss.backward()
        engine.before_optimizer()
        engine.after_optimizer()
        metrics = engine.pop_metrics()
        rates.append(metrics["addrop/drop_rate_layer_0"].item() if metrics else 0.0)
        if metrics:
            assert metrics["addrop/candidate_share_layer_0"] == 1
            assert abs(metrics["addrop/dropped_mass_layer_0"] - rates[-1]) < 0.1
    assert rates[0] == 0
    assert abs(rates[1] - 0.5) < 0.05
    assert rates[2] == 1
    engine.close()


def test_recipe_has_the_settings_of_the_public_code() -> None:
    index = (Path(__file__).parents[2] / "docs/paper-index.md").read_text(encoding="utf-8")
    recipe = index.partition("## AD-DROP")[2].partition("```yaml\n")[2].partition("```")[0]
    lines = {line.partition("#")[0].strip() for line in recipe.splitlines()}
    assert {"patience: 5", "max_grad_norm: 0", "adam_epsilon: 1e-6", "train_sampling_strategy: random"} <= lines


@pytest.mark.parametrize("attribution", ["ga", "aa", "rd"])
@pytest.mark.parametrize("kind", ["bert", "llama", "t5"])
def test_metrics_are_the_same_however_many_queries_are_measured_at_once(
    kind: str, attribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = []
    for at_once in (1 << 26, 1):
        monkeypatch.setattr(addrop, "_MEASURED_AT_ONCE", at_once)
        method = ADDrop(p=0.5, q=0.5, layers="all", cross_tuning=False, attribution=attribution)
        engine = Engine(zoo.make_model(kind, dropout=False).train(), [method])
        engine.begin_step(Progress(), measure=True)
        with engine.micro_batch(zoo.make_batch(kind)) as inputs:
            engine.model(**inputs).loss.backward()
        engine.before_optimizer()
        engine.after_optimizer()
        results.append({name: value.item() for name, value in engine.pop_metrics().items()})
        engine.close()
    assert results[0] == pytest.approx(results[1])
    assert all(0 < value < 1 for value in results[0].values())
    assert any("candidate_share" in name for name in results[0]) == (attribution != "rd")
