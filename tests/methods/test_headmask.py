"""HeadMask compared with a model without the masked heads, and importance with one backward pass per example."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import BertModel

from attendrop import Engine, HeadMask, Progress
from helpers import zoo
from helpers.oracles import ChangedAttention
from helpers.precision import assert_same_gradients, assert_same_numbers


def masked(method: HeadMask, kind: str = "bert", steps: int = 1, **sizes: int) -> list[list[int]]:
    """The masked heads of several steps, numbered over the whole model."""
    results = []
    with Engine(zoo.make_model(kind, dropout=False).train(), [method], seed=3) as engine:
        for step in range(steps):
            engine.begin_step(Progress(step=step, total_steps=steps))
            with engine.micro_batch(zoo.make_batch(kind, **sizes)):
                results.append(numbers(engine))
    return results


def numbers(engine: Engine) -> list[int]:
    scale = engine.seams.plan.scale
    stays = torch.cat([scale[site].flatten() for site in sorted(scale)]) if scale else torch.ones(1)
    assert set(stays.tolist()) <= {0.0, 1.0}  # no rescaling
    return (stays == 0).nonzero().flatten().tolist()


def losses_of_examples(kind: str, batch: dict[str, torch.Tensor], logits: torch.Tensor) -> list[torch.Tensor]:
    """The mean cross-entropy of each example, one by one."""
    labels = batch["labels"]
    if kind in ("gpt2", "llama"):
        logits, labels = logits[:, :-1], labels[:, 1:]
    losses = []
    for b in range(len(labels)):
        rows = logits[b].reshape(-1, logits.shape[-1])
        pairs = [(row, int(y)) for row, y in zip(rows, labels[b].flatten(), strict=True) if y != -100]
        losses.append(sum((-row.log_softmax(-1)[y] for row, y in pairs), torch.zeros(())) / len(pairs))
    return losses


def literal_importance(kind: str, model: Any, batch: dict[str, torch.Tensor]) -> list[float]:
    """I_h from a copy of the model, with one forward and backward pass for each example."""
    outputs: list[torch.Tensor] = []

    def keep_output(call: int, output: torch.Tensor) -> torch.Tensor:
        outputs.append(output)
        return output

    model = copy.deepcopy(model)
    ChangedAttention(scale=keep_output).attach(model)
    total: list[float] = []
    for b in range(len(batch["labels"])):
        outputs.clear()
        one = {name: value[b : b + 1] for name, value in batch.items()}
        (loss,) = losses_of_examples(kind, one, model(**one).logits)
        gradients = torch.autograd.grad(loss, outputs)
        # [1, H, Q, d], or [choices, H, Q, d]
        values = [
            abs(float((g[:, h] * o[:, h]).detach().sum()))
            for g, o in zip(gradients, outputs, strict=True)
            for h in range(o.shape[1])
        ]
        total = values if not total else [x + y for x, y in zip(total, values, strict=True)]
    return [x / len(batch["labels"]) for x in total]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "bart", "t5"])
@pytest.mark.parametrize("by", ["random", "importance"])
def test_forward_and_gradients_match_a_model_without_the_masked_heads(kind: str, by: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    with Engine(model, [HeadMask(n=3, by=by)]) as engine, engine.micro_batch(batch) as inputs:
        heads = numbers(engine)
        actual = model(**inputs)
        actual.loss.backward()
    assert len(heads) == 3
    if by == "importance":
        expected = literal_importance(kind, literal, batch)
        assert heads == sorted(sorted(range(len(expected)), key=lambda h: -expected[h])[:3])

    def scale(call: int, output: torch.Tensor) -> torch.Tensor:
        return torch.stack([output[:, h] * (4 * call + h not in heads) for h in range(4)], 1)

    ChangedAttention(scale=scale).attach(literal)
    wanted = literal(**batch)
    wanted.loss.backward()
    assert_same_numbers(actual.logits, wanted.logits)
    assert_same_gradients(model, literal)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "gpt2", "bart", "choice"])
def test_importance_matches_one_backward_pass_per_example(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    expected = torch.tensor(literal_importance(kind, model, batch))
    before = [p.grad for p in model.parameters()]
    with Engine(model, [HeadMask(by="importance")]) as engine:
        actual = engine.regularizers[0]._importance(engine.begin_micro_batch(batch))
    assert_same_numbers(actual / 3, expected)
    assert all(a is b for a, b in zip(before, (p.grad for p in model.parameters()), strict=True))


def test_heads_are_masked_equally_often() -> None:
    actual = masked(HeadMask(n=2), steps=1500)
    assert all(len(heads) == 2 for heads in actual)
    counts = torch.bincount(torch.tensor(actual).flatten(), minlength=8) / 1500
    assert ((counts - 0.25).abs() < 4.5 * (0.25 * 0.75 / 1500) ** 0.5).all()
    assert masked(HeadMask(n=2), steps=1500) == actual


def test_micro_batches_and_processes_of_a_step_share_one_mask() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    results = []
    for rank in (0, 1):
        with Engine(model, [HeadMask(n=3)], seed=4, rank=rank, world=2) as engine:
            for _ in range(2):
                with engine.micro_batch(batch):
                    results.append(numbers(engine))
    assert all(heads == results[0] for heads in results)


def test_share_counts_heads_of_the_whole_model_and_keeps_at_least_one() -> None:
    assert [len(heads) for heads in masked(HeadMask(share=0.25))] == [2]
    assert [len(heads) for heads in masked(HeadMask(share=0.25), "bart")] == [6]
    assert [len(heads) for heads in masked(HeadMask(share=1.0))] == [7]
    assert [len(heads) for heads in masked(HeadMask(share="0..1"), steps=5)] == [0, 2, 3, 5, 6]
    assert [len(heads) for heads in masked(HeadMask(n=5, share=0.1))] == [5]


def test_fields_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"HeadMask\.n is -1; it must be a whole number of at least 0"):
        HeadMask(n=-1)
    with pytest.raises(ValueError, match=r"HeadMask\.share is 1\.5; it must be from 0 to 1"):
        HeadMask(share=1.5)
    with pytest.raises(ValueError, match=r"HeadMask\.by is 'size'; it must be one of 'random', 'importance'"):
        HeadMask(by="size")
    model = zoo.make_model("bert")
    with pytest.raises(ValueError, match=r"HeadMask\.n is 8; BertForSequenceClassification has 8 heads"):
        Engine(model, [HeadMask(n=8)])
    with pytest.raises(ValueError, match="BertModel has no head whose prediction is known"):
        Engine(BertModel(model.config), [HeadMask(by="importance")])
