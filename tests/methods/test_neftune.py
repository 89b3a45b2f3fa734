"""NEFTune compared with noise that is added by hand, token by token."""

from __future__ import annotations

import copy

import pytest
import torch

from attendrop import Engine, NEFTune, Progress
from attendrop.kernels.draws import uniform
from attendrop.random import key_of
from helpers import zoo
from helpers.literal import WORDS, giving
from helpers.precision import assert_same_gradients, assert_same_numbers


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "albert", "gpt2", "llama", "bart", "t5", "choice", *zoo.POOLED])
def test_whole_step_matches_noise_by_hand(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    with Engine(model, [NEFTune(alpha=3.0)], seed=5) as engine:
        engine.begin_step(Progress(step=2, total_steps=10))
        with engine.micro_batch(batch) as inputs:
            total = engine.loss(model(**inputs))
            total.backward()
    mask = batch["attention_mask"].flatten(0, -2)

    def noisy(x: torch.Tensor) -> torch.Tensor:
        z = 2 * uniform(key_of(5, 2, -1, "neftune"), torch.arange(len(x)), (1, *x.shape[1:])).squeeze(1).double() - 1
        rows = [x[b] + 3.0 / (int(mask[b].sum()) * x.shape[-1]) ** 0.5 * z[b] for b in range(len(x))]
        return torch.stack(rows)

    plain = literal(**batch).loss
    with giving(literal.get_submodule(WORDS.get(kind, WORDS["bert"])), noisy):
        expected = literal(**batch).loss
    expected.backward()
    assert (plain - expected).abs() > 1e-6
    assert_same_numbers(total, expected)
    assert_same_gradients(model, literal)


@pytest.mark.usefixtures("float64")
def test_padding_does_not_change_the_loss() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    longer = {k: torch.nn.functional.pad(v, (0, 4)) if v.dim() == 2 else v for k, v in batch.items()}
    losses = []
    for each in (batch, longer):
        with Engine(model, [NEFTune()]) as engine, engine.micro_batch(each) as inputs:
            losses.append(engine.loss(model(**inputs)).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-9)
