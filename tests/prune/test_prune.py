"""Pruned attention layers: equal to uniform attention, saved and loaded, measured, scored, and refused."""

from __future__ import annotations

import copy
import json
import math
import pickle
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from safetensors.torch import load_file, save_file

from attendrop import ADDrop, Plan, RegularizedTrainer, bind, prune
from attendrop.capture.graphs import Graphs
from attendrop.methods.attendout.generator import Generator
from attendrop.prune.constant_attention import mean_weights
from attendrop.prune.layouts import LAYOUTS
from attendrop.prune.measure import example
from attendrop.prune.surgery import encoder_layers
from attendrop.utils.manifest import MANIFEST_FILE
from helpers import data, zoo
from helpers.precision import assert_same_numbers, float64, relative_error

ENCODERS = sorted(set(zoo.ARCHITECTURES) - {"gpt2", "llama", "qwen2"})
BIASED = {"mpnet", "t5"}  # relative positions add to the scores: zero queries are not uniform attention


def prunable(model) -> list[int]:
    """The layers that can be pruned: those without a sliding window."""
    return [x.site.layer for x in encoder_layers(model) if getattr(x.module, "sliding_window", None) is None]


def sharpened(model):
    """Enlarges queries and values, so that attention is far from uniform; ELECTRA needs more, its states are small."""
    factor = 16 if model.config.model_type == "electra" else 4
    with torch.no_grad():
        for layer in {x.site.name: x for x in encoder_layers(model)}.values():
            for name in {layer.layout.q, layer.layout.v}:
                linear = layer.module.get_submodule(name)
                linear.weight.mul_(factor)
                if linear.bias is not None:  # zero in a new model
                    linear.bias.normal_(std=0.01)
    return model


def logits(model, batch) -> torch.Tensor:
    with torch.no_grad():
        outputs = model(**batch)
    return outputs["start_logits"] if "start_logits" in outputs else outputs["logits"]


def uniform_logits(model, batch, layers) -> torch.Tensor:
    """The outputs of the model under a plan that makes the attention of these encoder layers uniform."""
    sites = frozenset(x.site.index for x in encoder_layers(model) if x.site.layer in layers)
    seams = bind(model)
    try:
        with seams.applied(Plan(uniform=sites)):
            return logits(model, batch)
    finally:
        seams.unbind()


def pruned_model(kind: str, layers="all", **options):
    model = zoo.make_model(kind, **options).eval()
    prune.prune(model, prunable(model) if layers == "all" else layers)
    return model


def padded_left(batch):
    return {name: x.flip(-1) if name in ("input_ids", "attention_mask") else x for name, x in batch.items()}


def assert_same_in_float64(stock, model, batch) -> None:
    """The weights are in float32, as they were saved; what both models compute of them is compared in float64."""
    with float64():
        batch = {name: x.double() if x.is_floating_point() else x for name, x in batch.items()}
        assert_same_numbers(*(logits(copy.deepcopy(x).double(), batch) for x in (stock, model)))


# ------------------------------------------------------------------------------------------------ surgery


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ENCODERS)
def test_pruned_model_equals_uniform_attention(kind: str, attention: str) -> None:
    batch = zoo.make_batch(kind)
    everything = prunable(zoo.make_model(kind))
    for layers in [everything] if kind == "albert" else [everything[:1], everything[-1:], everything]:
        model = sharpened(zoo.make_model(kind, attention=attention)).eval()
        expected, stock = uniform_logits(model, batch, layers), logits(model, batch)
        done = prune.prune(model, layers)
        assert done.layers == tuple(layers)
        assert_same_numbers(logits(model, batch), expected)
        assert not torch.allclose(stock, expected, atol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["bert", "distilbert"])
@torch.no_grad()
def test_forward_of_a_pruned_model_is_captured(kind: str) -> None:
    model = sharpened(zoo.make_model(kind)).eval().cuda()
    prune.prune(model, prunable(model)[1:])
    graphs, masks = Graphs(torch.device("cuda")), []
    for seed in (0, 1):  # the second is a replay, with other padding
        batch = {name: x.cuda() for name, x in zoo.make_batch(kind, seed=seed).items() if name != "labels"}
        batch["attention_mask"][:, 4 + seed :] = 0
        static, key = graphs.static_batch(batch)
        actual = graphs.run(key, lambda static=static: model(**static).logits, forward_of=model)
        assert graphs.failure is None
        assert torch.allclose(actual, model(**batch).logits, atol=1e-5)
        masks.append(batch["attention_mask"])
    assert not torch.equal(*masks)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", zoo.HEADS)
def test_every_pruned_task_head_equals_uniform_attention(kind: str) -> None:
    model, batch = zoo.make_model(kind).eval(), zoo.make_batch(kind)
    expected = uniform_logits(model, batch, [0, 1])
    prune.prune(model, [0, 1])
    assert_same_numbers(logits(model, batch), expected)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "deberta_v2", "mpnet", "t5"])
def test_padding_on_the_left_is_ignored(kind: str) -> None:
    model, batch = zoo.make_model(kind).eval(), padded_left(zoo.make_batch(kind))
    batch["attention_mask"][:, 0] = 1  # the token that classifiers read, so that there is padding in the middle too
    expected = uniform_logits(model, batch, [0, 1])
    prune.prune(model, [0, 1])
    assert_same_numbers(logits(model, batch), expected)
    other = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, 17)
    assert_same_numbers(logits(model, dict(batch, input_ids=other)), expected)


@pytest.mark.parametrize("kind", ENCODERS)
def test_pruned_layer_keeps_one_projection_matrix(kind: str) -> None:
    model = zoo.make_model(kind)
    layer = encoder_layers(model)[0]
    before = sum(p.numel() for p in model.parameters())
    name, layout, bias = layer.site.name, layer.layout, any("bias" in n for n, _ in layer.module.named_parameters())
    done = prune.prune(model, prunable(model) if kind == "albert" else [0])
    constant, width = model.get_submodule(name), model.config.hidden_size
    assert isinstance(constant, prune.ConstantAttention)
    assert not [n for n, _ in constant.named_modules() if n in (layout.q, layout.k, layout.v, layout.o)]
    assert [tuple(p.shape) for p in constant.project.parameters()] == [(width, width), (width,)][
        : 2 if bias and kind != "t5" else 1
    ]
    after = sum(p.numel() for p in model.parameters())
    assert (done.parameters_before, done.parameters_after) == (before, after)
    assert before - after >= 3 * width * width
    assert f"{after:,}" in str(done)


@pytest.mark.parametrize("kind", ENCODERS)
def test_pruned_model_can_be_trained_further(kind: str) -> None:
    model, batch = pruned_model(kind, dropout=False).train(), zoo.make_batch(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(4):
        loss = model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    constants = [x for x in model.modules() if isinstance(x, prune.ConstantAttention)]
    assert constants
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for x in constants for p in x.project.parameters())
    assert losses[-1] < losses[0]


@pytest.mark.usefixtures("float64")
def test_gradient_of_the_embeddings_equals_that_of_uniform_attention() -> None:
    """Compared at the embeddings, which both models have."""
    model, batch = zoo.make_model("bert", dropout=False), zoo.make_batch("bert")
    twin = copy.deepcopy(model)
    seams = bind(twin)
    with seams.applied(Plan(uniform=frozenset({0, 1}))):
        twin(**batch).loss.backward()
    prune.prune(model, [0, 1])
    model(**batch).loss.backward()
    ours, theirs = (x.bert.embeddings.word_embeddings.weight.grad for x in (model, twin))
    assert_same_numbers(ours, theirs)


def test_dropout_after_a_pruned_layer_differs_between_tokens() -> None:
    model, batch = pruned_model("bert").train(), zoo.make_batch("bert")
    seen = []
    dropout = model.bert.encoder.layer[0].attention.output.dropout
    dropout.p = 0.5
    dropout.register_forward_hook(lambda module, args, output: seen.append(output))
    model(**batch)
    assert not torch.equal(seen[0][:, 0] == 0, seen[0][:, 1] == 0)


@pytest.mark.usefixtures("float64")
def test_layers_can_be_pruned_one_by_one_and_copies_are_independent() -> None:
    model, batch = zoo.make_model("bert").eval(), zoo.make_batch("bert")
    expected = uniform_logits(model, batch, [0, 1])
    assert prune.prune(model, [1]).remaining == (0,)
    twin = copy.deepcopy(model)
    assert prune.prune(model, [0]).remaining == ()
    assert_same_numbers(logits(model, batch), expected)
    assert [x.is_pruned for x in encoder_layers(twin)] == [False, True]
    assert torch.equal(logits(pickle.loads(pickle.dumps(model)), batch), logits(model, batch))


def test_layers_may_be_negative_or_numpy_or_torch_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    for layers in (-1, [-1], numpy.array([1]), torch.tensor([1]), numpy.int64(1), slice(1, None), {1}):
        assert prune.prune(zoo.make_model("bert"), layers).layers == (1,)


def test_remaining_layers_can_be_bound() -> None:
    model, batch = pruned_model("bert", [0]), zoo.make_batch("bert")
    plain = logits(model, batch)
    seams = bind(model)
    assert [site.name for site in seams.sites] == ["bert.encoder.layer.1.attention.self"]
    assert torch.equal(logits(model, batch), plain)
    with pytest.raises(ValueError, match="is bound.*unbind"):
        prune.prune(model, [1])


def test_pruned_model_compiles_in_one_graph() -> None:
    model, batch = pruned_model("bert", [0]), zoo.make_batch("bert")
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(logits(compiled, batch), logits(model, batch))


def test_pruning_keeps_frozen_weights_and_half_precision() -> None:
    model = zoo.make_model("bert").requires_grad_(False).to(torch.bfloat16).eval()
    prune.prune(model, [0, 1])
    assert not any(p.requires_grad for p in model.parameters())
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert logits(model, zoo.make_batch("bert")).isfinite().all()


# ------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("kind", "layers", "message"),
    [
        ("bert", [5], r"layers is \[5\], but there is no layer 5; this model has layers 0 to 1"),
        ("bert", ["x"], r"layers is \['x'\], but there is no layer 'x'"),
        ("bert", [1.5], "there is no layer 1.5"),
        ("bert", [], "which selects no layer"),
        ("bert", "last", "layers is 'last'; it must be"),
        ("modernbert", [0, 1], r"layer 1 of .* sliding window .*; allowed: 0\."),
        ("albert", [0, 2], r"layer 0 of .* shares its module with layers 0, 1, 2.* all or none"),
        ("gpt2", [0], "GPT2LMHeadModel has no bidirectional self attention: .*only layers of an encoder"),
        ("llama", [0], "LlamaForCausalLM has no bidirectional self attention"),
    ],
)
def test_layers_that_cannot_be_pruned_are_refused_and_nothing_changes(kind: str, layers, message: str) -> None:
    model, batch = zoo.make_model(kind).eval(), zoo.make_batch(kind)
    before = logits(model, batch)
    with pytest.raises(ValueError, match=message):
        prune.prune(model, layers)
    assert torch.equal(logits(model, batch), before)
    assert not any(isinstance(x, prune.ConstantAttention) for x in model.modules())


def test_decoders_are_refused_and_never_changed() -> None:
    config = hf.BertConfig(**zoo.SMALL, **zoo.TEXT, is_decoder=True)
    with pytest.raises(ValueError, match="BertLMHeadModel has no bidirectional self attention"):
        prune.prune(hf.BertLMHeadModel(config), [0])
    model = pruned_model("bart")
    assert not any(isinstance(x, prune.ConstantAttention) for x in model.model.decoder.modules())
    with pytest.raises(ValueError, match="there is no layer 2; this model has layers 0 to 1"):
        prune.prune(zoo.make_model("bart"), [2])


def test_pruning_twice_and_unknown_projections_are_refused(monkeypatch) -> None:
    model = pruned_model("bert", [0])
    with pytest.raises(ValueError, match=r"layer 0 of .* is pruned already; allowed: 1\."):
        prune.prune(model, [0, 1])
    assert not encoder_layers(model)[1].is_pruned
    monkeypatch.delitem(LAYOUTS, "BertSelfAttention")
    with pytest.raises(ValueError, match="class BertSelfAttention, whose projections are not in .*LAYOUTS"):
        prune.prune(zoo.make_model("bert"), [0])


def test_unmerged_adapters_are_refused() -> None:
    peft = pytest.importorskip("peft")
    model = peft.get_peft_model(zoo.make_model("bert"), peft.LoraConfig(target_modules=["value"]))
    with pytest.raises(ValueError, match=r"must be torch.nn.Linear \(merge adapters"):
        prune.prune(model, [0])
    merged = model.merge_and_unload()
    assert prune.prune(merged, [0]).layers == (0,)


# ---------------------------------------------------------------------------------------------------- masks


def test_every_mask_format_gives_the_same_mean_weights() -> None:
    valid = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0]])
    expected = torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0], [1 / 2, 1 / 2, 0, 0]]).unsqueeze(1)
    rows = valid.bool()[:, None, None, :]
    pairs = (rows & rows.transpose(-1, -2)).long()
    least = torch.finfo(torch.float32).min
    for mask in (
        valid,
        valid.bool(),
        valid.float(),
        rows,
        rows.expand(2, 1, 4, 4),
        rows.expand(2, 3, 4, 4).clone(),
        torch.zeros(2, 1, 4, 4).masked_fill(~rows, least),
        torch.zeros(2, 1, 1, 4).masked_fill(~rows, float("-inf")),
        pairs,
    ):
        torch.testing.assert_close(mean_weights(mask, torch.float32), expected)
        torch.testing.assert_close(mean_weights(mask, torch.float32), expected)  # from what is kept on the mask
    torch.testing.assert_close(mean_weights(pairs.float(), torch.float32, binary=True), expected)


def test_sequence_of_padding_stays_finite() -> None:
    torch.testing.assert_close(mean_weights(torch.zeros(1, 4), torch.float32), torch.full((1, 1, 4), 0.25))
    model, batch = pruned_model("bert"), zoo.make_batch("bert")
    batch["attention_mask"][2] = 0
    assert logits(model, batch).isfinite().all()


def test_mask_changed_in_place_is_read_again() -> None:
    mask = torch.tensor([[1, 1, 1, 0]])
    mean_weights(mask, torch.float32)
    mask[0, 2] = 0
    assert mean_weights(mask, torch.float32).tolist() == [[[0.5, 0.5, 0, 0]]]
    with torch.inference_mode():
        mask = torch.tensor([[1, 1, 1, 1]])
        mean_weights(mask, torch.float32)
        mask[0, 2:] = 0
        assert mean_weights(mask, torch.float32).tolist() == [[[0.5, 0.5, 0, 0]]]


def test_packed_sequences_are_refused() -> None:
    model, batch = pruned_model("bert", [0]), zoo.make_batch("bert", size=1, length=6)
    packed = torch.block_diag(torch.ones(3, 3), torch.ones(3, 3)).bool().view(1, 1, 6, 6)
    with pytest.raises(ValueError, match=r"attention_mask has shape \[1, 1, 6, 6\] .* see different tokens"):
        model(input_ids=batch["input_ids"], attention_mask=packed)


# -------------------------------------------------------------------------------------------------- storage


@pytest.mark.parametrize("kind", ENCODERS)
def test_saved_model_loads_with_the_same_outputs(kind: str, tmp_path) -> None:
    model, batch = pruned_model(kind), zoo.make_batch(kind)
    expected = logits(model, batch)
    folder = prune.save(model, tmp_path / "pruned")
    loaded = prune.load(folder)
    assert torch.equal(logits(loaded, batch), expected)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    config = json.loads((folder / "config.json").read_text())
    assert config["attendrop_pruned_layers"] == prunable(zoo.make_model(kind))
    assert config["attendrop_exact_in_transformers"] == (kind not in BIASED)
    stock, info = type(model).from_pretrained(folder, output_loading_info=True)
    assert not any(info[keys] for keys in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    if kind in BIASED:
        assert not torch.allclose(logits(stock, batch), expected, atol=1e-4)
    else:
        assert_same_in_float64(stock, model, batch)
    card = (folder / "README.md").read_text()
    assert ("Do not load it with plain transformers" in card) == (kind in BIASED)
    assert "prune.load" in card
    assert "FLOPs" in card
    names = {"README.md", MANIFEST_FILE, "config.json", "model.safetensors"}
    assert {p.name for p in folder.iterdir() if p.stem != "generation_config"} == names
    assert [p.name for p in tmp_path.iterdir()] == ["pruned"]


def test_auto_classes_load_it_and_a_loaded_model_can_be_saved_again(tmp_path) -> None:
    model, batch = pruned_model("roberta", [1]), zoo.make_batch("roberta")
    again = prune.load(prune.save(prune.load(prune.save(model, tmp_path / "a")), tmp_path / "b" / "c"))
    assert torch.equal(logits(again, batch), logits(model, batch))
    stock = hf.AutoModelForSequenceClassification.from_pretrained(tmp_path / "b" / "c")
    assert_same_in_float64(stock, model, batch)
    assert model.config.attendrop_pruned_layers == [1]


@pytest.mark.parametrize("kind", ["bert", "deberta_v2", "modernbert", "albert", "mpnet", "t5"])
def test_any_state_of_a_pruned_model_is_in_the_stock_layout_and_loads_again(kind: str) -> None:
    stock, batch = zoo.make_model(kind).eval(), zoo.make_batch(kind)
    model, other = (pruned_model(kind, prunable(stock)) for _ in range(2))
    state = model.state_dict()
    assert {name: x.shape for name, x in state.items()} == {name: x.shape for name, x in stock.state_dict().items()}
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    assert other.load_state_dict(state) == ([], [])
    assert all(torch.equal(x, y) for x, y in zip(model.parameters(), other.parameters(), strict=True))
    assert torch.equal(logits(copy.deepcopy(model), batch), logits(other, batch))
    wrapped = torch.nn.Sequential(copy.deepcopy(model))
    assert wrapped.state_dict().keys() == {f"0.{name}" for name in state}
    assert wrapped.load_state_dict(wrapped.state_dict()) == ([], [])
    if kind not in BIASED:
        stock.load_state_dict(state)
        assert_same_in_float64(stock, model, batch)


@pytest.mark.parametrize("trainer_class", [hf.Trainer, RegularizedTrainer])
def test_trainers_save_and_resume_a_pruned_model(trainer_class: Any, tmp_path: Path) -> None:
    examples = data.make_examples("bert", 16)

    def trainer(steps: int) -> Any:
        more: dict[str, Any] = (
            {"regularizers": [ADDrop(cross_tuning=False)]} if trainer_class is RegularizedTrainer else {}
        )
        args = data.make_arguments(tmp_path / "run", max_steps=steps, save_steps=2, save_strategy="steps")
        model = pruned_model("bert", [0])
        return trainer_class(model=model, args=args, train_dataset=examples, data_collator=data.pad, **more)

    whole = trainer(4)
    whole.train()
    assert {"bert.encoder.layer.0.attention.self.query.weight"} < load_file(
        tmp_path / "run/checkpoint-2/model.safetensors"
    ).keys()
    resumed = trainer(4)
    resumed.train(str(tmp_path / "run/checkpoint-2"))
    weights = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)
    whole.save_model(str(tmp_path / "final"))
    whole.model.eval()
    batch = zoo.make_batch("bert")
    assert torch.equal(logits(prune.load(tmp_path / "final"), batch), logits(whole.model, batch))
    stock, info = hf.BertForSequenceClassification.from_pretrained(tmp_path / "final", output_loading_info=True)
    assert not any(info[keys] for keys in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert_same_in_float64(stock, whole.model, batch)


def test_a_model_without_a_norm_of_relative_positions_is_saved(tmp_path: Path) -> None:
    config = zoo.make_model("deberta_v2").config
    config.norm_rel_ebd = "none"
    model = hf.DebertaV2ForSequenceClassification(config).eval()
    prune.prune(model, [0])
    trained = [parameter.requires_grad for parameter in model.parameters()]
    batch = zoo.make_batch("deberta_v2")
    assert torch.equal(logits(prune.load(prune.save(model, tmp_path / "x")), batch), logits(model, batch))
    assert [parameter.requires_grad for parameter in model.parameters()] == trained


def test_a_generator_of_a_pruned_model_scores_the_layers_that_are_left() -> None:
    model, batch = pruned_model("bert", [0]), zoo.make_batch("bert")
    generator = Generator.from_model(model, 1, init_drop=0.3)
    scores = prune.score_layers(model, [batch], by="gate", generator=generator)
    assert scores == [-math.inf, pytest.approx(float(generator.drop_probabilities(batch)))]


@pytest.mark.parametrize("kind", ["bert", "masked", "modernbert", "t5"])
def test_model_trained_after_pruning_loads_with_the_same_outputs(kind: str, tmp_path) -> None:
    model, batch = pruned_model(kind, [0]), zoo.make_batch(kind)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model(**batch).loss.backward()
    optimizer.step()
    prune.save(model, tmp_path / "x")
    assert torch.equal(logits(prune.load(tmp_path / "x"), batch), logits(model, batch))
    if kind not in BIASED:
        stock = type(model).from_pretrained(tmp_path / "x")
        assert_same_in_float64(stock, model, batch)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("width", "bias"), [(4, True), (16, True), (16, False), (4, False)])
def test_models_with_narrower_or_wider_heads_load_with_the_same_outputs(width: int, bias: bool, tmp_path) -> None:
    """Four heads of 4 or 16 in a model of 32: the projections are not square, and biases may be missing."""
    torch.manual_seed(0)
    config = hf.ViTConfig(**zoo.SMALL, image_size=16, patch_size=4, qkv_bias=bias, num_labels=3)
    config.head_dim = width
    model, batch = hf.ViTForImageClassification(config).eval(), zoo.make_batch("vit")
    expected = uniform_logits(model, batch, [0, 1])
    prune.prune(model, [0, 1])
    assert_same_numbers(logits(model, batch), expected)
    model(**batch).loss.backward()
    torch.optim.SGD(model.parameters(), lr=0.05).step()
    prune.save(model, tmp_path / "x")
    assert torch.equal(logits(prune.load(tmp_path / "x"), batch), logits(model, batch))
    stock = hf.ViTForImageClassification.from_pretrained(tmp_path / "x")
    assert_same_in_float64(stock, model, batch)


def test_half_precision_model_loads_with_the_same_outputs(tmp_path) -> None:
    model, batch = pruned_model("bert", [0]).to(torch.bfloat16), zoo.make_batch("bert")
    loaded = prune.load(prune.save(model, tmp_path / "x"))
    assert loaded.dtype == torch.bfloat16
    assert torch.equal(logits(loaded, batch), logits(model, batch))


def test_refused_or_failed_save_leaves_no_files(tmp_path, monkeypatch) -> None:
    with pytest.raises(ValueError, match="without pruned layers"):
        prune.save(zoo.make_model("bert"), tmp_path / "x")
    model = pruned_model("bert", [0])
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"full', which has files in it.*overwrite=True"):
        prune.save(model, tmp_path / "full")
    with pytest.raises(ValueError, match="which is a file"):
        prune.save(model, tmp_path / "full" / "notes.txt", overwrite=True)
    monkeypatch.setattr("attendrop.prune.storage.pruned_card", lambda *_: 1 / 0)
    for overwrite in (False, True):
        with pytest.raises(ZeroDivisionError):
            prune.save(model, tmp_path / ("full" if overwrite else "x"), overwrite=overwrite)
    assert [str(p.relative_to(tmp_path)) for p in sorted(tmp_path.rglob("*"))] == ["full", "full/notes.txt"]


def test_overwriting_removes_only_older_weights(tmp_path) -> None:
    for name in ("notes.txt", "model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        (tmp_path / name).write_text("{}")
    model = pruned_model("bert", [0])
    prune.save(model, tmp_path, overwrite=True)
    written = ["README.md", MANIFEST_FILE, "config.json", "model.safetensors"]
    assert sorted(p.name for p in tmp_path.iterdir()) == [*written, "notes.txt"]
    batch = zoo.make_batch("bert")
    assert torch.equal(logits(prune.load(tmp_path), batch), logits(model, batch))


def set_config(folder, **fields) -> None:
    """Change the configuration of a folder that has no seal: an older version wrote it, or the user removed it."""
    (folder / MANIFEST_FILE).unlink(missing_ok=True)
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_loading_a_folder_without_a_pruned_model_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"nowhere', which has no config.json"):
        prune.load(tmp_path / "nowhere")
    zoo.make_model("bert").save_pretrained(tmp_path / "stock")
    with pytest.raises(ValueError, match=r"attendrop_pruned_layers .* is None; in a folder that save\(\) wrote"):
        prune.load(tmp_path / "stock")
    set_config(tmp_path / "stock", attendrop_pruned_layers=[0])
    with pytest.raises(ValueError, match="names layer 0, whose query and key weights are not zero"):
        prune.load(tmp_path / "stock")
    (tmp_path / "stock" / "config.json").write_text("[]x")
    with pytest.raises(ValueError, match=r"config.json' is not a configuration"):
        prune.load(tmp_path / "stock")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"attendrop_pruned_layers": [0, 7]}, r"attendrop_pruned_layers is \[0, 7\], but there is no layer 7"),
        ({"attendrop_pruned_layers": [0, 1]}, "names layer 1, whose query and key weights are not zero"),
        ({"attendrop_pruned_layers": "0"}, "attendrop_pruned_layers .* is '0'"),
        ({"attendrop_pruned_layers": []}, r"attendrop_pruned_layers .* is \[\]"),
        ({"architectures": ["NoSuchModel"]}, "architectures .* names 'NoSuchModel', which is not a model"),
        ({"num_hidden_layers": 3}, "are not those of its config.json: .* are not in its weights"),
        ({"intermediate_size": 20}, "does not load as BertForSequenceClassification|are not those of its config.json"),
    ],
)
def test_loading_a_configuration_that_disagrees_with_the_weights_is_refused(fields, message, tmp_path) -> None:
    prune.save(pruned_model("bert", [0]), tmp_path / "x")
    set_config(tmp_path / "x", **fields)
    with pytest.raises(ValueError, match=message):
        prune.load(tmp_path / "x")


def test_a_pruned_folder_is_sealed(tmp_path) -> None:
    model = pruned_model("bert", [0])
    prune.save(model, tmp_path / "x")
    moved = shutil.copytree(tmp_path / "x", tmp_path / "y")
    (moved / "README.md").write_text("# My model")
    batch = zoo.make_batch("bert")
    assert torch.equal(logits(prune.load(moved), batch), logits(model, batch))
    config = (moved / "config.json").read_text()
    (moved / "config.json").write_text(config.replace('"num_attention_heads": 4', '"num_attention_heads": 2'))
    with pytest.raises(ValueError, match="the content of config.json was changed; copy the folder again, or"):
        prune.load(moved)


def test_loading_incomplete_or_pickled_weights_is_refused(tmp_path) -> None:
    prune.save(pruned_model("bert", [0]), tmp_path / "x")
    file = tmp_path / "x" / "model.safetensors"
    weights = load_file(file)
    del weights["bert.encoder.layer.0.attention.self.query.bias"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(ValueError, match=r"model.safetensors has [\d,]+ bytes and was written with"):
        prune.load(tmp_path / "x")
    (tmp_path / "x" / MANIFEST_FILE).unlink()
    with pytest.raises(ValueError, match="bert.encoder.layer.0.attention.self.query.bias is not in its weights"):
        prune.load(tmp_path / "x")
    file.unlink()
    torch.save(weights, tmp_path / "x" / "pytorch_model.bin")
    with pytest.raises(ValueError, match="does not load as BertForSequenceClassification"):
        prune.load(tmp_path / "x")


# -------------------------------------------------------------------------------------------------- measure


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_flops_match_the_shapes(attention: str) -> None:
    model = zoo.make_model("bert", attention=attention)
    before = prune.cost_of(model, batch=2, length=10, rounds=1)
    prune.prune(model, [0])
    after = prune.cost_of(model, batch=2, length=10, rounds=1)
    tokens, d, f = 2 * 10, 32, 48
    head = 2 * 2 * (d * d + d * 3)
    attending = 2 * tokens * (4 * d * d + 2 * 10 * d)
    assert before.flops == 2 * (attending + 2 * tokens * 2 * d * f) + head
    assert before.flops - after.flops == attending - 2 * 2 * d * d
    assert model.training
    table = str(prune.Comparison(before, after))
    assert [line.split()[0] for line in table.splitlines()] == ["before", "parameters", "FLOPs", "time"]
    assert "at 2 × 10" in table
    assert prune.Comparison(before, after).speedup == before.milliseconds / after.milliseconds


@pytest.mark.parametrize("kind", ENCODERS)
def test_pruning_reduces_flops_and_parameters(kind: str) -> None:
    model = zoo.make_model(kind)
    before = prune.cost_of(model, batch=2, length=12, rounds=0)
    prune.prune(model, prunable(model))
    after = prune.cost_of(model, batch=2, length=12, rounds=0)
    assert after.flops < before.flops
    assert after.parameters < before.parameters
    assert after.milliseconds is None
    assert all(x.shape[0] == 2 for x in example(model, 2, 12).values())


# -------------------------------------------------------------------------------------------------- criteria


@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.parametrize("by", ["similarity", "gradient"])
def test_scoring_gives_one_score_per_layer_and_changes_nothing(kind: str, by: str) -> None:
    model, batch = zoo.make_model(kind), zoo.make_batch(kind)
    before = {name: x.clone() for name, x in model.state_dict().items()}
    state = torch.get_rng_state()
    scores = prune.score_layers(model, [batch, zoo.make_batch(kind, seed=7)], by=by)
    assert len(scores) == len(encoder_layers(model))
    assert all(-1 <= s <= 1 if by == "similarity" else s <= 0 for s in scores)
    assert len(set(scores)) > 1
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.parameters())
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    assert not any(x._forward_hooks or x._forward_pre_hooks for x in model.modules())


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", sorted(set(ENCODERS) - {"albert"}))
@pytest.mark.parametrize("silent", [0, 1])
def test_layer_with_zero_output_has_the_highest_score(kind: str, silent: int) -> None:
    model, batch = zoo.make_model(kind), zoo.make_batch(kind)
    layer = encoder_layers(model)[silent]
    owner = model.get_submodule(layer.site.name.rpartition(".")[0]) if layer.layout.o_outside else layer.module
    with torch.no_grad():
        for parameter in owner.get_submodule(layer.layout.o).parameters():
            parameter.zero_()
    scores = prune.score_layers(model, [batch])
    assert scores[silent] == pytest.approx(1, abs=1e-11)
    assert scores[1 - silent] < scores[silent]
    effects = prune.score_layers(model, [batch], by="gradient")
    assert effects[silent] == 0
    assert effects[1 - silent] < 0


@pytest.mark.usefixtures("float64")
def test_similarity_compares_the_residual_stream_before_and_after() -> None:
    """Computed by hand for a block that normalises after the residual and for one that normalises before."""
    model, batch = zoo.make_model("bert").eval(), zoo.make_batch("bert")
    x = model.bert.embeddings(batch["input_ids"])
    block = model.bert.encoder.layer[0]
    mask = torch.zeros(3, 1, 9, 9).masked_fill((batch["attention_mask"] == 0)[:, None, None, :], float("-inf"))
    y = x + block.attention.output.dense(block.attention.self(x, attention_mask=mask)[0])
    cosine = torch.nn.functional.cosine_similarity(x, y, dim=-1)[batch["attention_mask"] == 1].mean()
    assert prune.score_layers(model, [batch])[0] == pytest.approx(cosine.item(), abs=1e-11)

    model, batch = zoo.make_model("vit").eval(), zoo.make_batch("vit")
    x = model.vit.embeddings(batch["pixel_values"])
    block = next(m for m in model.modules() if type(m).__name__ == "ViTLayer")
    y = x + block.attention(block.layernorm_before(x))[0]
    cosine = torch.nn.functional.cosine_similarity(x, y, dim=-1).mean()
    assert prune.score_layers(model, [batch])[0] == pytest.approx(cosine.item(), abs=1e-11)


@pytest.mark.usefixtures("float64")
def test_scores_are_averaged_over_tokens() -> None:
    model, batch = zoo.make_model("bert"), zoo.make_batch("bert")
    single = [{name: x[i : i + 1] for name, x in batch.items()} for i in range(3)]
    assert prune.score_layers(model, single) == pytest.approx(prune.score_layers(model, [batch]), abs=1e-11)
    by = "gradient"
    assert prune.score_layers(model, single, by) == pytest.approx(prune.score_layers(model, [batch], by), rel=1e-9)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "t5", "mpnet", "vit", "choice"])
def test_gradient_score_estimates_the_change_of_the_loss(kind: str) -> None:
    """To first order: with small query weights attention is nearly uniform, and the estimate is nearly exact."""
    model, batch = zoo.make_model(kind, dropout=False).eval(), zoo.make_batch(kind)
    layers = encoder_layers(model)
    with torch.no_grad():
        for layer in layers:
            for parameter in layer.module.get_submodule(layer.layout.q).parameters():
                parameter.mul_(1e-4)
        for name, parameter in model.named_parameters():
            if "relative_attention_bias" in name:
                parameter.mul_(1e-4)
    estimates = prune.effects_of_uniform(model, [batch]).mean(0)
    seams = bind(model)
    for layer, estimate in zip(layers, estimates.tolist(), strict=True):
        with torch.no_grad():
            plain = model(**batch).loss
            with seams.applied(Plan(uniform=frozenset({layer.site.index}))):
                change = (model(**batch).loss - plain).item()
        assert change * estimate > 0
        assert estimate == pytest.approx(change, rel=0.1)


class Gate:
    """Like the generator of AttendOut: the mean drop probability of each layer on a batch."""

    def drop_probabilities(self, batch) -> torch.Tensor:
        return batch["input_ids"].float().mean() * torch.tensor([0.01, 0.02])


def test_generator_scores_are_averaged_over_examples() -> None:
    model = zoo.make_model("bert")
    data = [{"input_ids": torch.full((1, 4), 10)}, {"input_ids": torch.full((3, 4), 30)}]
    assert prune.score_layers(model, data, by="gate", generator=Gate()) == pytest.approx([0.25, 0.5])


def test_pruned_layers_have_the_lowest_score() -> None:
    model, batch = pruned_model("bert", [1]), zoo.make_batch("bert")
    for by, generator in (("similarity", None), ("gradient", None), ("gate", Gate())):
        first, second = prune.score_layers(model, [batch], by=by, generator=generator)
        assert first > second == float("-inf")
    prune.prune(model, [0])
    assert prune.score_layers(model, [batch], by="gradient") == [float("-inf")] * 2


def test_impossible_scores_are_refused() -> None:
    model, batch = zoo.make_model("bert"), zoo.make_batch("bert")
    with pytest.raises(ValueError, match="by is 'size'; it must be one of 'similarity', 'gradient', 'gate'"):
        prune.score_layers(model, [batch], by="size")
    with pytest.raises(ValueError, match="by is 'gate' and generator is None"):
        prune.score_layers(model, [batch], by="gate")
    with pytest.raises(ValueError, match="by is 'similarity' and generator is"):
        prune.score_layers(model, [batch], generator=Gate())
    with pytest.raises(ValueError, match="data is empty"):
        prune.score_layers(model, [])
    unlabelled = {name: x for name, x in batch.items() if name != "labels"}
    with pytest.raises(ValueError, match="the batch has no labels"):
        prune.score_layers(model, [unlabelled], by="gradient")
    with pytest.raises(ValueError, match="no bidirectional self attention"):
        prune.score_layers(zoo.make_model("gpt2"), [zoo.make_batch("gpt2")])
    three = zoo.make_model("albert")
    with pytest.raises(ValueError, match=r"gave shape \[2\]; it must be \[3\]"):
        prune.score_layers(three, [batch], by="gate", generator=Gate())


# ------------------------------------------------------------------------------------------------------ ONNX


@pytest.mark.parametrize("kind", ["bert", pytest.param("t5", marks=pytest.mark.slow), "vit"])
def test_exported_onnx_model_runs_on_other_sizes(kind: str, tmp_path) -> None:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")

    def inputs(size: int, length: int) -> dict[str, torch.Tensor]:
        batch = zoo.make_batch(kind, size=size, length=length)
        labels = batch.pop("labels")
        return {**batch, "decoder_input_ids": labels[:, : length - 4].clamp(min=0)} if kind == "t5" else batch

    model = pruned_model(kind, [0]).train()
    path = prune.export_onnx(model, tmp_path / "deep" / "model.onnx", inputs(1, 9))
    assert model.training
    assert [p.name for p in path.parent.iterdir()] == ["model.onnx"]
    session = runtime.InferenceSession(str(path))
    model.eval()
    for size, length in ((1, 9), (3, 7), (5, 8)):
        batch = inputs(size, length)
        actual = session.run(["logits"], {name: x.numpy() for name, x in batch.items()})[0]
        # another library in float32: its rounding is below 1e-5, and a wrong graph is far above
        assert relative_error(torch.from_numpy(actual), logits(model, batch).double()) < 1e-4
