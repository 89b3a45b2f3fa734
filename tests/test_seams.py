"""The two seams: the identity under an empty plan, nothing left after unbind, copies that stand on their own."""

from __future__ import annotations

import copy

import pytest
import torch
import zoo
from transformers import BertModel, XLNetConfig, XLNetForSequenceClassification

from attendrop import Plan, Seams, attribute, bind


def logits(outputs) -> torch.Tensor:
    return outputs["start_logits"] if "start_logits" in outputs else outputs["logits"]


def traces(model) -> list[str]:
    """Whatever of ours is on the model: attributes, classes, the name of the attention function."""
    found = []
    for name, module in model.named_modules():
        found += [f"{name}.{a}" for a in vars(module) if "attendrop" in a]
        if hasattr(type(module), "_attendrop_original"):
            found.append(f"{name} is of class {type(module)}")
        config = getattr(module, "config", None)
        if "attendrop" in str(getattr(config, "_attn_implementation", "")):
            found.append(f"{name}.config")
    return found


@pytest.mark.parametrize("kind", zoo.ARCHITECTURES + zoo.HEADS)
@pytest.mark.parametrize("training", [True, False])
def test_bound_with_an_empty_plan_is_stock_bit_for_bit(kind: str, training: bool) -> None:
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
def test_uniform_equals_a_plan_that_keeps_nothing(kind: str) -> None:
    model, batch = zoo.make_model(kind).eval(), zoo.make_batch(kind)
    seams = bind(model)
    with seams.applied(Plan(keep={0: torch.zeros(1, 1, 1, 1, dtype=torch.bool)})):
        nothing = model(**batch).logits
    with seams.applied(Plan(uniform=frozenset({0}))):
        assert torch.equal(nothing, model(**batch).logits)
    assert not torch.allclose(nothing, model(**batch).logits)


def test_a_causal_row_is_uniform_over_its_past() -> None:
    model, batch = zoo.make_model("gpt2").eval(), zoo.make_batch("gpt2", size=1)
    seams = bind(model)
    with seams.applied(Plan(uniform=frozenset({0}), record=frozenset({0}))):
        model(**batch)
        record = seams.records[0]
    past = torch.stack([record.value[0, :, : i + 1].mean(1) for i in range(9)])
    torch.testing.assert_close(record.output[0], past)


def test_an_exception_in_the_middle_of_a_pass_leaves_nothing() -> None:
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


def test_a_copy_has_seams_of_its_own() -> None:
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
def test_a_skipped_block_hands_on_its_input_and_keeps_the_graph(kind: str) -> None:
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


def test_edits_run_in_order_behind_their_block() -> None:
    model, batch = zoo.make_model("bert", dropout=False).eval(), zoo.make_batch("bert")
    seams = bind(model)
    double, add = (lambda h: h * 2), (lambda h: h + 1)
    plan = Plan(edits={1: (double,)}) | Plan(edits={1: (add,)})
    plain = model.bert(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    with seams.applied(plan):
        edited = model.bert(batch["input_ids"], batch["attention_mask"]).last_hidden_state
    torch.testing.assert_close(edited, plain * 2 + 1)


def test_plans_merge() -> None:
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


def test_albert_tells_the_calls_of_its_one_module_apart() -> None:
    model, batch = zoo.make_model("albert", dropout=False).eval(), zoo.make_batch("albert")
    seams = bind(model)
    found = []
    for site in range(3):
        with seams.applied(Plan(uniform=frozenset({site}))):
            found.append(model(**batch).logits)
    assert len(seams.sites) == 3
    assert not torch.equal(found[0], found[1])
    assert not torch.equal(found[1], found[2])


def test_models_that_cannot_be_reached_are_refused_by_name() -> None:
    model = XLNetForSequenceClassification(XLNetConfig(vocab_size=60, d_model=32, n_layer=2, n_head=4, d_inner=48))
    with pytest.raises(ValueError, match="XLNetForSequenceClassification makes no call .* would need an adapter"):
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


def test_a_saved_model_knows_nothing_of_us(tmp_path) -> None:
    model = zoo.make_model("bert").eval()
    bind(model)
    model.save_pretrained(tmp_path)
    assert "attendrop" not in (tmp_path / "config.json").read_text()
    assert isinstance(model.bert, BertModel)
    loaded = type(model).from_pretrained(tmp_path).eval()
    batch = zoo.make_batch("bert")
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)
