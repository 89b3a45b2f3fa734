"""LayerDrop compared with a model from which blocks were removed, and the shallower model that `drop_layers` makes."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from attendrop import ADDrop, Engine, LayerDrop, Plan, Progress, bind, prune
from helpers import zoo
from helpers.precision import assert_same_numbers

STACKS = {
    "bert": ["bert.encoder.layer"],
    "gpt2": ["transformer.h"],
    "llama": ["model.layers"],
    "bart": ["model.encoder.layers", "model.decoder.layers"],
    "mpnet": ["mpnet.encoder.layer"],
}


def test_blocks_are_skipped_with_probability_p_and_equally_on_every_process() -> None:
    model, batch = zoo.make_model("bart").train(), zoo.make_batch("bart")
    chosen = []
    with Engine(model, [LayerDrop(p=0.2)], seed=1) as engine:
        for step in range(1500):
            engine.begin_step(Progress(step=step, total_steps=1500))
            with engine.micro_batch(batch):
                chosen.append(engine.seams.plan.skip)
    share = [sum(block in blocks for blocks in chosen) / 1500 for block in range(4)]
    assert all(abs(s - 0.2) < 4 * (0.16 / 1500) ** 0.5 for s in share)
    both = sum({0, 1} <= blocks for blocks in chosen) / 1500
    assert abs(both - 0.04) < 4 * (0.0384 / 1500) ** 0.5  # each by itself
    with Engine(model, [LayerDrop(p=0.2)], seed=1, rank=1, world=2) as other:
        for step in (0, 7, 1499):
            other.begin_step(Progress(step=step, total_steps=1500))
            with other.micro_batch(batch):
                assert other.seams.plan.skip == chosen[step]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", STACKS)
def test_whole_step_matches_a_model_without_the_skipped_blocks(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    for step in range(20):  # until one block goes and one stays
        literal = copy.deepcopy(model)
        with Engine(model, [LayerDrop(p=0.5)]) as engine:
            engine.begin_step(Progress(step=step, total_steps=20))
            with engine.micro_batch(batch) as inputs:
                gone = {engine.seams.blocks[block] for block in engine.seams.plan.skip}
                loss = engine.loss(model(**inputs))
                loss.backward()
        if 0 < len(gone) < len(STACKS[kind]) * 2:
            break
        model.zero_grad()
    for name in STACKS[kind]:
        path, _, child = name.rpartition(".")
        kept = [block for i, block in enumerate(literal.get_submodule(name)) if f"{name}.{i}" not in gone]
        setattr(literal.get_submodule(path), child, torch.nn.ModuleList(kept))
    expected = literal(**batch).loss
    expected.backward()
    assert_same_numbers(loss, expected)
    actual = dict(model.named_parameters())
    for name, p in literal.named_parameters():
        # what stayed has been renumbered, so it is looked up by its place among what stayed
        for stack in STACKS[kind]:
            if name.startswith(f"{stack}."):
                number, _, rest = name[len(stack) + 1 :].partition(".")
                numbers = [i for i in range(2) if f"{stack}.{i}" not in gone]
                name = f"{stack}.{numbers[int(number)]}.{rest}"
        gradient = actual.pop(name).grad
        assert_same_numbers(gradient, p.grad if p.grad is not None else torch.zeros_like(p), name)
    # the weights of a block that was left out are in the graph, with a gradient of zero
    assert actual
    assert all(torch.equal(p.grad, torch.zeros_like(p)) for p in actual.values())


@pytest.mark.usefixtures("float64")
def test_skipping_all_blocks_applies_the_head_to_the_embeddings() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    with Engine(model, [LayerDrop(p=1 - 1e-9)]) as engine, engine.micro_batch(batch) as inputs:
        actual = model(**inputs).logits
    hidden = model.bert.embeddings(batch["input_ids"])
    assert_same_numbers(actual, model.classifier(model.bert.pooler(hidden)))


@pytest.mark.usefixtures("float64")
def test_single_calls_of_the_shared_block_of_albert_are_skipped() -> None:
    model, batch = zoo.make_model("albert", dropout=False).train(), zoo.make_batch("albert")
    seams = bind(model)
    with seams.applied(Plan(skip=frozenset({0, 2}))):
        actual = model(**batch).logits
    with seams.applied(Plan(skip=frozenset({1, 2}))):
        assert_same_numbers(actual, model(**batch).logits)  # one call of the same block each
    seams.unbind()


def test_layerdrop_composes_with_addrop() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    methods = [ADDrop(p=0.5, q=0.5, cross_tuning=False), LayerDrop(p=1 - 1e-9)]
    with Engine(model, methods) as engine, engine.micro_batch(batch) as inputs:
        assert engine.seams.plan.skip == {0, 1}
        engine.loss(model(**inputs)).backward()


def test_p_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match=r"LayerDrop\.p is 1\.2; it must be from 0 to below 1"):
        LayerDrop(p=1.2)
    with pytest.raises(ValueError, match="from 0 to below 1"):
        LayerDrop(p=1)


# ---- the shallower model ---------------------------------------------------------------------------------------


AUTO: dict[str, Any] = {
    "gpt2": AutoModelForCausalLM,
    "llama": AutoModelForCausalLM,
    "qwen2": AutoModelForCausalLM,
    "bart": AutoModelForSeq2SeqLM,
    "t5": AutoModelForSeq2SeqLM,
}


@pytest.mark.parametrize(
    "kind", ["bert", "roberta", "gpt2", "llama", "bart", "distilbert", "modernbert", "t5", "qwen2"]
)
def test_shallower_model_equals_skipping_and_loads_in_transformers(kind: str, tmp_path: Path) -> None:
    kept = 0 if kind in ("modernbert", "t5") else 1  # the first block of these two has weights that the others lack
    model, batch = zoo.make_model(kind).eval(), zoo.make_batch(kind)
    seams = bind(model)
    gone = frozenset(i for i, name in enumerate(seams.blocks) if not name.endswith(f".{kept}"))
    with seams.applied(Plan(skip=gone)):
        expected = model(**batch).logits
    seams.unbind()
    before = sum(p.numel() for p in model.parameters())
    actual = prune.drop_layers(model, keep=[kept])
    assert list(actual.values()) == [[kept]] * (2 if kind in ("bart", "t5") else 1)
    assert sum(p.numel() for p in model.parameters()) < before
    assert torch.equal(model(**batch).logits, expected)
    model.save_pretrained(tmp_path)
    again = AUTO.get(kind, AutoModelForSequenceClassification).from_pretrained(tmp_path).eval()
    assert torch.equal(again(**batch).logits, model(**batch).logits)
    assert len(bind(again).blocks) == len(actual)
    if kind in AUTO:  # caches go by the number of a block
        ids = batch["input_ids"][:1]
        options = {"max_new_tokens": 3, "do_sample": False}
        assert torch.equal(
            again.generate(ids, use_cache=True, **options), again.generate(ids, use_cache=False, **options)
        )


def test_kept_layers_for_each_form_of_keep() -> None:
    assert prune.every_other(6) == [0, 2, 4]
    assert prune.every_other(12, 0.25) == [0, 1, 2, 4, 5, 6, 8, 9, 10]
    assert prune.every_other(2, 0.5) == [0]
    for keep, expected in (
        (None, [0]),
        ([-1], [1]),
        (slice(1, None), [1]),
        ("all", [0, 1]),
        (0, [0]),
        ([1, 0], [0, 1]),
    ):
        model = zoo.make_model("bert")
        assert prune.drop_layers(model, keep=keep) == {"bert.encoder.layer": expected}
        assert model.config.num_hidden_layers == len(expected)


def test_layers_can_be_dropped_from_one_stack(tmp_path: Path) -> None:
    model, batch = zoo.make_model("bart").eval(), zoo.make_batch("bart")
    assert prune.drop_layers(model, stack="decoder") == {"model.decoder.layers": [0]}
    assert (model.config.encoder_layers, model.config.decoder_layers) == (2, 1)
    model.save_pretrained(tmp_path)
    again = AutoModelForSeq2SeqLM.from_pretrained(tmp_path)
    assert torch.equal(again(**batch).logits, model(**batch).logits)


def test_layer_types_of_the_configuration_are_dropped_too() -> None:
    model = zoo.make_model("modernbert")
    types = list(model.config.layer_types)
    assert len(set(types)) == 2
    prune.drop_layers(model, keep=[0])
    assert model.config.layer_types == types[:1]


def test_shallower_model_can_be_trained_further() -> None:
    model, batch = zoo.make_model("llama").train(), zoo.make_batch("llama")
    prune.drop_layers(model)
    with Engine(model, [LayerDrop(p=0.5)]) as engine, engine.micro_batch(batch) as inputs:
        engine.loss(model(**inputs)).backward()
    assert model.model.layers[0].self_attn.layer_idx == 0


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("bert", {"keep": [7]}, r"keep is \[7\], but there are only layers 0 to 1"),
        ("bert", {"keep": []}, r"keep is \[\], which leaves no layer"),
        ("bert", {"keep": "last"}, r"keep is 'last'; it must be 'first', 'all'"),
        ("bert", {"rate": 0.9}, r"rate is 0\.9; it must be above 0 and at most 0\.5"),
        ("bert", {"stack": "decoder"}, r"stack is 'decoder'; BertForSequenceClassification has only one"),
        ("bart", {"stack": "middle"}, r"stack is 'middle'; .* has 'decoder' and 'encoder'"),
        ("t5", {"keep": [1]}, r"cannot do without these layers: .*relative_attention_bias.* would be missing"),
        ("albert", {}, r"does not call the blocks of 'albert.* one after the other, each once"),
    ],
)
def test_refused_drop_layers_changes_nothing(kind: str, options: dict[str, Any], message: str) -> None:
    model, batch = zoo.make_model(kind).eval(), zoo.make_batch(kind)
    before, config = model(**batch).logits, model.config.to_dict()
    with pytest.raises(ValueError, match=message):
        prune.drop_layers(model, **options)
    assert torch.equal(model(**batch).logits, before)
    assert model.config.to_dict() == config


def test_bound_and_wrapped_models_are_refused() -> None:
    model = zoo.make_model("bert")
    engine = Engine(model, [LayerDrop()])
    with pytest.raises(ValueError, match="is bound already"):
        prune.drop_layers(model)
    engine.close()
    with pytest.raises(ValueError, match="model is a Sequential; it must be a transformers model"):
        prune.drop_layers(torch.nn.Sequential(model))
