"""The tails of an encoder: exact where they are said to be, a literal version elsewhere, saved and loaded, refused."""

from __future__ import annotations

import copy
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

from attendrop import Plan, bind, load_classifier, prune
from attendrop.prune.constant_attention import mean_weights
from attendrop.prune.layer_plan import LayerPlan, apply_plan, plan_of
from attendrop.prune.stock_layout import EXACT, TAIL
from attendrop.prune.surgery import encoder_layers
from attendrop.prune.tail import add_exact_tail, add_summary_tail, all_tokens, head_reads, remove_tail, tail_of
from helpers import zoo
from helpers.encoders import deep, logits
from helpers.precision import assert_as_exact_as_stock, assert_same_numbers

FIRST = ["bert", "distilbert", "mpnet", "choice", "multilabel"]
MEAN = ["pooled", "pooled_pairs", "pooled_regression"]


# ------------------------------------------------------------------------------------------------ what a head reads


@pytest.mark.parametrize(
    ("kind", "reads"),
    [*((kind, "first") for kind in (*FIRST, "deberta_v2", "modernbert", "vit")), *((kind, "mean") for kind in MEAN),
     ("token", None), ("span", None), ("gpt2", None)],
)  # fmt: skip
def test_what_a_head_reads_is_found_by_trying(kind: str, reads: str | None) -> None:
    model = zoo.make_model(kind)
    assert head_reads(model) == reads
    assert head_reads(model, zoo.make_batch(kind)) == reads


def test_head_on_the_first_token_of_a_pooled_model_is_told_from_the_mean() -> None:
    assert head_reads(deep("pooled", attendrop_pooling="cls")) == "first"


# ------------------------------------------------------------------------------------------------ the exact tail


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["roberta", "electra", *FIRST])
def test_exact_tail_is_the_same_function(kind: str, attention: str) -> None:
    model, batch = zoo.make_model(kind, attention=attention).eval(), zoo.make_batch(kind)
    whole = logits(model, batch)
    assert add_exact_tail(model, head_reads(model))
    assert_same_numbers(logits(model, batch), whole)
    del batch["attention_mask"]
    remove_tail(without := copy.deepcopy(model))
    assert_same_numbers(logits(model, batch), logits(without, batch))


def test_exact_tail_is_as_exact_as_stock_in_single_precision() -> None:
    """Not bit for bit: a matrix product of fewer rows may add in another order."""
    model, batch = zoo.make_model("bert").eval(), zoo.make_batch("bert", size=8, length=32)
    stock, truth = logits(model, batch), logits(copy.deepcopy(model).double(), batch)
    assert add_exact_tail(model, "first")
    assert_as_exact_as_stock((logits(model, batch), truth), (stock, truth))


def test_exact_tail_computes_one_row_of_the_last_block() -> None:
    model, rows = zoo.make_model("bert").eval(), []
    add_exact_tail(model, "first")
    for layer in model.bert.encoder.layer:
        layer.intermediate.register_forward_hook(lambda module, args, output: rows.append(output.shape[1]))
    logits(model, zoo.make_batch("bert"))
    assert rows == [9, 1]


@pytest.mark.parametrize("kind", ["deberta_v2", "modernbert", "vit", "token", *MEAN])
def test_exact_tail_is_left_out_where_it_does_not_hold(kind: str) -> None:
    model, batch = zoo.make_model(kind).eval(), zoo.make_batch(kind)
    before = logits(model, batch)
    assert not add_exact_tail(model, head_reads(model))
    assert torch.equal(logits(model, batch), before)
    assert tail_of(model) is None


def test_exact_tail_computes_all_tokens_in_training_and_while_bound() -> None:
    model, batch = zoo.make_model("bert", dropout=False).eval(), zoo.make_batch("bert")
    stock = copy.deepcopy(model)
    add_exact_tail(model, "first")
    sites = range(2)
    records = []
    for each in (stock, model):
        seams = bind(each)
        with seams.applied(Plan(record=frozenset(sites))):
            logits(each, batch)
            records.append([seams.records[site].output for site in sites])
        seams.unbind()
    assert all(torch.equal(one, other) for one, other in zip(*records, strict=True))
    with torch.no_grad():
        assert torch.equal(model.train()(**batch).logits, stock.train()(**batch).logits)
    with all_tokens(model.eval()):
        assert torch.equal(logits(model, batch), logits(stock.eval(), batch))
    for by in ("similarity", "gradient"):
        assert prune.score_layers(model, [batch], by) == prune.score_layers(stock, [batch], by)


# ------------------------------------------------------------------------------------------------ the summary tail


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", [*FIRST, "deberta_v2"])
def test_summary_of_one_block_is_constant_attention_where_the_head_reads_the_first_token(kind: str) -> None:
    model, batch = zoo.make_model(kind).eval(), zoo.make_batch(kind)
    prune.prune(model, [1])
    constant = logits(model, batch)
    add_summary_tail(model, 1, "first")
    assert_same_numbers(logits(model, batch), constant)
    assert model.config.attendrop_exact_in_transformers is (kind != "mpnet")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", [*FIRST, *MEAN, "mpnet", "deberta_v2"])
def test_summary_of_a_sequence_of_equal_tokens_is_constant_attention(kind: str) -> None:
    """One token is its own mean, and the attention of one token is uniform: the tail is the model itself."""
    model = zoo.make_model(kind).eval()
    batch = {name: x[..., :1] if name in ("input_ids", "attention_mask") else x
             for name, x in zoo.make_batch(kind).items()}  # fmt: skip
    stock = copy.deepcopy(model)
    apply_plan(model, LayerPlan(tail=1))
    assert_same_numbers(logits(model, batch), logits(stock, batch))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("tail", [1, 2, 3])
@pytest.mark.parametrize("kind", ["multilabel", "pooled"])
def test_summary_tail_is_the_literal_one(kind: str, tail: int) -> None:
    """Written out for BERT: every row of the tail gets W_O (W_V m + b_V) + b_O of the mean m."""
    model, batch = deep(kind), zoo.make_batch(kind)
    reads = str(head_reads(model))
    expected = _literal(model, batch, tail, reads)
    apply_plan(model, LayerPlan(tail=tail))
    assert_same_numbers(logits(model, batch), expected)


def _literal(model: Any, batch: dict[str, torch.Tensor], tail: int, reads: str) -> torch.Tensor:
    bert, result = model.bert, []
    with torch.no_grad():
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
            ids = ids[mask.bool()].unsqueeze(0)  # without its padding
            x = bert.embeddings(input_ids=ids)
            for layer in bert.encoder.layer[:-tail]:
                x = layer(x)
            first, mean = x[:, :1], x.mean(1, keepdim=True)
            for layer in bert.encoder.layer[-tail:]:
                self, output = layer.attention.self, layer.attention.output
                mixed = output.dense(self.value(mean))
                rows = [output.LayerNorm(row + mixed) for row in (first, mean)]
                first, mean = (layer.output.LayerNorm(layer.output.dense(layer.intermediate(r)) + r) for r in rows)
            if kind_is_pooled := hasattr(model, "pooled_head"):
                result.append(model.pooled_head(mean[:, 0]))
            else:
                result.append(model.classifier(bert.pooler(first)))
            assert kind_is_pooled == (reads == "mean")
    return torch.cat(result)


def test_summary_tail_has_two_rows_or_one() -> None:
    for kind, expected in (("multilabel", [9, 9, 2, 2]), ("pooled", [9, 9, 1, 1])):
        model, rows = deep(kind), []
        apply_plan(model, LayerPlan(tail=2))
        for layer in model.bert.encoder.layer:
            layer.intermediate.register_forward_hook(lambda m, args, output, rows=rows: rows.append(output.shape[1]))
        logits(model, zoo.make_batch(kind))
        assert rows == expected


def test_mean_ignores_padding() -> None:
    model, batch = deep("multilabel"), zoo.make_batch("multilabel")
    apply_plan(model, LayerPlan(tail=2))
    before = logits(model, batch)
    batch["input_ids"] = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, 7)
    assert torch.equal(logits(model, batch), before)
    assert mean_weights(batch["attention_mask"], torch.float32).shape == (3, 1, 9)


# ------------------------------------------------------------------------------------------------ plans


PLANS = [
    LayerPlan(), LayerPlan(tail=2), LayerPlan(constant=(0, 2)), LayerPlan(removed=(1,)),
    LayerPlan(tail=1, constant=(0,), removed=(1,)),
]  # fmt: skip


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("kind", ["multilabel", "pooled"])
def test_plan_is_saved_and_loaded(kind: str, plan: LayerPlan, tmp_path: Path) -> None:
    model, batch = deep(kind), zoo.make_batch(kind)
    apply_plan(model, plan)
    assert plan_of(model) == plan
    if kind == "pooled" and plan == LayerPlan():  # nothing to save: the mean needs all tokens
        with pytest.raises(ValueError, match="without pruned layers"):
            prune.save(model, tmp_path / "model")
        return
    prune.save(model, tmp_path / "model")
    expected = logits(model, batch)
    loaded = [prune.load(tmp_path / "model"), load_classifier(tmp_path / "model"), copy.deepcopy(model)]
    loaded.append(pickle.loads(pickle.dumps(model)))
    for each in loaded:
        assert torch.equal(logits(each, batch), expected)
        assert plan_of(each) == plan
    card = (tmp_path / "model" / "README.md").read_text()
    assert ("Do not load it with plain transformers" in card) is not getattr(model.config, EXACT, True)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("plan", [LayerPlan(tail=1, constant=(1,)), LayerPlan(removed=(2,)), LayerPlan()], ids=str)
def test_plain_transformers_computes_the_same_where_the_folder_says_so(plan: LayerPlan, tmp_path: Path) -> None:
    model, batch = deep("multilabel").double(), zoo.make_batch("multilabel")
    apply_plan(model, plan)
    assert getattr(model.config, EXACT, True)
    prune.save(model, tmp_path / "model")
    stock = hf.BertForSequenceClassification.from_pretrained(tmp_path / "model", dtype=torch.float64).eval()
    assert_same_numbers(logits(stock, batch), logits(model, batch))


def test_plan_grows_step_by_step() -> None:
    model, whole = deep("multilabel"), deep("multilabel")
    batch = zoo.make_batch("multilabel")
    steps = [LayerPlan(), LayerPlan(tail=1), LayerPlan(tail=1, constant=(2,)), LayerPlan(tail=2),
             LayerPlan(tail=2, removed=(0,))]  # fmt: skip
    for step in steps:
        apply_plan(model, step, is_final=step.tail > 0)
        assert plan_of(model) == step
    apply_plan(whole, steps[-1])
    torch.testing.assert_close(logits(model, batch), logits(whole, batch), rtol=1e-4, atol=1e-5)
    with pytest.raises(ValueError, match="may only add"):
        apply_plan(model, LayerPlan(tail=1))
    assert [layer.site.layer for layer in encoder_layers(model)] == [0, 1, 2]


@pytest.mark.parametrize(
    ("kind", "plan", "sentence"),
    [
        ("token", LayerPlan(tail=1), "reads more than the first token or the mean"),
        ("bert", LayerPlan(tail=2), "tail is 2; it must be below 2"),
        ("bart", LayerPlan(tail=1), "an encoder and a decoder"),
        ("gpt2", LayerPlan(tail=1), "reads more than"),
        ("albert", LayerPlan(tail=1), "one after the other"),
        ("gpt2", LayerPlan(constant=(0,)), "no bidirectional self attention"),
    ],
)
def test_plans_that_cannot_be(kind: str, plan: LayerPlan, sentence: str) -> None:
    model = zoo.make_model(kind).eval()
    with pytest.raises(ValueError, match=sentence):
        apply_plan(model, plan)
    assert plan_of(model) == LayerPlan()


def test_damaged_tail_in_the_configuration_is_one_sentence(tmp_path: Path) -> None:
    model = deep("multilabel")
    apply_plan(model, LayerPlan(tail=1))
    prune.save(model, tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    (tmp_path / "model" / "attendrop_manifest.json").unlink(missing_ok=True)
    for file in (tmp_path / "model").glob("*manifest*"):
        file.unlink()
    for tail in ({"blocks": 9, "reads": "first"}, {"blocks": 1}, 3, {"blocks": 1, "reads": "all"}):
        path.write_text(json.dumps(json.loads(path.read_text()) | {TAIL: tail}))
        with pytest.raises(ValueError, match="attendrop_tail in the configuration is"):
            prune.load(tmp_path / "model")


def test_compressed_model_trains() -> None:
    model, batch = deep("multilabel"), zoo.make_batch("multilabel")
    apply_plan(model.train(), LayerPlan(tail=2, constant=(0,)))
    model(**batch).loss.backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == []
