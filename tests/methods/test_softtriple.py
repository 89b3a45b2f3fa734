"""SoftTriple compared with its equations by loops: the loss, the gradients, and the update of the centres."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from attendrop import Engine, RDrop, RegularizedTrainer, SoftTriple
from attendrop.methods.softtriple import soft_triple, spread
from helpers import zoo
from helpers.data import largest_difference, make_arguments, make_examples, pad, weights_of
from helpers.literal import giving
from helpers.precision import assert_same_gradients, assert_same_numbers

FIELDS = {"weight": 0.4, "centers": 3, "scale": 7.0, "gamma": 0.2, "margin": 0.05, "tau": 0.3, "lr": 0.02}


def by_hand(texts: torch.Tensor, centers: torch.Tensor, labels: list[int]) -> torch.Tensor:
    """ST + τ R from vectors of any length."""
    classes, count = centers.shape[:2]
    unit = [[w / w.square().sum().sqrt() for w in of_class] for of_class in centers]
    total = torch.zeros((), dtype=texts.dtype)
    for h, own in zip(texts, labels, strict=True):
        h = h / h.square().sum().sqrt()
        exponents = []
        for c in range(classes):
            cosines = [h @ w for w in unit[c]]
            below = sum((x / FIELDS["gamma"]).exp() for x in cosines)
            relaxed = sum((x / FIELDS["gamma"]).exp() / below * x for x in cosines)
            exponents.append((FIELDS["scale"] * (relaxed - (FIELDS["margin"] if c == own else 0))).exp())
        total = total - (exponents[own] / sum(exponents)).log() / len(labels)
    distances = [(unit[c][s] - unit[c][t]).norm() for c in range(classes) for s in range(count) for t in range(s)]
    return total + FIELDS["tau"] * sum(distances) / (classes * count * (count - 1))


@pytest.mark.usefixtures("float64")
def test_whole_step_matches_the_equations() -> None:
    method = SoftTriple(**FIELDS)
    model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert", size=5)
    literal = copy.deepcopy(model)
    with Engine(model, [method], seed=2) as engine:
        with engine.micro_batch(batch) as inputs:
            total = engine.loss(model(**inputs))
            total.backward()
        first = method.learned.detach().clone()
        engine.before_optimizer()
        engine.after_optimizer()
        after = method.learned.detach().clone()
    assert first.shape == (3, 3, 32)
    assert_same_numbers(first.norm(dim=-1), torch.ones(3, 3))

    centers = first.clone().requires_grad_()
    states: list[torch.Tensor] = []
    with giving(literal.get_submodule("bert.encoder.layer.1"), lambda x: states.append(x) or x):
        plain = literal(**batch).loss
    expected = 0.6 * plain + 0.4 * by_hand(states[0][:, 0], centers, batch["labels"].tolist())
    expected.backward()
    assert_same_numbers(total, expected)
    assert_same_gradients(model, literal)
    torch.optim.Adam([centers], lr=0.02).step()
    assert_same_numbers(after, centers.detach())


@pytest.mark.usefixtures("float64")
def test_one_center_is_a_cosine_softmax_and_ignored_labels_count_nothing() -> None:
    draws = torch.Generator().manual_seed(0)
    h, w = (torch.nn.functional.normalize(torch.randn(n, 8, generator=draws), dim=-1) for n in (4, 3))
    labels = torch.tensor([0, 2, 1, 2])
    plain = torch.nn.functional.cross_entropy(7.0 * h @ w.T, labels)
    assert_same_numbers(soft_triple(h, w.unsqueeze(1), labels, 7.0, 0.1, 0.0), plain)
    assert spread(w.unsqueeze(1)) == 0
    ignored = torch.tensor([0, 2, -100, 2])
    kept = [0, 1, 3]
    assert_same_numbers(
        soft_triple(h, w.unsqueeze(1), ignored, 7.0, 0.1, 0.2),
        soft_triple(h[kept], w.unsqueeze(1), labels[kept], 7.0, 0.1, 0.2),
    )


def test_equal_centers_have_a_finite_gradient() -> None:
    centers = torch.nn.functional.normalize(torch.ones(2, 3, 4), dim=-1).requires_grad_()
    spread(centers).backward()
    assert centers.grad.isfinite().all()


def test_centers_are_saved_with_a_checkpoint(tmp_path: Path) -> None:
    def run(resume: bool = False) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        model, method = zoo.make_model("bert"), SoftTriple(centers=2)
        args = make_arguments(tmp_path, max_steps=6, save_strategy="steps", save_steps=4)
        trainer = RegularizedTrainer(
            model=model, args=args, train_dataset=make_examples("bert", 16), data_collator=pad, regularizers=[method]
        )
        trainer.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4") if resume else None)
        return weights_of(trainer.model), method.learned.detach().clone()

    weights, centers = run()
    again, centers_again = run(resume=True)
    assert torch.equal(centers, centers_again)
    assert largest_difference(weights, again) == 0


def test_it_composes_with_views_and_texts_that_are_encoded_apart() -> None:
    for kind, width in (("pooled_pairs", 128), ("pooled", 32)):
        model, batch, method = zoo.make_model(kind).train(), zoo.make_batch(kind), SoftTriple(centers=2)
        with Engine(model, [RDrop(), method]) as engine, engine.micro_batch(batch) as inputs:
            engine.loss(model(**inputs)).backward()
            assert method.learned.shape == (3, 2, width)
            assert method.learned.grad.abs().max() > 0


def test_unsupported_heads_and_fields_are_refused() -> None:
    with pytest.raises(ValueError, match=r"SoftTriple compares texts by their class, and .* regression head"):
        Engine(zoo.make_model("regression"), [SoftTriple()])
    for field, value, allowed in (
        ("centers", 0, "a whole number of at least 1"),
        ("scale", 0, "a number above 0"),
        ("gamma", 0, "a number above 0"),
        ("lr", -1, "a number from 0"),
    ):
        with pytest.raises(ValueError, match=rf"SoftTriple\.{field} is {value}; it must be {allowed}"):
            SoftTriple(**{field: value})
