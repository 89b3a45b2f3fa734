"""Models of the user: their outputs, and not the names of their classes, say what they predict."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, BertPreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput, TokenClassifierOutput

from attendrop import R3F, ADDrop, Engine, HiddenCut, HiddenMixup, LayerDrop, RDrop, bind
from attendrop.core.regularizer import Regularizer
from attendrop.model.objective import head_of

CONFIG: dict[str, Any] = dict(  # noqa: C408
    hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=40, num_labels=3,
    max_position_embeddings=32,
)  # fmt: skip


class BertWithCaps(BertPreTrainedModel):
    """A classifier that needs a further input, the share of capital letters."""

    per_token = False

    def __init__(self, config: BertConfig) -> None:
        super().__init__(config)
        self.bert = BertModel(config)
        self.out = nn.Linear(config.hidden_size + 1, config.num_labels)
        self.post_init()

    def forward(
        self, input_ids: Tensor, caps: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None
    ) -> Any:
        hidden = self.bert(input_ids, attention_mask).last_hidden_state
        if self.per_token:
            logits = self.out(torch.cat([hidden, caps[:, None].expand(-1, hidden.shape[1], -1)], -1))
        else:
            logits = self.out(torch.cat([hidden[:, 0], caps], -1))
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits.flatten(0, -2), labels.flatten())
        kind = TokenClassifierOutput if self.per_token else SequenceClassifierOutput
        return kind(loss=loss, logits=logits)


class TaggerWithCaps(BertWithCaps):
    per_token = True


def batch_for(model: BertWithCaps) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 40, (4, 7), generator=generator)
    labels = ids % 3 if model.per_token else ids[:, 0] % 3
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids), "caps": torch.rand(4, 1), "labels": labels}


@pytest.mark.parametrize("kind", [BertWithCaps, TaggerWithCaps])
@pytest.mark.parametrize("method", [ADDrop, RDrop, R3F, HiddenCut, HiddenMixup], ids=lambda of: of.__name__)
def test_methods_train_a_model_of_the_user(kind: type[BertWithCaps], method: type[Regularizer]) -> None:
    if kind.per_token and method is HiddenMixup:
        pytest.skip("mixes whole examples")
    model = kind(BertConfig(**CONFIG)).train()
    batch = batch_for(model)
    with Engine(model, [method()], epochs=2, steps_per_epoch=1, example=batch) as engine:
        for _ in range(2):
            with engine.micro_batch(batch) as inputs:
                loss = engine.loss(model(**inputs))
                loss.backward()
            engine.before_optimizer()
            engine.after_optimizer()
    assert torch.isfinite(loss)
    assert model.out.weight.grad is not None


@pytest.mark.parametrize(
    ("kind", "labels", "changes", "head"),
    [
        (BertWithCaps, torch.zeros(4).long(), {}, "classification"),
        (BertWithCaps, torch.zeros(4, 3), {}, "multilabel"),
        (BertWithCaps, torch.zeros(4), {"num_labels": 1}, "regression"),
        (BertWithCaps, torch.zeros(4), {"problem_type": "regression"}, "regression"),
        (TaggerWithCaps, torch.zeros(4, 7).long(), {}, "token"),
    ],
)
def test_outputs_say_what_a_model_predicts(
    kind: type[BertWithCaps], labels: Tensor, changes: dict[str, Any], head: str
) -> None:
    model = kind(BertConfig(**{**CONFIG, **changes}))
    with pytest.raises(ValueError, match="WithCaps has no head whose prediction is known"):
        head_of(model, {"labels": labels})  # it has not run yet
    batch = {name: value for name, value in batch_for(model).items() if name != "labels"}
    seams = bind(model, batch)
    assert head_of(model, {"labels": labels}) == head
    seams.unbind()


def test_model_with_further_inputs_asks_for_an_example() -> None:
    with pytest.raises(ValueError, match=r"did not run on \['input_ids'\] .* pass an example batch"):
        bind(BertWithCaps(BertConfig(**CONFIG)))


@pytest.mark.parametrize("is_lost", [True, False])
def test_loss_that_lacks_the_penalty_is_refused_before_the_optimizer(is_lost: bool) -> None:
    model = BertWithCaps(BertConfig(**CONFIG)).train()
    batch = batch_for(model)
    methods = [RDrop(alpha=1.0)] if is_lost else [LayerDrop(p=0.1)]
    with Engine(model, methods, epochs=1, steps_per_epoch=2, example=batch) as engine:
        for number in range(2):  # two micro-batches
            with engine.micro_batch(batch) as inputs:
                outputs = model(**inputs)
                (outputs.loss if number or not is_lost else engine.loss(outputs)).backward()
        if is_lost:
            with pytest.raises(ValueError, match=r"the penalty of RDrop is lost; call engine.loss\(outputs\)"):
                engine.before_optimizer()
        else:
            engine.before_optimizer()
            engine.after_optimizer()
