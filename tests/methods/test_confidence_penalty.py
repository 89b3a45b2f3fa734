"""The confidence penalty compared with an entropy that is computed row by row."""

from __future__ import annotations

import copy

import pytest

from attendrop import ConfidencePenalty, Engine
from helpers import zoo
from helpers.literal import rows_of
from helpers.precision import assert_same_gradients, assert_same_numbers


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "bart", "multilabel", "token", "choice", "masked"])
def test_whole_step_matches_the_entropy_of_each_row(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    with Engine(model, [ConfidencePenalty(0.4)]) as engine, engine.micro_batch(batch) as inputs:
        total = engine.loss(model(**inputs))
        total.backward()
    outputs = literal(**batch)
    entropies = [-sum(p * p.log() for p in row) for row in rows_of(kind, outputs.logits, batch["labels"])]
    expected = outputs.loss - 0.4 * sum(entropies) / len(entropies)
    expected.backward()
    assert_same_numbers(total, expected)
    assert_same_gradients(model, literal)


@pytest.mark.parametrize("kind", ["regression", "span"])
def test_head_without_one_distribution_is_refused(kind: str) -> None:
    with pytest.raises(ValueError, match=rf"ConfidencePenalty needs one predicted distribution .* {kind} head"):
        Engine(zoo.make_model(kind), [ConfidencePenalty()])
