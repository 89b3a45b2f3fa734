"""UniDrop compared with a model whose attention, feed-forwards and blocks are dropped by hand."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from attendrop import ADDrop, Engine, Progress, RDrop, UniDrop
from attendrop.kernels.draws import as_factors, uniform
from attendrop.methods.unidrop import droppable_tokens, hidden_tokens
from attendrop.random import key_of
from helpers import oracles, zoo
from helpers.literal import FEED_FORWARD, LAST_BLOCK, giving, reading
from helpers.precision import assert_same_gradients, assert_same_numbers

SEED, STEP = 3, 4
RATES = {"fd1": 0.2, "fd2": 0.3, "fd3": 0.25, "fd4": 0.4, "layerdrop": 0.0, "p_k": 0.3, "p_d": 0.4}


def draws(place: int, shape: tuple[int, ...], stream: str) -> torch.Tensor:
    key = key_of(SEED, STEP, place, f"unidrop/{stream}")
    return uniform(key, torch.arange(shape[0]), (1,) * (4 - len(shape)) + shape[1:]).reshape(shape)


def dropped(x: torch.Tensor, p: float, place: int, stream: str) -> torch.Tensor:
    return torch.where(draws(place, tuple(x.shape), stream) < p, 0.0, x / (1 - p))


class Dropping(oracles.LiteralAttention):
    """Eager attention with FD-1, FD-3 and hidden tokens, by hand."""

    def __init__(self, kind: str, batch: dict[str, torch.Tensor]) -> None:
        super().__init__()
        self.kind, self.batch, self.calls = kind, batch, 0

    def hidden(self, site: int, keys: int) -> torch.Tensor:
        """Hidden tokens by a loop. In BART sites 0 and 1 are the encoder; then self and cross attention alternate."""
        decoder = self.kind == "bart" and site in (2, 4)
        real = self.batch["labels"] != -100 if decoder else self.batch["attention_mask"].bool()
        u = draws(int(decoder), (len(real), 1 + keys), "tokens").tolist()
        dropped = torch.zeros(len(real), 1, 1, keys, dtype=torch.bool)
        for b in range(len(real)):
            for t in range(1, keys):
                special = not decoder and self.batch["input_ids"][b, t] in (0, 1, 2)
                if u[b][0] >= RATES["p_k"] and real[b, t] and not special and u[b][1 + t] < RATES["p_d"]:
                    dropped[b, ..., t] = True
        return dropped

    def __call__(self, module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        site = self.calls
        self.calls += 1
        query, key, value = (
            dropped(x, RATES["fd3"], site, f"fd3/{name}")
            for x, name in ((query, "query"), (key, "key"), (value, "value"))
        )
        heads = query.shape[1]
        key, value = (x.repeat_interleave(heads // x.shape[1], dim=1) for x in (key, value))
        s = query @ key.transpose(-1, -2) * kwargs["scaling"]
        s = (s if mask is None else s + mask).masked_fill(self.hidden(site, key.shape[2]), float("-inf"))
        return (dropped(s.softmax(-1), RATES["fd1"], site, "fd1") @ value).transpose(1, 2), None


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "bart"])
def test_whole_step_matches_manual_dropping(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    with Engine(model, [UniDrop(**RATES)], seed=SEED) as engine:
        engine.begin_step(Progress(step=STEP, total_steps=10))
        with engine.micro_batch(batch) as inputs:
            loss = engine.loss(model(**inputs))
            loss.backward()
            assert any((~keep).any() for keep in engine.seams.plan.keep.values())

    Dropping(kind, batch).attach(literal)
    with ExitStack() as stack:
        for block, name in enumerate(FEED_FORWARD[kind]):
            change = reading(literal.get_submodule(name), lambda x, b=block: dropped(x, RATES["fd2"], b, "fd2"))
            stack.enter_context(change)
        last = len(FEED_FORWARD[kind]) - 1
        stack.enter_context(
            giving(literal.get_submodule(LAST_BLOCK[kind]), lambda x: dropped(x, RATES["fd4"], last, "fd4"))
        )
        expected = literal(**batch).loss
    expected.backward()
    assert_same_numbers(loss, expected)
    assert_same_gradients(model, literal)


def test_measured_drop_rates_match_the_settings() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert", size=64, length=32)
    batch["attention_mask"][:], batch["input_ids"][:] = 1, 7
    method = UniDrop(fd1=0.2, fd2=0.3, fd3=0.4, fd4=0.5, layerdrop=0.3, p_k=0.6, p_d=0.25)
    with Engine(model, [method]) as engine:
        skipped = []
        for step in range(400):
            engine.begin_step(Progress(step=step, total_steps=400))
            method.fd1 = method.fd3 = method.p_d = 0.0  # these are measured below
            with engine.micro_batch(batch):
                skipped += engine.seams.plan.skip
        assert abs(len(skipped) / 800 - 0.3) < 4 * (0.21 / 800) ** 0.5
        method.fd1, method.fd3, method.p_d = 0.2, 0.4, 0.25
        with engine.micro_batch(batch):
            plan = engine.seams.plan
    hidden = plan.inner[0][0](torch.ones(64, 32, 48)), plan.edits[1][0](torch.ones(64, 32, 32))
    factors = [plan.weights[0], *plan.projections[1], *hidden]
    for factor, p in zip(factors, [0.2, 0.4, 0.4, 0.4, 0.3, 0.5], strict=True):
        n = factor.numel()
        assert factor.unique().tolist() == pytest.approx([0.0, 1 / (1 - p)])
        assert abs((factor == 0).float().mean() - p) < 4 * (p * (1 - p) / n) ** 0.5
    gone = ~plan.keep[0].view(64, 32)
    assert torch.equal(plan.keep[0], plan.keep[1])  # the same tokens in every layer
    assert not gone[:, 0].any()
    whole = (~gone.any(-1)).float().mean()
    assert abs(whole - 0.6) < 4 * (0.24 / 64) ** 0.5
    n = 31 * int(gone.any(-1).sum())
    assert abs(gone.sum() / n - 0.25) < 4 * (0.1875 / n) ** 0.5


def test_token_dropout_has_two_stages() -> None:
    u = torch.tensor([[0.4, 0.1, 0.9, 0.1], [0.6, 0.1, 0.9, 0.1]])
    droppable = torch.tensor([[True, True, True], [True, True, False]])
    assert hidden_tokens(u, droppable, 0.5, 0.2).tolist() == [[False] * 3, [True, False, False]]


def test_special_tokens_are_never_dropped() -> None:
    model, batch = zoo.make_model("llama"), zoo.make_batch("llama")
    batch["input_ids"][0, 4] = 2  # the end of a sentence
    engine = Engine(model, [])
    actual = droppable_tokens(model, engine.seams.sites[0], batch)
    engine.close()
    assert actual[0].tolist() == [False, True, True, True, False, True, True, True, True]
    assert actual[2].tolist() == [False, True, True, True, True, False, False, False, False]


def test_views_draw_independently_and_compose_with_addrop() -> None:
    """Without ordinary dropout, UniDrop makes the views of R-Drop differ."""
    model, batch = zoo.make_model("llama", dropout=False).train(), zoo.make_batch("llama")
    methods = [RDrop(), ADDrop(p=0.5, q=0.5, cross_tuning=False), UniDrop(p_k=0.0, p_d=0.3)]
    with Engine(model, methods) as engine, engine.micro_batch(batch) as inputs:
        plan = engine.seams.plan
        for tensor in (plan.weights[0], plan.keep[0], plan.projections[0][0]):
            one, two = tensor.chunk(2)
            assert not torch.equal(one, two)
        outputs = model(**inputs)
        assert engine.loss(outputs) > outputs.loss + 1e-3


def test_dropping_everything_stays_finite_and_p_one_drops_all() -> None:
    assert torch.equal(as_factors(torch.rand(5), 1.0), torch.zeros(5))
    everything = UniDrop(fd1=1, fd2=1, fd3=1, fd4=1, layerdrop=1 - 1e-9, p_k=0, p_d=1)
    for kind in ("bert", "t5", "albert", "deberta_v2"):
        model, batch = zoo.make_model(kind).train(), zoo.make_batch(kind)
        with Engine(model, [everything]) as engine, engine.micro_batch(batch) as inputs:
            loss = engine.loss(model(**inputs))
            loss.backward()
        assert loss.isfinite()
        assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


def test_fields_out_of_range_are_refused() -> None:
    for field in RATES:
        with pytest.raises(ValueError, match=rf"UniDrop\.{field} is 1\.5; it must be from 0 to (below )?1"):
            UniDrop(**{field: 1.5})
