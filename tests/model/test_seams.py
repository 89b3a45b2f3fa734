"""The seams: every field of a plan; an empty plan changes nothing; no traces after unbinding; independent copies."""

from __future__ import annotations

import copy
import io
import pickle
import threading

import pytest
import torch
from transformers import (
    BertForSequenceClassification,
    BertModel,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    OPTConfig,
    OPTForCausalLM,
    XLNetConfig,
    XLNetForSequenceClassification,
)

from attendrop import Plan, Seams, attribute, bind
from attendrop.kernels.attention_mask import Mask, as_keep
from attendrop.model.attention import zero_rows
from helpers import zoo
from helpers.oracles import LiteralAttention
from helpers.precision import assert_same_gradients, assert_same_numbers
from helpers.traces import traces


def logits(outputs) -> torch.Tensor:
    return outputs["start_logits"] if "start_logits" in outputs else outputs["logits"]


@pytest.mark.parametrize("kind", zoo.ARCHITECTURES + zoo.HEADS)
@pytest.mark.parametrize("training", [True, False])
def test_bound_model_with_an_empty_plan_equals_the_stock_model_exactly(kind: str, training: bool) -> None:
    model, batch = zoo.make_model(kind).train(training), zoo.make_batch(kind)
    torch.manual_seed(0)
    stock = model(**batch)
    seams = bind(model)
    torch.manual_seed(0)
    bound = model(**batch)
    assert torch.equal(logits(stock), logits(bound))
    assert torch.equal(stock.loss, bound.loss)
    assert model.training == training
    seams.unbind()
    assert traces(model) == []
    torch.manual_seed(0)
    assert torch.equal(logits(stock), logits(model(**batch)))


@pytest.mark.parametrize("kind", ["bert", "gpt2", "bart"])
def test_eager_models_stay_eager(kind: str) -> None:
    model, batch = zoo.make_model(kind, attention="eager").eval(), zoo.make_batch(kind)
    stock = model(**batch)
    seams = bind(model)
    assert torch.equal(logits(stock), logits(model(**batch)))
    seams.unbind()
    assert model.config._attn_implementation == "eager"


def test_padding_is_never_attended_to() -> None:
    """A name without a mask function would make transformers pass no mask."""
    model, batch = zoo.make_model("bert").eval(), zoo.make_batch("bert")
    seams = bind(model)
    for plan in (Plan(), Plan(keep={0: torch.rand(3, 4, 9, 9) > 0.5}), Plan(uniform=frozenset({0, 1}))):
        with seams.applied(plan):
            before = model(**batch).logits
            changed = dict(batch, input_ids=batch["input_ids"].masked_fill(batch["attention_mask"] == 0, 17))
            assert torch.equal(before, model(**changed).logits)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "t5", "mpnet", "deberta_v2"])
def test_uniform_equals_a_plan_that_drops_everything(kind: str) -> None:
    model, batch = zoo.make_model(kind).eval(), zoo.make_batch(kind)
    seams = bind(model)
    with seams.applied(Plan(keep={0: torch.zeros(1, 1, 1, 1, dtype=torch.bool)})):
        nothing = model(**batch).logits
    with seams.applied(Plan(uniform=frozenset({0}))):
        assert torch.equal(nothing, model(**batch).logits)
    assert not torch.allclose(nothing, model(**batch).logits)


@pytest.mark.usefixtures("float64")
def test_uniform_causal_row_averages_over_its_past() -> None:
    model, batch = zoo.make_model("gpt2").eval(), zoo.make_batch("gpt2", size=1)
    seams = bind(model)
    with seams.applied(Plan(uniform=frozenset({0}), record=frozenset({0}))):
        model(**batch)
        record = seams.records[0]
    past = torch.stack([record.value[0, :, : i + 1].mean(1) for i in range(9)])
    assert_same_numbers(record.output[0], past)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "bart", "t5", "mpnet"])
def test_precomputed_mask_equals_the_keep_mask(kind: str, attention: str) -> None:
    """Also where it has to be converted back: with a bias of the model, and with fields that need the map."""
    if kind == "mpnet" and attention == "eager":
        pytest.skip("its adapter knows one kernel")
    model, batch = zoo.make_model(kind, attention=attention).eval(), zoo.make_batch(kind)
    seams = bind(model)
    with torch.no_grad(), seams.applied(Plan(record=frozenset({0, 1}))):
        model(**batch)
        records = seams.records
    keep, rest = {}, (Plan(), Plan(scale={0: 2.0}), Plan(uniform=frozenset({1})), Plan(weights={0: torch.tensor(0.5)}))
    for site, record in records.items():
        shape = (*record.query.shape[:3], record.key.shape[2])
        keep[site] = torch.rand(shape, generator=torch.Generator().manual_seed(site)) > 0.6
        keep[site][:, 1, 2] = False  # a row that loses everything
    masks = {site: Mask.of(keep[site], record.valid, record.query.dtype) for site, record in records.items()}
    assert all(mask.empty.any() and not mask.empty.all() for mask in masks.values())
    more = torch.rand(records[0].query.shape[2], records[0].key.shape[2]) > 0.2
    for other in (*rest, Plan(keep={0: more})):
        results = []
        for plan in (Plan(keep=keep), Plan(keep=masks)):
            model.zero_grad()
            with seams.applied(plan | other):
                outputs = model(**batch)
                outputs.loss.backward()
            results.append((logits(outputs), *(p.grad for p in model.parameters() if p.grad is not None)))
        for expected, ours in zip(*results, strict=True):
            assert_same_numbers(ours, expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [8, 5])
def test_zeroed_rows_keep_their_layout_and_have_no_gradient(width: int, dtype: torch.dtype) -> None:
    x = torch.randn(2, 6, 3, width, dtype=dtype).transpose(1, 2).requires_grad_()
    rows = torch.rand(2, 1, 6, 1) < 0.5
    for given in (x, x[:, :, 1:], x[..., 1:]):
        some = rows[:, :, -given.shape[2] :]
        actual = zero_rows(given, some)
        assert torch.equal(actual, given.masked_fill(some, 0))
        assert actual.transpose(1, 2).is_contiguous()
        (gradient,) = torch.autograd.grad(actual.sum(), given)
        assert torch.equal(gradient, torch.ones_like(given).masked_fill(some, 0))


def test_views_repeat_a_precomputed_mask() -> None:
    keep, valid = torch.rand(3, 2, 4, 4) > 0.5, torch.ones(4, dtype=torch.bool)
    both = [Plan(keep={0: mask}).repeated(2, 3).keep[0] for mask in (keep, Mask.of(keep, valid, torch.float32))]
    assert torch.equal(as_keep(both[0]), as_keep(both[1]))


def test_exception_during_a_pass_leaves_no_traces() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")

    def explode(hidden: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("in the middle")

    seams = bind(model)
    with pytest.raises(RuntimeError, match="in the middle"), seams.applied(Plan(edits={0: (explode,)})):
        model(**batch)
    assert not seams.plan
    assert not seams.records
    seams.unbind()
    assert traces(model) == []
    with pytest.raises(IndexError):
        attribute(model, dict(batch, input_ids=batch["input_ids"] + 1000))
    assert traces(model) == []


def test_copied_model_has_independent_seams() -> None:
    model, batch = zoo.make_model("bert", dropout=False).eval(), zoo.make_batch("bert")
    seams = bind(model)
    twin = copy.deepcopy(model)
    plain = model(**batch).logits
    with torch.no_grad():
        twin.classifier.weight.zero_()
        twin.bert.encoder.layer[0].attention.self.value.weight.zero_()
    assert torch.equal(plain, model(**batch).logits)
    assert not torch.equal(plain, twin(**batch).logits)
    twin_seams = Seams.of(twin)
    assert twin_seams is not None
    assert twin_seams is not seams
    with seams.applied(Plan(uniform=frozenset({0, 1}))):
        assert not twin_seams.plan
        assert not torch.equal(plain, model(**batch).logits)
    assert twin.state_dict().keys() == model.state_dict().keys()
    twin_seams.unbind()
    assert traces(twin) == []
    assert traces(model) != []


@pytest.mark.parametrize("kind", zoo.ARCHITECTURES)
def test_skipped_block_returns_its_input_and_keeps_parameters_in_the_graph(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    model(**batch).loss.backward()
    with_gradient = {name for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    seams = bind(model)
    seen: list[torch.Tensor] = []

    def look(hidden: torch.Tensor) -> torch.Tensor:
        seen.append(hidden)
        return hidden

    with seams.applied(Plan(skip=frozenset({0}), edits={-1: (look,), 0: (look,)})):
        model(**batch).loss.backward()
    assert torch.equal(seen[0], seen[1])
    assert {name for name, p in model.named_parameters() if p.grad is not None} == with_gradient


def test_edits_run_in_order_after_their_block() -> None:
    model, batch = zoo.make_model("bert", dropout=False).eval(), zoo.make_batch("bert")
    seams = bind(model)
    double, add = (lambda h: h * 2), (lambda h: h + 1)
    plan = Plan(edits={1: (double,)}) | Plan(edits={1: (add,)})
    plain = model.bert(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    with seams.applied(plan):
        edited = model.bert(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    assert torch.equal(edited, plain * 2 + 1)


def test_plans_are_merged_field_by_field() -> None:
    a = Plan(keep={0: torch.tensor([True, True, False])}, uniform=frozenset({1}), scale={0: 2.0})
    b = Plan(keep={0: torch.tensor([True, False, True]), 1: torch.tensor([True])}, skip=frozenset({3}), scale={0: 3.0})
    merged = a | b
    assert merged.keep[0].tolist() == [True, False, False]
    assert merged.keep[1].tolist() == [True]
    assert (merged.uniform, merged.skip, merged.scale) == ({1}, {3}, {0: 6.0})
    assert not Plan()
    assert not (Plan() | Plan())
    with pytest.raises(AttributeError):
        a.uniform = frozenset()  # type: ignore[misc]


def test_calls_of_the_shared_attention_module_of_albert_are_separate_sites() -> None:
    model, batch = zoo.make_model("albert", dropout=False).eval(), zoo.make_batch("albert")
    seams = bind(model)
    results = []
    for site in range(3):
        with seams.applied(Plan(uniform=frozenset({site}))):
            results.append(model(**batch).logits)
    assert len(seams.sites) == 3
    assert not torch.equal(results[0], results[1])
    assert not torch.equal(results[1], results[2])


def test_unsupported_models_are_refused_by_name() -> None:
    model = XLNetForSequenceClassification(XLNetConfig(vocab_size=60, d_model=32, n_layer=2, n_head=4, d_inner=48))
    with pytest.raises(ValueError, match="XLNetForSequenceClassification does not call .* would need an adapter"):
        bind(model)
    assert traces(model) == []
    with pytest.raises(ValueError, match="not a transformers model"):
        bind(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("implementation", ["flash_attention_2", "flex_attention"])
def test_kernels_that_take_no_mask_are_refused(implementation: str) -> None:
    model = zoo.make_model("bert")
    model.config._attn_implementation_internal = implementation
    with pytest.raises(ValueError, match=f"attn_implementation of .* is '{implementation}'.*'sdpa'"):
        bind(model)
    assert model.config._attn_implementation == implementation


def test_binding_twice_is_refused() -> None:
    model = zoo.make_model("bert")
    bind(model)
    with pytest.raises(ValueError, match="bound already"):
        bind(model)


def test_saved_model_has_no_traces_of_attendrop(tmp_path) -> None:
    model = zoo.make_model("bert").eval()
    bind(model)
    model.save_pretrained(tmp_path)
    assert "attendrop" not in (tmp_path / "config.json").read_text()
    assert isinstance(model.bert, BertModel)
    loaded = type(model).from_pretrained(tmp_path).eval()
    batch = zoo.make_batch("bert")
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)


# ---- the weights behind the softmax, the projections ----------------------------------------------------------------


def random_factors(model, batch, seams: Seams) -> dict[int, torch.Tensor]:
    """Random factors for each attention map of the model."""
    with seams.applied(Plan(record=frozenset(range(len(seams.sites))))), torch.no_grad():
        model(**batch)
        shapes = {i: (*r.query.shape[:3], r.key.shape[2]) for i, r in seams.records.items()}
    g = torch.Generator().manual_seed(3)
    return {site: torch.rand(shape, generator=g) * 2 for site, shape in shapes.items()}


class Factored(LiteralAttention):
    """Literal attention whose maps are multiplied by factors, in calling order."""

    def __init__(self, factors: dict[int, torch.Tensor]) -> None:
        super().__init__()
        self.factors = factors

    def _see(self, attention: torch.Tensor) -> torch.Tensor:
        factor = self.factors[len(self.maps)]
        if attention.dim() == 3:  # DeBERTa lays the heads into the batch
            factor = factor.flatten(0, 1)
        return super()._see(attention * factor)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", zoo.ARCHITECTURES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_weights_multiply_attention_after_the_softmax(kind: str, attention: str) -> None:
    if kind in zoo.ADAPTED and attention == "eager":
        pytest.skip("transformers has one implementation here")
    model, batch = zoo.make_model(kind, dropout=False, attention=attention).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    seams = bind(model)
    factors = random_factors(model, batch, seams)
    with seams.applied(Plan(weights=factors)):
        actual = model(**batch)
        actual.loss.backward()
    Factored(factors).attach(literal)
    expected = literal(**batch)
    expected.loss.backward()
    assert_same_numbers(actual.logits, expected.logits)
    assert_same_gradients(model, literal)
    model.zero_grad()
    with seams.applied(Plan(weights={site: torch.ones(1) for site in factors})):
        assert_same_numbers(model(**batch).loss, bare_loss(kind, attention, batch))


def bare_loss(kind: str, attention: str, batch) -> torch.Tensor:
    return zoo.make_model(kind, dropout=False, attention=attention).train()(**batch).loss


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "llama", "t5", "mpnet", "deberta_v2"])
def test_weights_combine_with_keep_uniform_scale_and_record(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).eval(), zoo.make_batch(kind)
    seams = bind(model)
    factors = random_factors(model, batch, seams)
    keep = factors[0] > 1
    keep[0, 0, 0] = False  # a whole row
    with seams.applied(Plan(keep={0: keep}, weights={0: factors[0]}, scale={0: 3.0}, record=frozenset({0}))):
        model(**batch)
        record = seams.records[0]
    valid = record.valid.expand_as(keep)
    scores = (
        record.query
        @ record.key.repeat_interleave(record.query.shape[1] // record.key.shape[1], dim=1).transpose(-1, -2)
        * record.scaling
    )
    if record.bias is not None:
        scores = scores + record.bias
    dead = ~(keep & valid).any(-1, keepdim=True)
    maps = scores.masked_fill(~(keep & valid), float("-inf")).softmax(-1)
    maps = torch.where(dead, valid / valid.sum(-1, keepdim=True), maps)
    assert_same_numbers(record.output, 3 * (maps * factors[0] @ record.value_of_heads()).transpose(1, 2))
    with seams.applied(Plan(uniform=frozenset({0}), weights={0: factors[0]}, record=frozenset({0}))):
        model(**batch)
        record = seams.records[0]
    maps = factors[0] * valid / valid.sum(-1, keepdim=True)
    assert_same_numbers(record.output, (maps @ record.value_of_heads()).transpose(1, 2))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "t5", "mpnet", "deberta_v2"])
def test_map_edits_run_in_order_and_get_the_allowed_positions(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).eval(), zoo.make_batch(kind)
    seams = bind(model)
    seen = []

    def even(weights: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
        seen.append(weights)
        return (allowed / allowed.sum(-1, keepdim=True)).expand_as(weights)

    plan = Plan(maps={0: (even,)}) | Plan(maps={0: (lambda weights, allowed: weights * 2,)})
    with seams.applied(plan | Plan(weights={0: torch.full((1,), 3.0)}, record=frozenset({0}))):
        model(**batch)
        record = seams.records[0]
    assert_same_numbers(seen[0], 3 * record.attention())
    with seams.applied(Plan(uniform=frozenset({0}), record=frozenset({0}))):
        model(**batch)
        assert_same_numbers(record.output, 2 * seams.records[0].output)


@pytest.mark.usefixtures("float64")
def test_weights_keep_the_models_own_dropout() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    model.config.attention_probs_dropout_prob = 0.5
    for layer in model.bert.encoder.layer:
        layer.attention.self.dropout.p = 0.5
    seams = bind(model)
    with seams.applied(Plan(weights={0: torch.ones(1)}, record=frozenset({0}))):
        model(**batch)
        record = seams.records[0]
    without = (record.attention() @ record.value_of_heads()).transpose(1, 2)
    assert not torch.allclose(record.output, without, atol=1e-2)
    model.eval()
    with seams.applied(Plan(weights={0: torch.ones(1)}, record=frozenset({0}))):
        model(**batch)
        record = seams.records[0]
    assert_same_numbers(record.output, (record.attention() @ record.value_of_heads()).transpose(1, 2))


def projection_names(kind: str) -> list[str]:
    return {
        "bert": ["query", "key", "value"],
        "distilbert": ["q_lin", "k_lin", "v_lin"],
        "mpnet": ["q", "k", "v"],
        "t5": ["q", "k", "v"],
        "deberta_v2": ["query_proj", "key_proj", "value_proj"],
    }.get(kind, ["q_proj", "k_proj", "v_proj"])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "bart", "t5", "mpnet", "deberta_v2", "distilbert", "llama"])
def test_projections_multiply_query_key_and_value(kind: str) -> None:
    """Matches hooks on the linear layers. Rotary positions mix the features of a head, so Llama gets one factor."""
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    seams = bind(model)
    width = seams.sites[0].width
    assert width == model.config.hidden_size // 4
    groups = seams.sites[0].groups
    g = torch.Generator().manual_seed(3)
    factors = {
        site.index: tuple(
            torch.rand(3, heads, 1, 1 if kind == "llama" else width, generator=g) * 2 for heads in (4, groups, groups)
        )
        for site in seams.sites
    }
    for site in seams.sites:
        module = literal.get_submodule(site.name)
        for name, factor in zip(projection_names(kind), factors[site.index], strict=True):
            flat = factor.expand(-1, -1, 1, width).transpose(1, 2).flatten(2)  # [B, 1, H d]
            getattr(module, name).register_forward_hook(
                # T5 and DeBERTa also project position embeddings with these maps, which have no batch
                lambda m, args, y, flat=flat: y * flat if y.shape[0] == 3 else y
            )
    with seams.applied(Plan(projections=factors)):
        actual = model(**batch)
        actual.loss.backward()
    expected = literal(**batch)
    expected.loss.backward()
    assert_same_numbers(actual.logits, expected.logits)
    assert_same_gradients(model, literal)
    with seams.applied(Plan(projections={0: (None, None, torch.zeros(1))})):
        assert not torch.allclose(model(**batch).logits, actual.logits)


# ---- the feed-forward -----------------------------------------------------------------------------------------------

LAST_MAP = {
    "bert": "bert.encoder.layer.{}.output.dense",
    "roberta": "roberta.encoder.layer.{}.output.dense",
    "xlm_roberta": "roberta.encoder.layer.{}.output.dense",
    "electra": "electra.encoder.layer.{}.output.dense",
    "mpnet": "mpnet.encoder.layer.{}.output.dense",
    "deberta_v2": "deberta.encoder.layer.{}.output.dense",
    "distilbert": "distilbert.transformer.layer.{}.ffn.lin2",
    "modernbert": "model.layers.{}.mlp.Wo",
    "gpt2": "transformer.h.{}.mlp.c_proj",
    "llama": "model.layers.{}.mlp.down_proj",
    "qwen2": "model.layers.{}.mlp.down_proj",
    "vit": "vit.layers.{}.mlp.fc2",
    "albert": "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn_output",
}
ENCODER_AND_DECODER = {
    "bart": ("model.encoder.layers.{}.fc2", "model.decoder.layers.{}.fc2"),
    "marian": ("model.encoder.layers.{}.fc2", "model.decoder.layers.{}.fc2"),
    "t5": ("encoder.block.{}.layer.1.DenseReluDense.wo", "decoder.block.{}.layer.2.DenseReluDense.wo"),
}


def last_maps(kind: str) -> list[str]:
    """The names of the last linear layers of all feed-forwards, in calling order, read in transformers' source."""
    if kind in ENCODER_AND_DECODER:
        return [pattern.format(i) for pattern in ENCODER_AND_DECODER[kind] for i in range(2)]
    return [LAST_MAP[kind].format(i) for i in range(3 if kind == "albert" else 2)]


def edits_of(block: int) -> tuple:
    return (lambda x: x * (1.1 + 0.3 * block), lambda x: x + 0.05 * (block + 1))


def literal_feed_forward(model, names: list[str]) -> None:
    """Makes the same edits with hooks, which count the calls of each module."""
    turns: dict[str, list[int]] = {}
    for block, name in enumerate(names):
        turns.setdefault(name, []).append(block)
    for name, blocks in turns.items():
        module, calls = model.get_submodule(name), [0]

        def before(m, args, blocks=blocks, calls=calls):
            (x,) = args
            for edit in edits_of(blocks[calls[0] % len(blocks)])[::-1]:
                x = edit(x)
            return (x,)

        def behind(m, args, y, blocks=blocks, calls=calls):
            for edit in edits_of(blocks[calls[0] % len(blocks)]):
                y = edit(y)
            calls[0] += 1
            return y

        module.register_forward_pre_hook(before)
        module.register_forward_hook(behind)


def feed_forward_plan(blocks: int) -> Plan:
    plan = Plan()
    for block in range(blocks):
        first, second = edits_of(block)
        plan = plan | Plan(ffn={block: (first,)}, inner={block: (second,)})
        plan = plan | Plan(ffn={block: (second,)}, inner={block: (first,)})
    return plan


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", zoo.ARCHITECTURES)
def test_feed_forward_is_edited_before_and_after_its_last_linear(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    seams = bind(model)
    names = last_maps(kind)
    assert len(seams.blocks) == len(names)
    assert [name.startswith(f"{block}.") for block, name in zip(seams.blocks, names, strict=True)] == [True] * len(
        names
    )
    with seams.applied(feed_forward_plan(len(names))):
        actual = model(**batch)
        actual.loss.backward()
    literal_feed_forward(literal, names)
    expected = literal(**batch)
    expected.loss.backward()
    assert_same_numbers(actual.logits, expected.logits)
    assert_same_gradients(model, literal)
    assert type(model.get_submodule(names[0])) is not type(literal.get_submodule(names[0]))
    assert isinstance(model.get_submodule(names[0]), type(literal.get_submodule(names[0])))
    assert model.state_dict().keys() == literal.state_dict().keys()
    seams.unbind()
    assert traces(model) == []
    assert type(model.get_submodule(names[0])) is type(literal.get_submodule(names[0]))


def everything(seams: Seams) -> Plan:
    """A plan that changes every place, without random numbers."""
    sites, blocks = range(len(seams.sites)), range(len(seams.blocks))
    return feed_forward_plan(len(blocks)) | Plan(
        weights={site: torch.linspace(0.5, 1.5, 4).view(1, 4, 1, 1) for site in sites},
        projections={site: (torch.full((1,), 0.9), None, torch.full((1,), 1.1)) for site in sites},
        edits={block: (lambda x: x * 0.9,) for block in [-1, *blocks]},
    )


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", sorted(set(zoo.ARCHITECTURES) - zoo.NO_CHECKPOINTING))
def test_gradient_checkpointing_applies_the_whole_plan_again(kind: str) -> None:
    gradients = []
    for checkpointing in (False, True):
        model, batch = zoo.make_model(kind).train(), zoo.make_batch(kind)
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        seams = bind(model)
        torch.manual_seed(0)
        with seams.applied(everything(seams)):
            model(**batch).loss.backward()
        gradients.append([p.grad for p in model.parameters()])
    for a, b in zip(*gradients, strict=True):
        if a is not None or b is not None:
            assert_same_numbers(a, b)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "albert", "bart"])
def test_copied_model_has_independent_feed_forward_seams(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).eval(), zoo.make_batch(kind)
    seams = bind(model)
    twin = copy.deepcopy(model)
    plain = model(**batch).logits
    with torch.no_grad():
        twin.get_submodule(last_maps(kind)[-1]).weight.zero_()
    assert torch.equal(plain, model(**batch).logits)
    twin_seams = Seams.of(twin)
    plan = feed_forward_plan(len(seams.blocks))
    with seams.applied(plan):
        edited = model(**batch).logits
    with twin_seams.applied(plan):
        assert torch.equal(plain, model(**batch).logits)
        assert not torch.equal(edited, twin(**batch).logits)
    twin_seams.unbind()
    assert traces(twin) == []
    with seams.applied(plan):
        assert torch.equal(edited, model(**batch).logits)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("kind", "targets"), [("bert", ["output.dense", "query"]), ("gpt2", ["c_proj", "c_attn"]), ("llama", ["down_proj"])]
)
def test_lora_layer_as_a_whole_counts_as_the_last_linear(kind: str, targets: list[str]) -> None:
    peft = pytest.importorskip("peft")
    base, batch = zoo.make_model(kind, dropout=False), zoo.make_batch(kind)
    config = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights=False, fan_in_fan_out=kind == "gpt2")
    torch.manual_seed(0)
    model = peft.get_peft_model(base, config).train()
    literal = copy.deepcopy(model)
    seams = bind(model)
    names = [f"base_model.model.{name}" for name in last_maps(kind)]
    assert all("_attendrop_feed_forward" in vars(model.get_submodule(name)) for name in names)
    with seams.applied(feed_forward_plan(len(names))):
        actual = model(**batch)
        actual.loss.backward()
    literal_feed_forward(literal, names)
    expected = literal(**batch)
    expected.loss.backward()
    assert_same_numbers(actual.logits, expected.logits)
    assert any(p.grad is not None for p in model.parameters())
    assert_same_gradients(model, literal)
    seams.unbind()
    assert traces(model) == []


def test_missing_feed_forward_is_refused_only_when_it_is_needed() -> None:
    config = MixtralConfig(
        vocab_size=60, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, num_local_experts=4, pad_token_id=0,
    )  # fmt: skip
    model, batch = MixtralForCausalLM(config).eval(), zoo.make_batch("llama")
    seams = bind(model)
    with seams.applied(Plan(keep={0: torch.ones(1, 1, 1, 1, dtype=torch.bool)})):
        model(**batch)
    sentence = r"works on the feed-forward of each block, and model\.layers\.0 of MixtralForCausalLM has none"
    with pytest.raises(ValueError, match=f"HiddenCut {sentence}"):
        seams.needs_feed_forward("HiddenCut")
    with pytest.raises(ValueError, match=sentence), seams.applied(feed_forward_plan(1)):
        pass
    shares = DeepseekV3ForCausalLM(
        DeepseekV3Config(
            vocab_size=60, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=4, n_routed_experts=8, n_group=2, topk_group=1,
            num_experts_per_tok=2, first_k_dense_replace=1, q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=8,
            qk_nope_head_dim=8, v_head_dim=8,
        )
    )  # fmt: skip
    # the second block ends in an expert that all tokens share, which is a part of the feed-forward only
    assert bind(shares).lacks_feed_forward == [1]
    chunked = zoo.make_model("bert")
    for layer in chunked.bert.encoder.layer:
        layer.chunk_size_feed_forward = 1
    with pytest.raises(ValueError, match="has none"):
        bind(chunked).needs_feed_forward("HiddenCut")
    shared = zoo.make_model("bert")
    shared.bert.encoder.layer[1].output.dense = shared.bert.encoder.layer[0].output.dense
    seams = bind(shared)
    assert seams.lacks_feed_forward == [1]  # the map would not know whose turn it is
    opt = OPTForCausalLM(
        OPTConfig(vocab_size=60, hidden_size=32, ffn_dim=48, num_hidden_layers=1, num_attention_heads=4,
                  word_embed_proj_dim=32, max_position_embeddings=40)
    )  # fmt: skip
    with pytest.raises(ValueError, match="has none"):  # it lays all tokens in one row
        bind(opt).needs_feed_forward("HiddenCut")


def test_single_calls_of_the_shared_block_of_albert_can_be_edited() -> None:
    model, batch = zoo.make_model("albert", dropout=False).eval(), zoo.make_batch("albert")
    seams = bind(model)
    assert len(seams.blocks) == 3
    assert len(set(seams.blocks)) == 1
    assert [site.block for site in seams.sites] == [0, 1, 2]
    results = []
    for block in range(3):
        with seams.applied(Plan(edits={block: (lambda x: x * 2,)})):
            results.append(model(**batch).logits)
    assert not torch.allclose(results[0], results[1])
    assert not torch.allclose(results[1], results[2])
    seen = []
    with seams.applied(Plan(edits={-1: (lambda x: seen.append(x) or x,)})):
        model(**batch)
    assert len(seen) == 1


def test_blocks_are_selected_like_sites() -> None:
    seams = bind(zoo.make_model("bart"))
    assert seams.select_blocks("first") == [0, 2]
    assert seams.select_blocks([1]) == [1, 3]
    assert seams.select_blocks("all") == [0, 1, 2, 3]


def test_factors_multiply_and_are_repeated_for_views() -> None:
    a = Plan(weights={0: torch.full((3, 1, 1, 1), 2.0)}, projections={0: (torch.full((3, 1, 1, 1), 2.0), None, None)})
    b = Plan(
        weights={0: torch.full((1, 4, 1, 1), 3.0), 1: torch.ones(1)},
        projections={0: (torch.tensor(3.0), torch.tensor(5.0), None)},
        scale={0: torch.full((3, 1, 1, 1), 2.0), 1: torch.ones(4, 1)},
    )
    merged = a | b
    assert merged.weights[0].shape == (3, 4, 1, 1)
    assert merged.weights[0].unique().tolist() == [6.0]
    q, k, v = merged.projections[0]
    assert (q.unique().tolist(), k.item(), v) == ([6.0], 5.0, None)
    twice = merged.repeated(2, rows=3)
    assert twice.weights[0].shape[0] == 6
    assert twice.projections[0][0].shape[0] == 6
    assert twice.scale[0].shape[0] == 6
    assert twice.scale[1].shape == (4, 1)  # no dimension for the batch, so nothing to repeat
    assert twice.weights[1].shape == (1,)
    assert twice.repeated(2, rows=3).weights[0].shape[0] == 6  # made for both views already
    for field in ("weights", "maps", "projections", "ffn", "inner"):
        assert Plan(**{field: {0: ()}})
        assert Plan(**{field: {0: ()}}).touches(0) == (field in ("weights", "maps", "projections"))


# ---- several models at once, copies and pickles ----------------------------------------------------------------------


def test_threads_may_bind_at_the_same_time() -> None:
    failures: list[BaseException] = []

    def bind_often(kind: str) -> None:
        try:
            for _ in range(5):
                model = zoo.make_model(kind)
                seams = bind(model)
                assert len(seams.sites) == 2
                seams.unbind()
                assert traces(model) == []
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=bind_often, args=(kind,)) for kind in ("bert", "mpnet", "gpt2", "deberta_v2")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures[0]


def test_models_may_share_a_configuration() -> None:
    first = zoo.make_model("bert")
    second = BertForSequenceClassification(first.config)
    seams = bind(first)
    others = bind(second)
    seams.unbind()
    with others.applied(Plan(record=frozenset({0}))):  # still reads the plan
        second(**zoo.make_batch("bert"))
        assert 0 in others.records
    others.unbind()
    assert traces(first) == traces(second) == []


def test_pickling_a_bound_model_says_what_to_do() -> None:
    model, batch = zoo.make_model("bert").eval(), zoo.make_batch("bert")
    seams = bind(model)
    for save in (lambda: pickle.dumps(model), lambda: torch.save(model, io.BytesIO())):
        with pytest.raises(
            pickle.PicklingError, match=r"save model\.state_dict\(\), use save_pretrained\(\), or call unbind"
        ):
            save()
    duplicate = copy.deepcopy(model)
    seams.unbind()
    assert torch.equal(pickle.loads(pickle.dumps(model))(**batch).logits, duplicate(**batch).logits)


@pytest.mark.parametrize("attribute", ["_attendrop", "_attendrop_block", "_attendrop_feed_forward"])
def test_attribute_of_the_user_is_refused_and_not_overwritten(attribute: str) -> None:
    model = zoo.make_model("bert")
    layer = model.bert.encoder.layer[1]
    module = {"_attendrop": layer.attention.self, "_attendrop_block": layer}.get(attribute, layer.output.dense)
    setattr(module, attribute, "mine")
    with pytest.raises(ValueError, match=f"has an attribute '{attribute}' of its own, which attendrop would overwrite"):
        bind(model)
    assert getattr(module, attribute) == "mine"
    delattr(module, attribute)
    assert traces(model) == []


def test_forward_assigned_on_a_block_is_refused_where_blocks_are_edited() -> None:
    model, batch = zoo.make_model("bert"), zoo.make_batch("bert")
    block = model.bert.encoder.layer[0]
    block.forward = block.forward  # as accelerate's hooks do
    seams = bind(model)
    with seams.applied(Plan(uniform=frozenset({0}))):
        model(**batch)
    with (
        pytest.raises(ValueError, match=r"layer\.0 .* has a forward of its own"),
        seams.applied(Plan(skip=frozenset({0}))),
    ):
        pass
    seams.unbind()


# ---- attention with a softcap or sinks -------------------------------------------------------------------------------


def unusual_model(kind: str) -> torch.nn.Module:
    small = {
        "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
        "intermediate_size": 48, "head_dim": 8, "sliding_window": 4, "pad_token_id": 0, "bos_token_id": 1,
        "eos_token_id": 2, "attn_implementation": "eager",
    }  # fmt: skip
    torch.manual_seed(0)
    if kind == "softcap":
        model = Gemma2ForCausalLM(Gemma2Config(**small, attn_logit_softcapping=0.5))
    else:
        model = GptOssForCausalLM(
            GptOssConfig(**small, num_local_experts=2, num_experts_per_tok=1, experts_implementation="eager")
        )
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "sinks" in name:
                parameter.normal_()
            elif parameter.dim() == 2:
                parameter.mul_(10)
    return model.eval()


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["softcap", "sinks"])
def test_recorded_attention_is_the_models_own_map(kind: str) -> None:
    model, batch = unusual_model(kind), zoo.make_batch("llama")
    own = model(**batch, output_attentions=True).attentions
    for site, attention in attribute(model, batch, "aa").items():
        assert_same_numbers(attention, own[site])


@pytest.mark.usefixtures("float64")
def test_uniform_rows_have_the_whole_weight_where_attention_has_sinks() -> None:
    model, batch = unusual_model("sinks"), zoo.make_batch("llama")
    seams = bind(model)
    dropped = {0: torch.zeros(1, 1, 1, 9, dtype=torch.bool)}
    for plan in (Plan(uniform=frozenset({0})), Plan(keep=dropped)):
        with seams.applied(plan):
            weights = model(**batch, output_attentions=True).attentions[0]
        n = (weights > 0).sum(-1, keepdim=True)
        assert_same_numbers(weights, (weights > 0) / n)
        assert n[0, 0].flatten().tolist() == [1, 2, 3, 4, 4, 4, 4, 4, 4]  # the first layer has a window of 4
    seams.unbind()
