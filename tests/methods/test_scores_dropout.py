"""Scores dropout and DropKey compared with their equation: drop rates, patterns, draws."""

from __future__ import annotations

import copy

import pytest
import torch

from attendrop import Engine, Progress, ScoresDropout
from attendrop.methods._shared.patterns import keep_pattern, shape_of_draws
from helpers import zoo
from helpers.methods import TwoViews
from helpers.oracles import ChangedAttention
from helpers.precision import assert_same_gradients, assert_same_numbers


def planned(method: ScoresDropout, kind: str = "bert", steps: int = 1, **sizes: int) -> list[dict[int, torch.Tensor]]:
    """The keep masks of several steps."""
    results = []
    with Engine(zoo.make_model(kind).train(), [method], seed=5) as engine:
        for step in range(steps):
            engine.begin_step(Progress(step=step, total_steps=steps))
            with engine.micro_batch(zoo.make_batch(kind, **sizes)):
                results.append(dict(engine.seams.plan.keep))
    return results


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "bart", "t5"])
@pytest.mark.parametrize("pattern", ["element", "column", "span"])
def test_forward_and_gradients_match_the_equation(kind: str, pattern: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    with Engine(model, [ScoresDropout(p=0.6, pattern=pattern, span=2)]) as engine, engine.micro_batch(batch) as inputs:
        keep = engine.seams.plan.keep
        actual = model(**inputs)
        actual.loss.backward()

    def change(call: int, scores: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        rows = []
        allowed = valid & keep[call].expand_as(valid)
        for s, ok, may in zip(*(x.reshape(-1, x.shape[-1]) for x in (scores, allowed, valid)), strict=True):
            if ok.any():
                e = torch.where(ok, (s - s[ok].max()).exp(), 0)
                rows.append(e / e.sum())
            else:
                rows.append(may / may.sum())
        return torch.stack(rows).view_as(scores)

    ChangedAttention(change).attach(literal)
    expected = literal(**batch)
    expected.loss.backward()
    assert_same_numbers(actual.logits, expected.logits)
    assert_same_gradients(model, literal)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
@pytest.mark.parametrize(("pattern", "span"), [("element", 3), ("column", 3), ("span", 1), ("span", 2), ("span", 5)])
def test_each_key_is_dropped_with_probability_p(p: float, pattern: str, span: int) -> None:
    masks = [mask for keep in planned(ScoresDropout(p, pattern, span=span), steps=60) for mask in keep.values()]
    dropped = torch.cat([~mask.expand(-1, -1, 9, -1) for mask in masks]).float()
    independent = dropped[:, :, :1] if pattern != "element" else dropped
    error = (p * (1 - p) / (independent.numel() / 9)) ** 0.5
    by_key = independent.mean((0, 1, 2))  # the first and the last as often as those in the middle
    assert (by_key - p).abs().max() < 4.5 * error
    if pattern != "element":
        assert torch.equal(dropped, dropped[:, :, :1].expand_as(dropped))
    else:
        assert not torch.equal(dropped, dropped[:, :, :1].expand_as(dropped))
    assert not torch.equal(dropped[:, 0], dropped[:, 1])  # each head has its own


def test_span_pattern_drops_runs_of_the_given_length() -> None:
    shape = shape_of_draws((1, 1, 5, 9), "span", 3)
    assert shape == (1, 1, 1, 11)
    draws = torch.ones(shape)
    draws[..., 4] = 0.0  # ends at key 4: keys 2, 3 and 4
    draws[..., 0] = 0.0  # began before the first key: key 0
    draws[..., 10] = 0.0  # continues after the last key: key 8
    kept = keep_pattern(draws, 0.3, "span", 3)
    assert kept.flatten().tolist() == [False, True, False, False, False, True, True, True, False]
    random = torch.rand(4, 2, 1, 12, generator=torch.Generator().manual_seed(0))
    kept = keep_pattern(random, 0.4, "span", 4)
    rate = 1 - 0.6 ** (1 / 4)
    for row, out in zip(random.view(-1, 12), kept.view(-1, 9), strict=True):
        for k in range(9):
            assert bool(out[k]) == all(float(row[e]) >= rate for e in range(k, k + 4))
    assert torch.equal(keep_pattern(random, 0.4, "span", 1), keep_pattern(random, 0.4, "column", 3))


def test_masks_do_not_depend_on_processes_or_padding() -> None:
    batch = zoo.make_batch("bert", size=4)
    model, method = zoo.make_model("bert").train(), ScoresDropout(0.5, "element")
    with Engine(model, [method], seed=2) as engine, engine.micro_batch(batch):
        whole = engine.seams.plan.keep[1]
    for rank in (0, 1):
        part = {k: v[2 * rank : 2 * rank + 2] for k, v in batch.items()}
        with (
            Engine(model, [method], seed=2, rank=rank, world=2, batch_size=2) as engine,
            engine.micro_batch(part),
        ):
            assert torch.equal(engine.seams.plan.keep[1], whole[2 * rank : 2 * rank + 2])
    for pattern in ("element", "column", "span"):
        method = ScoresDropout(0.5, pattern)
        short, long = planned(method, length=6)[0][0], planned(method, length=9)[0][0]
        assert torch.equal(short, long[:, :, : short.shape[2], :6])


def test_selected_layers_get_their_own_masks() -> None:
    keep = planned(ScoresDropout(0.5, "element", layers=[1]))[0]
    assert list(keep) == [1]
    keep = planned(ScoresDropout(0.5, "element"), "bart")[0]
    assert len(keep) == 6
    assert keep[2].shape == (3, 4, 6, 6)
    assert keep[3].shape == (3, 4, 6, 9)  # cross attention
    assert not torch.equal(keep[0], keep[1])


def test_views_draw_independent_masks() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    with Engine(model, [ScoresDropout(0.5), TwoViews()]) as engine, engine.micro_batch(batch) as inputs:
        both = engine.seams.plan.keep[0]
        first, second = model(**inputs).logits.chunk(2)
    assert both.shape[0] == 6
    assert not torch.allclose(first, second)
    with Engine(model, [ScoresDropout(0.5)]) as engine, engine.micro_batch(batch) as inputs:
        assert torch.equal(engine.seams.plan.keep[0], both[:3])


def test_p_follows_a_schedule() -> None:
    rates = [1 - keep[0].float().mean() for keep in planned(ScoresDropout("0..1", "element"), steps=5)[1:]]
    assert [round(float(rate), 1) for rate in rates] == [0.2, 0.4, 0.6, 0.8]


def test_fields_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"ScoresDropout\.p is 1\.2; it must be from 0 to 1"):
        ScoresDropout(p=1.2)
    with pytest.raises(
        ValueError, match=r"ScoresDropout\.pattern is 'row'; it must be one of 'element', 'column', 'span'"
    ):
        ScoresDropout(pattern="row")
    with pytest.raises(ValueError, match=r"ScoresDropout\.span is 0; it must be a whole number of at least 1"):
        ScoresDropout(span=0)
    with pytest.raises(ValueError, match=r"ScoresDropout\.layers is \[7\], but there is no layer 7"):
        Engine(zoo.make_model("bert"), [ScoresDropout(layers=[7])])
