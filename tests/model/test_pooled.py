"""Heads that read a pooling: compared with loops, saved, and loaded by other libraries."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file

import attendrop
from attendrop.model.pooled import can_be_pooled, pool, pooled_class, pooled_class_named
from helpers import zoo
from helpers.precision import assert_same_numbers
from helpers.wordpiece import make_tokenizer

FAMILIES = ["albert", "bert", "deberta_v2", "distilbert", "electra", "mpnet", "roberta", "xlm_roberta"]


def make_family(kind: str, **fields: Any) -> Any:
    config = zoo.make_model(kind).config
    config.problem_type, config.attendrop_pooling = "single_label_classification", "mean"
    for name, value in fields.items():
        setattr(config, name, value)
    torch.manual_seed(1)
    return pooled_class(config)(config).eval()


def mean_by_a_loop(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    rows = []
    for states, real in zip(hidden, mask, strict=True):
        kept = [states[t] for t in range(len(states)) if real[t]]
        rows.append(sum(kept[1:], kept[0]) / len(kept))
    return torch.stack(rows)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", FAMILIES)
def test_logits_are_those_of_a_literal_mean_and_padding_changes_nothing(kind: str) -> None:
    model, batch = make_family(kind), zoo.make_batch(kind)
    del batch["labels"]
    logits = model(**batch).logits
    mean = mean_by_a_loop(model.base_model(**batch)[0], batch["attention_mask"])
    assert_same_numbers(logits, mean @ model.pooled_head.weight.T + model.pooled_head.bias)
    longer = {name: torch.nn.functional.pad(value, (0, 5)) for name, value in batch.items()}
    assert_same_numbers(model(**longer).logits, logits)


def test_poolings_without_a_mask_and_of_the_first_token() -> None:
    hidden = torch.randn(3, 4, 5)
    assert torch.allclose(pool(hidden, None, "mean"), hidden.mean(1))
    assert torch.equal(pool(hidden, torch.ones(3, 4), "cls"), hidden[:, 0])


@pytest.mark.usefixtures("float64")
def test_texts_encoded_apart_are_those_of_two_single_passes() -> None:
    model, batch = zoo.make_model("pooled_pairs").eval(), zoo.make_batch("pooled_pairs")
    features = []
    for b in range(3):
        u, v = (
            mean_by_a_loop(
                model.bert(batch["input_ids"][b, k][None], attention_mask=batch["attention_mask"][b, k][None])[0],
                batch["attention_mask"][b, k][None],
            )[0]
            for k in (0, 1)
        )
        u, v = u / u.square().sum().sqrt(), v / v.square().sum().sqrt()
        features.append(torch.cat([u, v, (u - v).abs(), u * v]))
    expected = torch.stack(features) @ model.pooled_head.weight.T + model.pooled_head.bias
    assert_same_numbers(model(**batch).logits, expected)
    with pytest.raises(ValueError, match=r"input_ids has the shape \[3, 9\]; .* \[examples, 2, tokens\]"):
        model(input_ids=batch["input_ids"][:, 0])


@pytest.mark.usefixtures("float64")
def test_a_regression_learns_standardised_numbers_and_returns_the_users_unit() -> None:
    model, batch = zoo.make_model("pooled_regression").eval(), zoo.make_batch("pooled_regression")
    outputs = model(**batch)
    mean = mean_by_a_loop(model.bert(batch["input_ids"], batch["attention_mask"])[0], batch["attention_mask"])
    inner = mean @ model.pooled_head.weight.T + model.pooled_head.bias
    assert_same_numbers(outputs.logits, inner * zoo.SCALE + 0.5)
    assert_same_numbers(outputs.loss, (inner[:, 0] - (batch["labels"] - 0.5) / zoo.SCALE).square().mean())


def test_only_encoders_without_a_pooling_of_their_own_can_be_pooled() -> None:
    can = {kind for kind in zoo.ARCHITECTURES if can_be_pooled(zoo.make_model(kind).config)}
    assert can == set(FAMILIES)
    assert not can_be_pooled(hf.LongformerConfig())
    assert not can_be_pooled(hf.BertConfig(is_decoder=True))


@pytest.mark.parametrize("kind", FAMILIES)
def test_saved_models_are_loaded_and_no_stock_class_takes_the_head(kind: str, tmp_path: Path) -> None:
    model, batch = make_family(kind), zoo.make_batch(kind)
    del batch["labels"]
    model.save_pretrained(tmp_path)
    loaded = attendrop.load_classifier(tmp_path)
    assert type(loaded) is type(model) is pooled_class_named(type(model).__name__)
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)
    assert torch.equal(pickle.loads(pickle.dumps(loaded))(**batch).logits, model(**batch).logits)
    encoder = hf.AutoModel.from_pretrained(tmp_path).eval()
    assert torch.equal(encoder(**batch)[0], model.base_model(**batch)[0])
    _, report = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert {"pooled_head.weight", "pooled_head.bias"} <= report["unexpected_keys"]
    assert any(name.startswith(("classifier", "pre_classifier")) for name in report["missing_keys"])


def test_an_unfinished_folder_is_refused(tmp_path: Path) -> None:
    zoo.make_model("bert").bert.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"is no finished model: classifier.bias, classifier.weight"):
        attendrop.load_classifier(tmp_path)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
@pytest.mark.parametrize("is_regression", [False, True])
def test_sentence_encoders_give_the_logits(pooling: str, is_regression: bool, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers", minversion="6.2")
    tokenizer = make_tokenizer()
    fields = {"num_labels": 1, "problem_type": "regression"} if is_regression else {}
    model = make_family("bert", vocab_size=len(tokenizer), attendrop_pooling=pooling, attendrop_max_length=30, **fields)
    with torch.no_grad():
        model.pooled_head.bias.normal_()
    if is_regression:
        model.output_scale.fill_(7.0)
        model.output_shift.fill_(-40.0)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    other = library.SentenceTransformer(str(tmp_path), device="cpu")
    assert other.max_seq_length == 30
    for examples in (["a film", "good, but too long?"], [("a film", "no"), ("it is", "rather long, is it not")]):
        texts = [examples] if isinstance(examples[0], str) else [list(part) for part in zip(*examples, strict=True)]
        inputs = tokenizer(*texts, padding=True, truncation=True, max_length=30, return_tensors="pt")
        assert torch.allclose(torch.tensor(other.encode(examples)), model(**inputs).logits, atol=1e-5)


def test_given_weights_are_written_also_for_other_libraries(tmp_path: Path) -> None:
    """The Trainer passes the weights, which a wrapper may have changed."""
    model = make_family("bert")
    state = {name: tensor + 1 for name, tensor in model.state_dict().items()}
    expected = state["pooled_head.weight"]
    model.save_pretrained(tmp_path, state_dict=state)
    written = load_file(tmp_path / "2_Dense" / "model.safetensors")
    assert torch.equal(written["linear.weight"], expected)
    apart = zoo.make_model("pooled_pairs")
    apart.save_pretrained(tmp_path / "apart")
    assert not (tmp_path / "apart" / "modules.json").exists()


@pytest.mark.parametrize("kind", ["pooled", "pooled_pairs"])
@pytest.mark.usefixtures("float64")
def test_gradient_checkpointing_gives_the_same_gradients(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    other = copy.deepcopy(model)
    other.gradient_checkpointing_enable({"use_reentrant": False})
    for each in (model, other):
        each(**batch).loss.backward()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert_same_numbers(one.grad, two.grad)
