"""Compression: fading ends at what pruning computes, losses against literal ones, stages, resuming, bad input."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from attendrop import prune
from attendrop.prune.choice import Chooser, possible_edits
from attendrop.prune.compression import Compression
from attendrop.prune.distillation import Teacher, _state_loss, distil, divergence_of
from attendrop.prune.fading import Fading
from attendrop.prune.layer_plan import Edit, LayerPlan, apply_plan
from attendrop.prune.measure import time_in_turns
from attendrop.prune.surgery import encoder_layers
from attendrop.prune.tail import encoder_blocks
from helpers import zoo
from helpers.encoders import deep, logits
from helpers.precision import assert_same_numbers

BATCHES = [zoo.make_batch("multilabel", size=4, seed=seed) for seed in range(6)]


def compressed(model: Any, folder: Path | None = None, **settings: Any) -> prune.Compressed:
    usual = {"target": 1.01, "learning_rate": 1e-3, "rounds": 1, "ways": ("tail",), "final_epochs": 1, "seed": 3}
    return prune.compress(model, BATCHES, BATCHES[:2], folder=folder, **{**usual, **settings})


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Latency as the number of blocks with attention, so that no clock decides how many stages there are."""

    def times(models: dict[str, Any], inputs: Any, rounds: int = 9) -> dict[str, float]:
        def time(model: Any) -> float:
            layers = encoder_layers(model)
            plan = prune.plan_of(model)
            return 1.0 * len(layers) - 0.9 * plan.tail - 0.3 * len(plan.constant)

        return {name: time(model) for name, model in models.items()}

    monkeypatch.setattr("attendrop.prune.compression.time_in_turns", times)


# ------------------------------------------------------------------------------------------------ fading and losses


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "distilbert", "mpnet", "deberta_v2", "electra", "vit"])
def test_attention_fades_from_its_own_to_constant(kind: str) -> None:
    model, batch = zoo.make_model(kind).eval(), zoo.make_batch(kind)
    whole, layer, fading = logits(model, batch), encoder_layers(model)[0], Fading()
    pruned = copy.deepcopy(model)
    prune.prune(pruned, [0])
    with fading.attention(layer.module, layer.known_layout()):
        assert_same_numbers(logits(model, batch), whole)
        fading.share = 0.5
        half = logits(model, batch)
        fading.share = 0.0
        assert_same_numbers(logits(model, batch), logits(pruned, batch))
    assert not torch.allclose(half, whole)
    assert not torch.allclose(half, logits(pruned, batch))
    assert_same_numbers(logits(model, batch), whole)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "mpnet"])
def test_block_fades_to_its_removal(kind: str) -> None:
    model, batch, fading = zoo.make_model(kind).eval(), zoo.make_batch(kind), Fading()
    without = copy.deepcopy(model)
    apply_plan(without, LayerPlan(removed=(0,)))
    with fading.block(encoder_blocks(model)[0][1]):
        fading.share = 0.0
        assert_same_numbers(logits(model, batch), logits(without, batch))


@pytest.mark.usefixtures("float64")
def test_divergences_are_the_textbook_ones() -> None:
    model = zoo.make_model("bert")
    p, q = torch.randn(5, 3), torch.randn(5, 3)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Categorical(logits=p), torch.distributions.Categorical(logits=q)
    )
    assert_same_numbers(Teacher(model, "classes").divergence(q, p), expected.mean())
    labels = torch.distributions.kl_divergence(
        torch.distributions.Bernoulli(logits=p), torch.distributions.Bernoulli(logits=q)
    )
    assert_same_numbers(Teacher(model, "labels").divergence(q, p), labels.sum(-1).mean())
    assert_same_numbers(Teacher(model, "numbers", scale=2.0).divergence(q, p), ((q - p) / 2).square().mean())
    valid = torch.tensor([[1.0, 0.0]])
    pair = Teacher(model, "classes").divergence(torch.stack([q[:2]]), torch.stack([p[:2]]), valid)
    assert_same_numbers(pair, expected[0])


def test_outputs_of_each_head_are_known() -> None:
    kinds = {"bert": "classes", "multilabel": "labels", "pooled_regression": "numbers", "choice": "classes",
             "token": "classes"}  # fmt: skip
    assert {kind: Teacher.of(zoo.make_model(kind)).outputs for kind in kinds} == kinds


@pytest.mark.usefixtures("float64")
def test_hidden_states_are_compared_with_the_rows_that_they_stand_for() -> None:
    torch.manual_seed(0)
    h, tokens = torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    mask = torch.tensor([[1.0, 1, 1, 1], [1, 1, 0, 0]])
    weights = (mask / mask.sum(1, keepdim=True)).unsqueeze(1)
    keep = mask.bool()
    whole = (tokens[keep] - h[keep]).square().sum() / h[keep].square().sum()
    assert_same_numbers(_state_loss([tokens], [h], weights, "first"), whole)
    rows = torch.stack([torch.stack([h[0, 0], h[0].mean(0)]), torch.stack([h[1, 0], h[1, :2].mean(0)])])
    summary = torch.randn(2, 2, 3)
    relative = (summary - rows).square().sum() / rows.square().sum()
    assert_same_numbers(_state_loss([summary], [h], weights, "first"), relative)
    mean = (summary[:, :1] - rows[:, 1:]).square().sum() / rows[:, 1:].square().sum()
    assert_same_numbers(_state_loss([summary[:, :1]], [h], weights, "mean"), mean)
    assert_same_numbers(_state_loss([tokens, summary], [h, h], weights, "first"), (whole + relative) / 2)


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_distillation_brings_the_outputs_nearer_to_the_teacher(pooling: str) -> None:
    model = deep("pooled", attendrop_pooling=pooling)
    batches = [zoo.make_batch("pooled", size=4, seed=seed) for seed in range(6)]
    teacher, student = Teacher.of(copy.deepcopy(model)), copy.deepcopy(model)
    apply_plan(student, LayerPlan(tail=2), is_final=False)
    before = divergence_of(student, teacher, batches)
    distil(student, teacher, batches, steps=90, learning_rate=1e-3, seed=0, decays=True)
    assert divergence_of(student, teacher, batches) < before / 2


def test_given_targets_are_learned_instead_of_the_model() -> None:
    model = deep("multilabel")
    targets = [torch.full((4, 4), 3.0) for _ in BATCHES]
    teacher, student = Teacher.of(copy.deepcopy(model), targets), copy.deepcopy(model)
    distil(student, teacher, BATCHES, steps=60, learning_rate=3e-3, seed=0)
    near = [logits(student, batch).sub(3).abs().mean() < logits(model, batch).sub(3).abs().mean() for batch in BATCHES]
    assert all(near)


# ------------------------------------------------------------------------------------------------ choosing


def test_possible_edits_depend_on_the_state() -> None:
    model = deep("multilabel")
    assert [str(edit) for edit in possible_edits(model, ["tail", "constant"])][:3] == [
        "tail from layer 3", "constant attention in layer 3", "constant attention in layer 2",
    ]  # fmt: skip
    apply_plan(model, LayerPlan(tail=2, constant=(1,)))
    assert possible_edits(model, ["tail", "constant", "remove"]) == [
        Edit("tail", 1), Edit("constant", 0), Edit("remove", 1), Edit("remove", 0),
    ]  # fmt: skip
    apply_plan(model, LayerPlan(tail=3, constant=(0,)))
    assert possible_edits(model, ["tail", "constant", "remove"]) == []


@pytest.mark.parametrize("by", ["top", "similarity", "gradient", "gate", "greedy"])
def test_layers_are_chosen_at_any_state(by: str) -> None:
    class Gate:
        def drop_probabilities(self, batch: Any) -> torch.Tensor:
            return torch.tensor([0.1, 0.9, 0.2, 0.3])

    model = deep("multilabel")
    apply_plan(model, LayerPlan(constant=(3,)), is_final=False)
    teacher = Teacher.of(deep("multilabel"))
    chooser = Chooser(["constant"], by, teacher, BATCHES[:2], {"constant": 1.0}, Gate() if by == "gate" else None)
    edit = chooser.next(model)
    if by == "greedy":
        tried = {}
        for layer in range(3):
            apply_plan(each := copy.deepcopy(model), LayerPlan(constant=(layer, 3)), is_final=False)
            tried[layer] = divergence_of(each, teacher, BATCHES[:2])
        assert edit == Edit("constant", min(tried, key=lambda layer: tried[layer]))
    elif by in ("top", "gate"):
        assert edit == Edit("constant", {"top": 2, "gate": 1}[by])
    else:
        scores = prune.score_layers(model, BATCHES[:2], by)
        assert edit == Edit("constant", scores.index(max(scores)))


class FourGates:
    """A generator that prunes layer 1 first."""

    def drop_probabilities(self, batch: Any) -> torch.Tensor:
        return torch.tensor([0.1, 0.9, 0.2, 0.3])


def test_gate_is_read_by_layer_after_removal_and_stops_at_its_threshold() -> None:
    model = deep("multilabel")
    apply_plan(model, LayerPlan(removed=(1,)), is_final=False)
    assert prune.score_layers(model, BATCHES[:1], "gate", FourGates()) == pytest.approx([0.1, 0.2, 0.3])
    teacher = Teacher.of(deep("multilabel"))
    chosen = []
    for threshold in (None, 0.25, 0.31):
        chooser = Chooser(["constant"], "gate", teacher, BATCHES[:2], {"constant": 1.0}, FourGates(), threshold)
        chosen.append(chooser.next(model))
    assert chosen == [Edit("constant", 3), Edit("constant", 3), None]
    apply_plan(model, LayerPlan(constant=(3,), removed=(1,)), is_final=False)
    assert prune.score_layers(model, BATCHES[:1], "gate", FourGates()) == pytest.approx([0.1, 0.2, float("-inf")])
    chooser = Chooser(["tail"], "gate", teacher, BATCHES[:2], {"tail": 1.0}, FourGates(), 0.99)
    assert chooser.next(model) == Edit("tail", 3)  # its attention is constant already


# ------------------------------------------------------------------------------------------------ whole compressions


@pytest.mark.usefixtures("clock")
def test_a_number_of_layers_is_chosen_by_the_gate() -> None:
    gate = {"target": None, "by": "gate", "generator": FourGates(), "ways": None, "final_epochs": 0}
    assert compressed(deep("multilabel"), count=2, **gate).plan == LayerPlan(constant=(1, 3))
    few = compressed(deep("multilabel"), count=3, threshold=0.25, **gate)
    assert few.plan == LayerPlan(constant=(1, 3))
    assert not few.reached


@pytest.mark.usefixtures("clock")
def test_compression_reaches_its_target_and_can_be_saved(tmp_path: Path) -> None:
    model = deep("multilabel")
    before = copy.deepcopy(model.state_dict())
    done = compressed(model, target=1.5)
    assert done.plan == LayerPlan(tail=2)  # 4 / 3.1 is less than 1.5, and 4 / 2.2 is more
    assert done.reached
    assert [stage.edit for stage in done.stages] == ["exact tail", "tail from layer 3", "tail from layer 2", "final"]
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    prune.save(done.model, tmp_path / "model")
    assert torch.equal(logits(prune.load(tmp_path / "model"), BATCHES[0]), logits(done.model, BATCHES[0]))


@pytest.mark.usefixtures("clock")
def test_killed_compression_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    model, whole = deep("multilabel"), compressed(deep("multilabel"), tmp_path / "whole", target=1.5)
    calls = 0

    def kill(what: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 9:  # in the second stage
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compressed(model, tmp_path / "killed", target=1.5, watch=kill)
    told = []
    resumed = compressed(model, tmp_path / "killed", target=1.5, watch=lambda what, *_: told.append(what))
    assert "tail from layer 3" not in told
    assert "tail from layer 2" in told
    weights = resumed.model.state_dict()
    assert all(torch.equal(x, weights[name]) for name, x in whole.model.state_dict().items())
    in_memory = compressed(model, target=1.5).model.state_dict()
    assert all(torch.equal(x, weights[name]) for name, x in in_memory.items())


@pytest.mark.usefixtures("clock")
def test_tolerance_keeps_the_last_model_that_is_good_enough() -> None:
    scores = iter([0.9, 0.9, 0.7, 0.89, 0.6, 0.6, 0.5])
    done = compressed(deep("multilabel", layers=6), target=None, tolerance=0.02, score=lambda model: next(scores))
    assert [stage.score for stage in done.stages] == [0.9, 0.9, 0.7, 0.89, 0.6, 0.6, 0.5]
    assert done.plan == LayerPlan(tail=3)  # one bad score does not stop it, two in a row do


@pytest.mark.usefixtures("clock")
def test_learning_rate_is_searched() -> None:
    done = compressed(deep("multilabel"), learning_rate=None, base_rate=1e-3, target=1.1)
    assert done.learning_rate in (1e-3, 2e-3, 4e-3)


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize("ways", [("constant",), ("remove",), ("tail", "constant"), ("constant", "remove", "tail")])
def test_every_way_and_greedy_choice(ways: tuple[str, ...]) -> None:
    done = compressed(deep("multilabel"), ways=ways, by="greedy", target=1.2)
    assert done.plan != LayerPlan()
    assert done.speedup >= 1.2


@pytest.mark.usefixtures("clock")
@pytest.mark.parametrize(
    ("kind", "settings", "sentence"),
    [
        ("multilabel", {"target": 9}, "target is 9×, and the fastest that tail can be on this machine is 3.08×"),
        ("token", {"target": 3, "ways": ("tail", "constant")}, "there is only constant attention"),
        ("multilabel", {"target": None}, "give one of target"),
        ("multilabel", {"target": None, "count": 0}, "count is 0; it must be a whole number of at least 1"),
        ("multilabel", {"threshold": 0.5}, "threshold is 0.5 and by is 'top'"),
        ("multilabel", {"target": 1}, "target is 1; it must be above 1"),
        ("multilabel", {"target": None, "tolerance": 2, "score": len}, "tolerance is 2; it must be at least 0"),
        ("multilabel", {"target": None, "tolerance": 0.1}, "tolerance needs score"),
        ("multilabel", {"ways": ("sideways",)}, "ways is 'sideways'; it must be"),
        ("multilabel", {"by": "luck"}, "by is 'luck'; it must be"),
        ("bart", {}, "has a decoder"),
        ("gpt2", {}, "has a decoder"),
        ("albert", {}, "one after the other"),
    ],
)
def test_what_cannot_be_compressed_is_one_sentence(kind: str, settings: dict[str, Any], sentence: str) -> None:
    model = deep(kind) if kind in ("multilabel", "token") else zoo.make_model(kind).eval()
    with pytest.raises(ValueError, match=sentence):
        compressed(model, **settings)


def test_compressed_model_is_refused() -> None:
    model = deep("multilabel")
    apply_plan(model, LayerPlan(tail=1))
    with pytest.raises(ValueError, match="compressed already"):
        compressed(model)


def test_models_are_timed_in_turns() -> None:
    calls: list[str] = []

    def model_of(name: str) -> Any:
        return lambda **inputs: calls.append(name)

    times = time_in_turns({"a": model_of("a"), "b": model_of("b")}, {"input_ids": torch.zeros(1, 2)}, rounds=3)
    assert calls == ["a", "b"] * 4
    assert all(time > 0 for time in times.values())


def test_criteria_choose_among_layers_by_default() -> None:
    assert Compression([], [], {})._ways == ("tail", "constant")
    assert Compression([], [], {}, by="gradient")._ways == ("constant",)
