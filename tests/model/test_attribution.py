"""Gradient and integrated-gradient attribution compared with plain autograd, on every architecture and head."""

from __future__ import annotations

import copy
import types

import pytest
import torch

import attendrop
from attendrop import ADDrop, Engine, IntegrationRule, attribute
from attendrop.model import attribution
from helpers import oracles, zoo
from helpers.precision import assert_same_numbers, relative_error

pytestmark = pytest.mark.usefixtures("float64")


@pytest.mark.parametrize("kind", zoo.ARCHITECTURES + zoo.HEADS + zoo.POOLED)
def test_gradient_attribution_matches_plain_autograd(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).eval(), zoo.make_batch(kind)
    expected = oracles.literal_ga(kind, copy.deepcopy(model), batch)
    actual = attribute(model, batch)
    assert len(actual) == len(expected)
    for layer, values in actual.items():
        assert relative_error(values, expected[layer]) < 1e-9


@pytest.mark.parametrize("kind", zoo.ARCHITECTURES + zoo.HEADS + zoo.POOLED)
def test_integrated_gradient_attribution_matches_the_plain_sum(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = zoo.make_model(kind, dropout=False).eval(), zoo.make_batch(kind)
    rule = IntegrationRule("sum", 4)
    assert rule.nodes() == [(0.25, 0.25), (0.5, 0.25), (0.75, 0.25), (1.0, 0.25)]
    expected = oracles.literal_iga(kind, copy.deepcopy(model), batch, rule.nodes())
    for tokens in (0, 100, 10**6):  # a node in each pass, a few, or all of them
        monkeypatch.setitem(attribution._TOKENS, "cpu", tokens)
        actual = attribute(model, batch, method="iga", rule=rule)
        for layer, values in actual.items():
            assert relative_error(values, expected[layer]) < 1e-9


@pytest.mark.parametrize("kind", ["bert", "bart"])
def test_gauss_nodes_use_their_own_weights(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = zoo.make_model(kind, dropout=False).eval(), zoo.make_batch(kind)
    rule = IntegrationRule("gauss", 3)
    expected = oracles.literal_iga(kind, copy.deepcopy(model), batch, rule.nodes())
    monkeypatch.setitem(attribution._TOKENS, "cpu", 10**6)  # in one pass
    for layer, values in attribute(model, batch, method="iga", rule=rule).items():
        assert relative_error(values, expected[layer]) < 1e-9


def test_integrated_gradients_skip_blocks_below_the_scaled_layer() -> None:
    model, batch = zoo.make_model("bert", dropout=False).eval(), zoo.make_batch("bert")
    passes = []
    for layer in model.bert.encoder.layer:
        layer.attention.register_forward_hook(lambda module, args, result, layer=layer: passes.append(layer))
    attribute(model, batch, method="iga", layers=[1], rule=IntegrationRule("gauss", 3))
    first, second = model.bert.encoder.layer
    assert (passes.count(first), passes.count(second)) == (2, 5)  # the dry run and the unscaled pass; three nodes


def test_integration_nodes_are_grouped_into_as_few_passes_as_fit() -> None:
    nodes = IntegrationRule("sum", 20).nodes()
    record = types.SimpleNamespace(query=torch.empty(16, 12, 128, 64), key=torch.empty(16, 12, 128, 64))
    assert [len(part) for part in attribution._passes(nodes, record)] == [1] * 20  # on a CPU
    record.query = torch.empty(16, 12, 128, 64, device="meta")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(attribution._TOKENS, "meta", attribution._TOKENS["cuda"])
        assert [len(part) for part in attribution._passes(nodes, record)] == [8, 8, 4]
    assert [node for part in attribution._passes(nodes, record) for node in part] == nodes


@pytest.mark.parametrize("kind", ["bert", "llama", "t5", "deberta_v2"])
def test_attention_attribution_is_the_attention_map(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).eval(), zoo.make_batch(kind)
    literal = oracles.LiteralAttention()
    oracle = copy.deepcopy(model)
    literal.attach(oracle)
    oracle(**batch)
    real = batch["attention_mask"].bool()
    for layer, values in attribute(model, batch, method="aa").items():
        expected = literal.maps[layer]
        if kind == "deberta_v2":  # the rows of padding tokens, which nobody reads, see everything there
            values, expected = values.transpose(1, 2)[real], expected.transpose(1, 2)[real]
        assert_same_numbers(values, expected)


def test_five_gauss_nodes_are_as_exact_as_the_twenty_step_sum() -> None:
    model, batch = zoo.make_model("bert", dropout=False).eval(), zoo.make_batch("bert")
    exact = attribute(model, batch, "iga", "first", rule=IntegrationRule("sum", 200))[0]
    twenty = attribute(model, batch, "iga", "first", rule=IntegrationRule("sum", 20))[0]
    gauss = attribute(model, batch, "iga", "first", rule=IntegrationRule("gauss", 5))[0]
    assert relative_error(gauss, exact) <= relative_error(twenty, exact)


def test_gold_labels_change_the_attribution_only_where_the_prediction_is_wrong() -> None:
    model, batch = zoo.make_model("bert", dropout=False).eval(), zoo.make_batch("bert")
    predicted = model(**batch).logits.argmax(-1)
    batch["labels"] = predicted.clone()
    same = attribute(model, batch, label="gold")[0]
    assert torch.equal(same, attribute(model, batch)[0])
    batch["labels"] = (predicted + 1) % 3
    assert relative_error(attribute(model, batch, label="gold")[0], same) > 0.1


@pytest.mark.parametrize("kind", ["gpt2", "token", "span", "choice", "multilabel"])
def test_gold_label_attribution_is_minus_the_gradient_of_the_loss(kind: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).eval(), zoo.make_batch(kind)
    literal = oracles.LiteralAttention()
    oracle = copy.deepcopy(model)
    literal.attach(oracle)
    grads = torch.autograd.grad(oracle(**batch).loss, literal.maps)
    for layer, values in attribute(model, batch, label="gold").items():
        # the model's own loss is a mean, so the two agree up to a factor
        expected = -grads[layer] * (values.norm() / grads[layer].norm())
        assert relative_error(values, expected) < 1e-9


def test_attribution_leaves_modes_gradients_and_random_state_unchanged() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    model.bert.encoder.layer[0].eval()  # a mixed mode must come back as it was
    modes = [module.training for module in model.modules()]
    model(**batch).loss.backward()
    grads = [parameter.grad.clone() for parameter in model.parameters()]
    state = torch.get_rng_state()
    for method in ("ga", "iga", "aa"):
        attribute(model, batch, method=method, rule=IntegrationRule("gauss", 2))
    assert torch.equal(state, torch.get_rng_state())
    assert modes == [module.training for module in model.modules()]
    assert all(torch.equal(g, parameter.grad) for g, parameter in zip(grads, model.parameters(), strict=True))


def test_attribution_uses_the_dropout_draws_of_the_training_pass() -> None:
    """Ordinary dropout is on in the probe, and the training pass after it repeats the same draws."""
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    torch.manual_seed(5)
    first = attribute(model, batch)[0]
    again = attribute(model, batch)[0]
    assert torch.equal(first, again)
    torch.manual_seed(6)
    assert not torch.equal(first, attribute(model, batch)[0])


def test_layers_are_selected_in_each_stack() -> None:
    model, batch = zoo.make_model("bart").eval(), zoo.make_batch("bart")
    seams = attendrop.bind(model)
    kinds = [(site.stack.split(".")[1], site.kind, site.layer) for site in seams.sites]
    assert kinds == [
        ("encoder", "self", 0),
        ("encoder", "self", 1),
        ("decoder", "self", 0),
        ("decoder", "cross", 0),
        ("decoder", "self", 1),
        ("decoder", "cross", 1),
    ]
    seams.unbind()
    assert sorted(attribute(model, batch, layers="first")) == [0, 2, 3]
    assert sorted(attribute(model, batch, layers=[-1])) == [1, 4, 5]
    assert sorted(attribute(model, batch, layers=slice(0, 1))) == [0, 2, 3]


def test_integrated_gradients_are_taken_without_dropout() -> None:
    model, batch = zoo.make_model("bert"), zoo.make_batch("bert")
    rule = IntegrationRule("gauss", 2)
    without = attribute(model.eval(), batch, "iga", rule=rule)
    actual = attribute(model.train(), batch, "iga", rule=rule)
    assert all(torch.equal(actual[layer], without[layer]) for layer in without)


def test_tags_are_attributed_at_all_positions_or_at_labelled_ones() -> None:
    """Eq. 9 sums over all n tokens; a tag is given for the first sub-token of a word alone."""
    model, batch = zoo.make_model("token", dropout=False).eval(), zoo.make_batch("token")
    labels = batch["labels"].clone()
    labels[:, ::2] = -100
    few = {**batch, "labels": labels}
    literal = copy.deepcopy(model)
    literal.set_attn_implementation("eager")
    outputs = literal(**batch, output_attentions=True)
    log_p = outputs.logits.log_softmax(-1).amax(-1)

    def expected(counted: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.autograd.grad(log_p[counted].sum(), outputs.attentions, retain_graph=True)

    for positions, counted in (("all", batch["attention_mask"].bool()), ("labelled", labels != -100)):
        actual = attribute(model, few, positions=positions)
        for layer, values in enumerate(expected(counted)):
            assert relative_error(actual[layer], values) < 1e-9
    losses = []
    for positions in ("all", "labelled"):
        method = ADDrop(0.5, 0.9, positions=positions, cross_tuning=False)
        with Engine(model.train(), [method], seed=3) as engine, engine.micro_batch(few) as inputs:
            losses.append(engine.loss(model(**inputs)).item())
    assert losses[0] != losses[1]
    with pytest.raises(ValueError, match=r"ADDrop\.positions is 'some'; it must be one of 'all', 'labelled'"):
        ADDrop(positions="some")
