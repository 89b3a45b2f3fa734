"""Attention dropout and DropAttention compared with their equations, and the expectation of the dropped attention."""

from __future__ import annotations

import copy

import pytest
import torch

from attendrop import AttentionDropout, Engine, Plan, Progress
from attendrop.methods.attention_dropout import renormalised
from attendrop.model.seams import Record
from helpers import zoo
from helpers.oracles import ChangedAttention
from helpers.precision import assert_same_gradients, assert_same_numbers


def softmax(scores: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
    return scores.masked_fill(~valid, float("-inf")).softmax(-1)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "bart", "t5"])
@pytest.mark.parametrize("pattern", ["element", "span"])
@pytest.mark.parametrize("renormalise", [False, True])
def test_forward_and_gradients_match_the_equation(kind: str, pattern: str, renormalise: bool) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    p = 0.6
    method = AttentionDropout(p, pattern, renormalise=renormalise, span=2)
    shown = AttentionDropout(p, pattern, span=2)  # the same draws, as factors that can be read
    with Engine(model, [shown]) as engine, engine.micro_batch(batch):
        factors = dict(engine.seams.plan.weights)
    with Engine(model, [method]) as engine, engine.micro_batch(batch) as inputs:
        actual = model(**inputs)
        actual.loss.backward()

    def change(call: int, scores: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        a = softmax(scores, valid)
        m = (factors[call] > 0).expand_as(a)
        if not renormalise:
            return torch.stack([torch.where(keep, w / (1 - p), 0 * w) for w, keep in zip(a, m, strict=True)])
        rows = []
        for w, keep, may in zip(*(x.reshape(-1, x.shape[-1]) for x in (a, m, valid)), strict=True):
            left = sum(float(x.detach()) for x, k in zip(w, keep, strict=True) if k)  # a number: no gradient
            rows.append(torch.where(keep, w, 0 * w) / left if left > 0 else may / may.sum())
        return torch.stack(rows).view_as(a)

    ChangedAttention(change).attach(literal)
    expected = literal(**batch)
    expected.loss.backward()
    assert_same_numbers(actual.logits, expected.logits)
    assert_same_gradients(model, literal)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["mpnet", "deberta_v2"])
@pytest.mark.parametrize("renormalise", [False, True])
def test_models_with_an_adapter_are_supported(kind: str, renormalise: bool) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    method = AttentionDropout(0.5, renormalise=renormalise)
    with Engine(model, [AttentionDropout(0.5)]) as engine, engine.micro_batch(batch):
        factor = engine.seams.plan.weights[0]
    with Engine(model, [method, Recording()]) as engine, engine.micro_batch(batch) as inputs:
        model(**inputs)
        record: Record = engine.seams.records[0]
    a = record.attention()
    m = factor > 0
    if renormalise:
        left = (a * m).sum(-1, keepdim=True)
        valid = record.valid.expand_as(a)
        a = torch.where(left > 0, a * m / left, valid / valid.sum(-1, keepdim=True))
    else:
        a = a * m * 2
    assert_same_numbers(record.output, (a @ record.value_of_heads()).transpose(1, 2))


class Recording(AttentionDropout):
    def plan(self, batch) -> Plan:
        return Plan(record=frozenset({0}))


@pytest.mark.usefixtures("float64")
def test_renormalised_forward_equals_scores_dropout_and_gradient_differs() -> None:
    """The forward is a softmax over the kept positions; the gradient differs because the sum is a constant."""
    g = torch.Generator().manual_seed(0)
    scores = torch.randn(2, 3, 4, 5, generator=g, requires_grad=True)
    keep = torch.rand(2, 3, 4, 5, generator=g) < 0.7
    keep[0, 0, 0] = True
    valid = torch.ones_like(keep)
    ours = renormalised(scores.softmax(-1), keep, valid)
    dead = ~keep.any(-1, keepdim=True)
    other = scores.masked_fill(~keep & ~dead, float("-inf")).masked_fill(dead, 0).softmax(-1)
    assert_same_numbers(ours, other)
    up = torch.randn(2, 3, 4, 5, generator=g)
    (a,) = torch.autograd.grad((ours * up).sum(), scores, retain_graph=True)
    (b,) = torch.autograd.grad((other * up).sum(), scores)
    assert not torch.allclose(a, b, atol=1e-3)
    # by hand, for one row: w'_j = m_j w_j / s with s a constant, and dw_j/ds_i = w_j (δ_ij − w_i)
    w, m, u = scores[0, 1, 2].softmax(-1).detach(), keep[0, 1, 2].float(), up[0, 1, 2]
    s = float((w * m).sum())
    by_hand = [sum(float(u[j] * m[j] / s * w[j] * (float(i == j) - w[i])) for j in range(5)) for i in range(5)]
    assert_same_numbers(a[0, 1, 2], torch.tensor(by_hand))


@pytest.mark.usefixtures("float64")
def test_fully_dropped_row_is_uniform_over_its_valid_positions() -> None:
    weights = torch.tensor([[[[0.7, 0.3, 0.0]]]], requires_grad=True)
    valid = torch.tensor([True, True, False]).view(1, 1, 1, 3)
    actual = renormalised(weights, torch.tensor([False, False, True]).view(1, 1, 1, 3), valid)
    assert actual.flatten().tolist() == [0.5, 0.5, 0.0]
    (gradient,) = torch.autograd.grad(actual.sum(), weights)
    assert gradient.flatten().tolist() == [0.0, 0.0, 0.0]
    model, batch = zoo.make_model("gpt2", dropout=False).train(), zoo.make_batch("gpt2")
    with Engine(model, [AttentionDropout(1, renormalise=True)]) as engine, engine.micro_batch(batch) as inputs:
        actual = model(**inputs).logits
        with engine.seams.applied(Plan(uniform=frozenset({0, 1}))):
            assert_same_numbers(actual, model(**batch).logits)


def test_expected_attention_equals_the_attention_without_dropout() -> None:
    """E[A'] = A, by Monte Carlo within the standard error; and a share p of the weights is dropped."""
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert", size=2)
    outputs, dropped, steps = [], [], 150
    with Engine(model, [AttentionDropout(0.3, layers="first"), Recording()], seed=7) as engine:
        for step in range(steps):
            engine.begin_step(Progress(step=step, total_steps=steps))
            with engine.micro_batch(batch) as inputs, torch.no_grad():
                dropped.append((engine.seams.plan.weights[0] == 0).float().mean())
                model(**inputs)
                record = engine.seams.records[0]
                outputs.append(record.output)
    expected = (record.attention() @ record.value_of_heads()).transpose(1, 2)
    actual = torch.stack(outputs)
    away = (actual.mean(0) - expected) / (actual.std(0) / steps**0.5)
    assert away.abs().max() < 5
    assert 0.5 < away.square().mean() < 1.7  # elements of a head go together: few are independent
    n = steps * 2 * 4 * 9 * 9
    assert abs(torch.stack(dropped).mean() - 0.3) < 4 * (0.21 / n) ** 0.5


def test_ordinary_attention_dropout_of_the_model_still_applies() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    for layer in model.bert.encoder.layer:
        layer.attention.self.dropout.p = 0.5
    zeros = []
    with Engine(model, [AttentionDropout(0.5, layers="first"), Recording()]) as engine, torch.no_grad():
        for module in model.modules():  # the output is then the map itself, of as many keys as a head is wide
            if type(module).__name__ == "BertSelfAttention":
                module.value.weight.zero_()
                module.value.bias.zero_()
        batch = {k: v[:1, :8] if v.dim() == 2 else v[:1] for k, v in batch.items()}
        eye = torch.eye(8).repeat(1, 1, 4).view(1, 8, 32)
        model.bert.encoder.layer[0].attention.self.value.register_forward_hook(lambda m, a, y: eye)
        for _ in range(40):
            with engine.micro_batch(batch) as inputs:
                model(**inputs)
                zeros.append((engine.seams.records[0].output == 0).float().mean())
            engine.after_optimizer()
    assert abs(torch.stack(zeros).mean() - 0.75) < 4 * (0.75 * 0.25 / (40 * 256)) ** 0.5


def test_fields_out_of_range_are_refused() -> None:
    with pytest.raises(ValueError, match=r"AttentionDropout\.p is 1, for which .* is not defined; it must be below 1"):
        AttentionDropout(p="0..1")
    with pytest.raises(ValueError, match=r"AttentionDropout\.p is -0\.1; it must be from 0 to 1"):
        AttentionDropout(p=-0.1)
    with pytest.raises(ValueError, match=r"AttentionDropout\.renormalise is 1; it must be True or False"):
        AttentionDropout(renormalise=1)
    with pytest.raises(ValueError, match=r"AttentionDropout\.pattern is 'head'"):
        AttentionDropout(pattern="head")
    with pytest.raises(ValueError, match=r"AttentionDropout\.layers is 'last'"):
        Engine(zoo.make_model("bert"), [AttentionDropout(layers="last")])
