"""HyPe compared with noise that is added by hand before each layer."""

from __future__ import annotations

import copy
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from attendrop import Engine, HyPe, Progress
from attendrop.kernels.draws import uniform
from attendrop.random import key_of
from helpers import zoo
from helpers.literal import reading
from helpers.precision import assert_same_gradients, assert_same_numbers

# the number of the block before each layer that gets noise, and the name of the layer
LAYERS = {
    "bert": {-1: "bert.encoder.layer.0", 0: "bert.encoder.layer.1"},
    "llama": {-1: "model.layers.0", 0: "model.layers.1"},
    "bart": {-1: "model.encoder.layers.0", 0: "model.encoder.layers.1", 2: "model.decoder.layers.1"},
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("noise", ["normal", "uniform"])
@pytest.mark.parametrize("kind", LAYERS)
def test_whole_step_matches_noise_by_hand(kind: str, noise: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    with Engine(model, [HyPe(0.2, noise)], seed=5) as engine:
        engine.begin_step(Progress(step=2, total_steps=10))
        with engine.micro_batch(batch) as inputs:
            total = engine.loss(model(**inputs))
            total.backward()

    def noisy(block: int) -> Any:
        def change(x: torch.Tensor) -> torch.Tensor:
            draws = uniform(key_of(5, 2, block, "hype"), torch.arange(len(x)), (1, *x.shape[1:])).squeeze(1).double()
            if noise == "uniform":
                return x + 0.2 * draws  # U(0, σ), as the authors
            return x + torch.special.ndtri(draws + 2**-25) * 0.2

        return change

    plain = literal(**batch).loss
    with ExitStack() as stack:
        for block, name in LAYERS[kind].items():
            stack.enter_context(reading(literal.get_submodule(name), noisy(block)))
        expected = literal(**batch).loss
    expected.backward()
    assert (plain - expected).abs() > 1e-6
    assert_same_numbers(total, expected)
    assert_same_gradients(model, literal)
