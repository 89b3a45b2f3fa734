"""Several methods in one list: every pair composes or is refused with a reason, and six methods train together."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from attendrop import METHODS, Engine, Loop
from attendrop.methods import make_method
from helpers import zoo
from helpers.captured import make_methods
from helpers.settings import SETTINGS, bert_for
from helpers.training import same_parameters
from helpers.training import train as fine_tune

NAMES = sorted(METHODS)
STEPS = 3
# They change weights that are frozen where there are adapters.
REFUSED_WITH_ADAPTERS = [{"lora_dropout", other} for other in ("lp_ft", "reinit", "supertickets")]
SIX = [
    ("addrop", "rdrop", "layerdrop", "drophead", "mixout", "child_tuning"),
    ("scores_dropout", "hiddencut", "attention_dropout", "noisytune", "dropconnect", "concrete_dropout"),
]


def train(kind: str, methods: tuple[str, ...]) -> list[torch.Tensor]:
    """The weights after a few steps; every loss on the way is finite."""
    model, batch = zoo.make_model(kind).train(), zoo.make_batch(kind)
    columns: dict[str, Any] = {}
    for method in methods:
        columns |= SETTINGS[method].columns(batch, "usual")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loop = Loop(optimizer=optimizer, examples=lambda source, count, draws: batch)
    regularizers = [make_method(method, SETTINGS[method].usual) for method in methods]
    torch.manual_seed(5)
    with Engine(model, regularizers, epochs=1, steps_per_epoch=STEPS, loop=loop) as engine:
        for _ in range(STEPS):
            with engine.micro_batch({**batch, **columns}) as inputs:
                loss = engine.loss(model(**inputs))
                loss.backward()
            assert loss.isfinite()
            engine.before_optimizer()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            engine.after_optimizer()
            optimizer.zero_grad()
        engine.finish()
    assert all(p.isfinite().all() for p in model.parameters())
    return [p.detach() for p in model.parameters()]


@functools.cache
def alone(kind: str, method: str) -> list[torch.Tensor]:
    return train(kind, (method,))


def same(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def refusal(one: str, other: str) -> str | None:
    try:
        Engine(
            zoo.make_model(bert_for(one, other)), [make_method(name, SETTINGS[name].usual) for name in (one, other)]
        ).close()
    except ValueError as error:
        return str(error)
    return None


@pytest.mark.parametrize("every", [5, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("one", NAMES)
def test_every_pair_of_methods_composes_or_is_refused_with_a_reason(one: str, every: int) -> None:
    """Every fifth pair here; all pairs among the slow tests, in either order."""
    first = NAMES.index(one) + 1
    for number, other in enumerate(NAMES[first:]):
        if (number + first) % every or {one, other} in REFUSED_WITH_ADAPTERS:
            continue
        message = refusal(one, other)
        assert (message is None) == (refusal(other, one) is None), (one, other)
        if message is not None:
            assert all(METHODS[name].__name__ in message for name in (one, other)), message
            assert message.startswith("regularizers has ")
            assert message.endswith(".")
            continue
        kind = bert_for(one, other)
        both = train(kind, (one, other))
        # each of the two does its work beside the other
        assert not same(both, alone(kind, one)), (one, other)
        assert not same(both, alone(kind, other)), (one, other)
        if every == 1:
            train(kind, (other, one))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("lp_ft", "scal"),  # one ends the backward after the last block, the other compares what that block returns
        ("reinit", "smart"),  # the teacher is the model as training starts
        ("noisytune", "smart"),
        ("supertickets", "smart"),
        ("reinit", "supertickets"),  # fresh weights are masked too
    ],
)
def test_order_of_these_methods_does_not_matter(one: str, other: str) -> None:
    kind = bert_for(one, other)
    assert same(train(kind, (one, other)), train(kind, (other, one)))


@pytest.mark.parametrize("kind", ["bert", "llama", "bart"])
def test_six_methods_train_together(kind: str) -> None:
    for methods in SIX:
        weights = train(kind, methods)
        assert not same(weights, train(kind, methods[:-1]))


@pytest.mark.parametrize(
    "text",
    ["addrop:p=0.5,q=0.5,layers=all + ema:decay=0.5", "addrop:p=0.5,q=0.5,layers=all + llrd:decay=0.5",
     "llrd:decay=0.5 + reinit:blocks=1", "freeze:blocks=1 + lp_ft:share=0.5"],
)  # fmt: skip
def test_baselines_act_together_and_resume_exactly(text: str, tmp_path: Path) -> None:
    names = text.split(" + ")
    whole, _ = fine_tune(tmp_path, "bert", make_methods(text), save_strategy="steps", save_steps=4)
    resumed, _ = fine_tune(tmp_path, "bert", make_methods(text), str(tmp_path / "checkpoint-4"))
    assert same_parameters(whole, resumed)
    assert same_parameters(whole, fine_tune(tmp_path, "bert", make_methods(" + ".join(names[::-1])))[0])
    for name in names:
        assert not same_parameters(whole, fine_tune(tmp_path, "bert", make_methods(name))[0])
