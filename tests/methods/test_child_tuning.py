"""Child-Tuning compared with its equations: the gradient masks of F and D, and the weights that must not change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from attendrop import ChildTuning, DropConnect, Engine, Loop, Mixout, NoisyTune, Progress
from attendrop.methods.child_tuning import largest_share
from helpers import zoo
from helpers.training import same_parameters, train

BLOCKS = {
    "bert": "bert.encoder.layer.",
    "gpt2": "transformer.h.",
    "llama": "model.layers.",
    "mpnet": "mpnet.encoder.layer.",
}
Gradients = dict[str, Tensor]


def gradients_of(model: nn.Module) -> Gradients:
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def one_step(model: Any, engine: Engine, batch: dict[str, Tensor]) -> Gradients:
    """The gradients after `before_optimizer`, without an optimizer step."""
    model.zero_grad()
    with engine.micro_batch(batch) as inputs:
        engine.loss(model(**inputs)).backward()
    engine.before_optimizer()
    gradients = gradients_of(model)
    engine.after_optimizer()
    return gradients


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_variant_f_masks_gradients_at_random_and_divides_by_p(kind: str) -> None:
    p = 0.3
    model, batch = zoo.make_model(kind, dropout=False).double().train(), zoo.make_batch(kind)
    model(**batch).loss.backward()
    plain = gradients_of(model)
    with Engine(model, [ChildTuning(p=p)], steps_per_epoch=2) as engine:
        first, second = one_step(model, engine, batch), one_step(model, engine, batch)
    assert first.keys() == plain.keys()
    kept = []
    for name, gradient in plain.items():
        m = (first[name] != 0).double()
        torch.testing.assert_close(first[name], gradient * m / p, rtol=1e-12, atol=1e-18)
        kept.append(m[gradient != 0])
        if gradient.count_nonzero() > 50:
            assert not torch.equal(m, (second[name] != 0).double())
    everything = torch.cat(kept)
    assert len(everything) > 10_000
    assert abs(everything.mean() - p) < 5 * (p * (1 - p) / len(everything)) ** 0.5


def test_variant_f_draws_the_same_mask_on_every_process() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    results = []
    for rank, seed in ((0, 1), (1, 1), (0, 2)):
        with Engine(model, [ChildTuning(p=0.5)], rank=rank, world=2, seed=seed) as engine:
            results.append(one_step(model, engine, batch))
    assert all(torch.equal(results[0][name], results[1][name]) for name in results[0])
    assert not all(torch.equal(results[0][name], results[2][name]) for name in results[0])


def test_variant_f_follows_a_schedule() -> None:
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
    with Engine(model, [ChildTuning(p="1..0.1")]) as engine:
        engine.begin_step(Progress(step=9, total_steps=10))
        actual = one_step(model, engine, batch)
    shares = torch.cat([g.flatten() for name, g in actual.items() if "dense.weight" in name]).count_nonzero()
    total = sum(g.numel() for name, g in actual.items() if "dense.weight" in name)
    assert abs(shares / total - 0.19) < 0.02


@pytest.mark.parametrize("other", [Mixout(p=0.5, pattern="element"), DropConnect(p=0.5)])
@pytest.mark.parametrize("child_first", [True, False])
def test_gradient_masks_multiply_with_those_of_mixout_and_dropconnect(other: Any, child_first: bool) -> None:
    """The gradient of the mixed weights is mapped to the true weights and then masked, in any order of the list."""
    name = "bert.encoder.layer.0.intermediate.dense.weight"
    child = ChildTuning(p=0.5)
    results = []
    for regularizers in ([other], [child], [child, other] if child_first else [other, child]):
        model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
        with Engine(model, regularizers) as engine:
            results.append(one_step(model, engine, batch)[name])
    mixed, masked, both = results
    m = masked != 0
    assert 0.4 < m.float().mean() < 0.6
    assert torch.equal(both, mixed * m * 2)


# ---- D ---------------------------------------------------------------------------------------------------------------


def examples(batch: dict[str, Tensor], calls: list | None = None) -> Any:
    def draw(source: str, count: int, generator: torch.Generator) -> Mapping[str, Any]:
        assert source == "train"
        if calls is not None:
            calls.append(count)
        return {name: value[:count] for name, value in batch.items()}

    return draw


def literal_child(model: Any, batch: dict[str, Tensor], size: int, p: float, inside: str) -> dict[str, set[int]]:
    """Positions of the share p with the largest sums of squared gradients, one backward per `size` examples."""
    model.eval()
    sums: dict[str, Tensor] = {}
    for first in range(0, len(batch["labels"]), size):
        model.zero_grad()
        model(**{name: value[first : first + size] for name, value in batch.items()}).loss.backward()
        for name, gradient in gradients_of(model).items():
            if name.startswith(inside):
                sums[name] = sums.get(name, 0) + gradient.double() ** 2
    ranked = sorted(
        ((v, name, i) for name, s in sums.items() for i, v in enumerate(s.flatten().tolist())), reverse=True
    )
    chosen: dict[str, set[int]] = {name: set() for name in sums}
    for _, name, i in ranked[: round(p * len(ranked))]:
        chosen[name].add(i)
    return chosen


@pytest.mark.parametrize(("kind", "size"), [("bert", 1), ("bert", 2), ("gpt2", 1)])
def test_variant_d_trains_the_weights_with_the_largest_fisher_information(kind: str, size: int) -> None:
    p = 0.2
    data, batch = zoo.make_batch(kind, size=6, seed=7), zoo.make_batch(kind)
    model = zoo.make_model(kind).double().train()  # with dropout, which must be off for the scores
    expected = literal_child(zoo.make_model(kind).double(), data, size, p, BLOCKS[kind])
    calls: list[int] = []
    loop = Loop(examples=examples(data, calls))
    method = ChildTuning(p=p, variant="D", samples=6, fisher_batch=size)
    torch.manual_seed(4)
    with Engine(model, [method], loop=loop, steps_per_epoch=2) as engine:
        actual = one_step(model, engine, batch)
        child = method.state()[0]
        again = one_step(model, engine, batch)
        assert all(torch.equal(child[name], keep) for name, keep in method.state()[0].items())
    assert calls == [6]
    model.zero_grad()
    torch.manual_seed(4)
    model(**batch).loss.backward()
    plain = gradients_of(model)
    assert set(child) == set(expected)
    differences = sum(
        len(set(child[name].flatten().nonzero().flatten().tolist()) ^ expected[name]) for name in expected
    )
    total = sum(keep.numel() for keep in child.values())
    assert differences <= 2  # of the fp32 sums against these in fp64, at the threshold
    assert sum(int(keep.sum()) for keep in child.values()) == pytest.approx(p * total, abs=2)
    for name, gradient in plain.items():
        keep = child.get(name, torch.ones_like(gradient, dtype=torch.bool))
        assert torch.equal(actual[name], gradient * keep)
        assert torch.equal(again[name] != 0, (again[name] != 0) & keep)


@pytest.mark.parametrize("kind", ["bert", "gpt2", "llama", "bart", "mpnet"])
def test_masked_weights_stay_and_all_others_change(kind: str, tmp_path: Path) -> None:
    method = ChildTuning(p=0.25, variant="D", samples=8)
    before = zoo.make_model(kind)
    model, _ = train(tmp_path, kind, [method], weight_decay=0.1, save_strategy="steps", save_steps=4)
    child = load_file(tmp_path / "checkpoint-4" / "child_tuning.safetensors")
    assert sum(int(keep.sum()) for keep in child.values()) == pytest.approx(
        0.25 * sum(keep.numel() for keep in child.values()), rel=0.01
    )
    moved_outside = 0
    for (name, weight), (_, old) in zip(model.named_parameters(), before.named_parameters(), strict=True):
        if name in child:
            assert torch.equal(weight[~child[name]], old[~child[name]]), name
            # a weight that starts at zero has no decay, and one without a gradient in these steps does not move
            assert (weight != old)[child[name]].float().mean() > 0.9 or not child[name].any(), name
        else:
            moved_outside += int((weight != old).sum())
    assert moved_outside > 500
    assert not any("embed" in name or "classifier" in name or "head" in name or "wte" in name for name in child)


def test_resumed_run_uses_the_saved_mask(tmp_path: Path) -> None:
    methods = [ChildTuning(p=0.3, variant="D", samples=4)]
    whole, _ = train(tmp_path, "bert", methods, save_strategy="steps", save_steps=4, weight_decay=0.1)
    middle = str(tmp_path / "checkpoint-4")  # there is one of the end too
    resumed, _ = train(tmp_path, "bert", methods, resume=middle, weight_decay=0.1)  # type: ignore[arg-type]
    assert same_parameters(whole, resumed)
    other, _ = train(tmp_path / "b", "bert", [ChildTuning(p=0.3, variant="D", samples=5)], weight_decay=0.1)
    assert not same_parameters(whole, other)


def test_p_one_is_plain_fine_tuning(tmp_path: Path) -> None:
    plain, _ = train(tmp_path, "bert", None)
    model, _ = train(tmp_path, "bert", [ChildTuning(p=1, variant="D")])
    assert same_parameters(plain, model)


def test_variant_d_scores_the_weights_that_training_starts_with(tmp_path: Path) -> None:
    """NoisyTune acts before the scores and DropConnect does not affect them, in any order of the list."""
    kinds = [ChildTuning(p=0.3, variant="D", samples=6), NoisyTune(0.8), DropConnect(0.5)]
    results = []
    for order in ((0, 1, 2), (2, 1, 0), (1, 0, 2)):
        folder = tmp_path / "".join(map(str, order))
        model, _ = train(folder, "bert", [kinds[i] for i in order], save_strategy="steps", save_steps=2)
        results.append((model, load_file(folder / "checkpoint-2" / "child_tuning.safetensors")))
    alone, _ = train(tmp_path / "alone", "bert", kinds[:2], save_strategy="steps", save_steps=2)
    child = load_file(tmp_path / "alone" / "checkpoint-2" / "child_tuning.safetensors")
    for model, other in results:
        assert all(torch.equal(child[name], other[name]) for name in child)
        assert same_parameters(model, results[0][0])
    assert not same_parameters(alone, results[0][0])


def test_interrupted_step_restores_masked_weights() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    method = ChildTuning(p=0.5, variant="D", samples=3)
    engine = Engine(model, [method], loop=Loop(examples=examples(batch)))
    with engine.micro_batch(batch) as inputs:
        engine.loss(model(**inputs)).backward()
    engine.before_optimizer()
    child = method.state()[0]
    torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.5).step()
    name = "bert.encoder.layer.1.output.dense.weight"
    assert not torch.equal(model.get_parameter(name)[~child[name]], before[name][~child[name]])
    engine.close()
    assert torch.equal(model.get_parameter(name)[~child[name]], before[name][~child[name]])
    assert not torch.equal(model.get_parameter(name)[child[name]], before[name][child[name]])


def test_bad_input_is_refused() -> None:
    for p in (0, "0..0.5"):
        with pytest.raises(
            ValueError, match=r"ChildTuning\.p is .*; it is the share of weights that train, and must be"
        ):
            ChildTuning(p=p)
    with pytest.raises(ValueError, match=r"ChildTuning\.p is 1\.5; it must be from 0 to 1"):
        ChildTuning(p=1.5)
    with pytest.raises(ValueError, match=r"ChildTuning\.variant is 'G'; it must be one of 'F', 'D'"):
        ChildTuning(variant="G")
    with pytest.raises(ValueError, match=r"ChildTuning\.p is '0\.1\.\.0\.5'; with variant='D' the child is fixed"):
        ChildTuning(p="0.1..0.5", variant="D")
    with pytest.raises(ValueError, match=r"ChildTuning\.samples is -1; it must be a whole number of at least 0"):
        ChildTuning(samples=-1)
    with pytest.raises(ValueError, match=r"ChildTuning\.fisher_batch is 0; it must be a whole number of at least 1"):
        ChildTuning(fisher_batch=0)
    model = zoo.make_model("bert").train()
    engine = Engine(model, [ChildTuning(variant="D")])
    with pytest.raises(ValueError, match=r"ChildTuning\.variant is 'D', which draws training examples, and the loop"):
        engine.begin_step()
    engine.close()
    model.bert.encoder.requires_grad_(False)
    with pytest.raises(ValueError, match="has no parameter in its blocks that is trained"):
        Engine(model, [ChildTuning(variant="D")])


@pytest.mark.parametrize("p", [0.01, 0.3, 1.0])
def test_child_has_exactly_the_share_p_of_the_largest_scores(p: float) -> None:
    scores = torch.randperm(200, generator=torch.Generator().manual_seed(0)).float()
    child = largest_share({"a": scores[:50], "b": scores[50:].view(15, 10)}, p)
    keep = torch.cat([child["a"], child["b"].flatten()])
    assert torch.equal(keep, scores >= 200 - round(200 * p))
