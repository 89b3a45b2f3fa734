"""Language models: the logits of a few tokens at a time, in the probe and in penalties, equal those of all at once."""

from __future__ import annotations

import copy
from collections.abc import Callable

import peft
import pytest
import torch
import transformers as hf
from torch import Tensor
from torch.nn import functional

from attendrop import ADDrop, Engine, RDrop, attribute
from attendrop.methods._shared.divergence import Pair
from attendrop.methods._shared.predictions import Predictions
from attendrop.model import token_head
from attendrop.model.modes import frozen
from attendrop.model.token_head import TokenHead
from helpers import oracles, zoo
from helpers.memory import Work, work_of
from helpers.precision import assert_same_numbers, relative_error

TOKENS = 3  # in the logits that are in memory at once


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["llama", "gpt2", "bart", "masked"])
def test_attribution_by_parts_matches_plain_autograd(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = zoo.make_model(kind, dropout=False).eval(), zoo.make_batch(kind)
    expected = oracles.literal_ga(kind, copy.deepcopy(model), batch)
    monkeypatch.setattr(token_head, "LOGITS_AT_ONCE", TOKENS * zoo.VOCABULARY * len(batch["labels"]))
    widths: list[int] = []
    model.register_forward_hook(lambda module, args, outputs: widths.append(outputs.logits.shape[1]))
    actual = attribute(model, batch)
    assert max(widths[-2:]) <= TOKENS, "all logits were in memory at once"
    for layer, values in actual.items():
        assert relative_error(values, expected[layer]) < 1e-9


def test_head_that_draws_or_has_no_trunk_computes_all_logits() -> None:
    """The dropout of a head for token labels would draw other numbers for one token after the other."""
    assert TokenHead.find(zoo.make_model("token").train()) is None
    assert TokenHead.find(zoo.make_model("t5").train()) is None
    assert TokenHead.find(zoo.make_model("gpt2").train()) is not None


def test_probe_leaves_the_weights_trainable() -> None:
    model = zoo.make_model("llama").train()
    model.lm_head.weight.requires_grad_(False)
    before = [parameter.requires_grad for parameter in model.parameters()]
    with frozen(model):
        assert not any(parameter.requires_grad for parameter in model.parameters())
    assert [parameter.requires_grad for parameter in model.parameters()] == before
    attribute(model, zoo.make_batch("llama"))
    assert [parameter.requires_grad for parameter in model.parameters()] == before
    assert "forward" not in vars(model.model)


def _pair(logits: Tensor, labels: Tensor) -> Pair:
    return Pair("token", logits, labels, labels != -100)


def _whole(logits: Tensor) -> tuple[Tensor, Tensor]:
    one, two = logits.log_softmax(-1).chunk(2)
    return one, two


def _kl(logits: Tensor, labels: Tensor) -> Tensor:
    p, q = _whole(logits)
    rows = labels != -100
    return (functional.kl_div(p[rows], q[rows], log_target=True, reduction="batchmean")
            + functional.kl_div(q[rows], p[rows], log_target=True, reduction="batchmean")) / 2  # fmt: skip


def _difference(logits: Tensor, labels: Tensor) -> Tensor:
    one, two = (functional.cross_entropy(x.transpose(1, 2), labels) for x in logits.chunk(2))
    return one - two


def _negative_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return -torch.distributions.Categorical(logits=logits[labels.repeat(2, 1) != -100]).entropy().mean()


PENALTIES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    "kl": (lambda x, labels: _pair(x, labels).divergence("kl"), _kl),
    "loss": (lambda x, labels: _pair(x, labels).loss_difference(), _difference),
    "entropy": (
        lambda x, labels: Predictions("token", x, None, labels.repeat(2, 1) != -100).mean(
            lambda log_p: (log_p.exp() * log_p).sum(-1)
        ),
        _negative_entropy,
    ),
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", PENALTIES)
def test_penalty_by_parts_matches_the_whole(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, literal = PENALTIES[name]
    g = torch.Generator().manual_seed(0)
    values = torch.randn(4, 7, 30, generator=g) * 3
    labels = torch.randint(0, 30, (2, 7), generator=g).masked_fill(torch.rand(2, 7, generator=g) < 0.3, -100)
    monkeypatch.setattr(token_head, "LOGITS_AT_ONCE", 30 * 2 * 4)  # 4 of 14 rows of each view
    results = []
    for function in (ours, literal):
        logits = values.clone().requires_grad_()
        penalty = function(logits, labels)
        (0.7 * penalty).backward()
        results.append((penalty.detach(), logits.grad))
    for actual, expected in zip(*results, strict=True):
        assert_same_numbers(actual, expected)


def _lora_model() -> peft.PeftModel:
    torch.manual_seed(0)
    config = hf.Qwen2Config(
        vocab_size=4000, hidden_size=32, intermediate_size=64, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True,
    )  # fmt: skip
    lora = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return peft.get_peft_model(hf.Qwen2ForCausalLM(config), lora).train()


def test_memory_and_matrix_products_with_lora(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ratios: the probe holds few logits, and a step of AD-DROP has at most 2.2 × the products of a plain one.

    In the unit of all logits in float32, a plain step has its peak at 3.6, and so had the probe at 4.6 before it had
    parts. R-Drop saved 12.1; its two views alone need 7.2.
    """
    ids = torch.randint(0, 4000, (2, 64), generator=torch.Generator().manual_seed(0))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    logits = 4 * ids.numel() * 4000
    monkeypatch.setattr(token_head, "LOGITS_AT_ONCE", logits // 4 // 8)

    def work(method: ADDrop | RDrop | None, probe_alone: bool = False) -> Work:
        model = _lora_model()
        if method is None:
            return work_of(lambda: model(**batch).loss.backward())
        with Engine(model, [method]) as engine:
            if probe_alone:
                micro_batch = engine.begin_micro_batch(batch)
                engine.plan(micro_batch)  # finds the head
                return work_of(lambda: engine.plan(micro_batch))

            def step() -> None:
                with engine.micro_batch(batch) as inputs:
                    engine.loss(model(**inputs)).backward()

            step()
            return work_of(step)

    plain = work(None)
    for layers, share in (("all", 1.1), ([2], 0.95)):  # below the last layer no backward runs
        probe = work(ADDrop(layers=layers, cross_tuning=False), probe_alone=True)
        assert probe.flops <= share * plain.flops
        assert probe.peak <= logits
    addrop = work(ADDrop(layers="all", cross_tuning=False))
    assert addrop.flops <= 2.2 * plain.flops
    assert addrop.peak <= 1.3 * plain.peak
    assert work(RDrop()).peak <= 10 * logits
