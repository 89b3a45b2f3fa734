"""R3F compared with two manual passes, and an accumulated step with the whole batch."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from attendrop import R3F, ADDrop, Engine, HiddenCut, Progress, RDrop, RegularizedTrainer
from attendrop.kernels.draws import uniform
from attendrop.methods._shared.noise import noise_of
from attendrop.random import key_of
from helpers import zoo
from helpers.data import SGD, largest_difference, make_arguments, make_examples, pad, weights_of
from helpers.literal import FIRST_BLOCK, kl, mean_over_rows, reading
from helpers.precision import assert_same_gradients, assert_same_numbers

EPSILON, WEIGHT = 0.3, 0.7


def both(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    return kl(p, q) + kl(q, p)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("loss", ["clean", "both"])
@pytest.mark.parametrize(
    "kind",
    ["bert", "gpt2", "llama", "bart", "mpnet", "multilabel", "regression", "token", "choice", "masked", *zoo.POOLED],
)
def test_whole_step_matches_two_manual_passes(kind: str, loss: str) -> None:
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    with Engine(model, [R3F(EPSILON, WEIGHT, loss=loss)], seed=5) as engine:
        engine.begin_step(Progress(step=2, total_steps=10))
        with engine.micro_batch(batch) as inputs:
            total = engine.loss(model(**inputs))
            total.backward()

    def noisy(x: torch.Tensor) -> torch.Tensor:
        draws = uniform(key_of(5, 2, -1, "r3f"), torch.arange(len(x)), (1, *x.shape[1:])).squeeze(1)
        return x + (2 * draws - 1) * EPSILON

    one = literal(**batch)
    with reading(literal.get_submodule(FIRST_BLOCK.get(kind, FIRST_BLOCK["bert"])), noisy):
        two = literal(**batch)
    divergence = mean_over_rows(kind, one.logits, two.logits, batch["labels"], both)
    assert divergence > 1e-5
    expected = (one.loss if loss == "clean" else (one.loss + two.loss) / 2) + WEIGHT * divergence
    expected.backward()
    assert_same_numbers(total, expected)
    assert_same_gradients(model, literal)


def test_noise_has_the_stated_size() -> None:
    draws = uniform(key_of(0, 1, 2), torch.arange(100), (1, 30, 30))
    for kind, size in (("uniform", 3**-0.5), ("normal", 1.0)):
        noise = noise_of(draws, 0.2, kind)
        n = noise.numel()
        assert abs(noise.mean()) < 4 * 0.2 * size / n**0.5
        assert noise.std().item() == pytest.approx(0.2 * size, rel=0.01)
    assert noise_of(draws, 0.2).abs().max() <= 0.2
    ends = noise_of(torch.tensor([0.0, 1 - 2**-24]), 1.0, "normal")
    assert ends.isfinite().all()
    assert ends[0] < -5 < 5 < ends[1]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["llama", "bert"])
def test_accumulated_step_matches_the_whole_batch(kind: str, tmp_path: Path) -> None:
    """Examples have different lengths. Llama's loss is divided by the tokens of the whole step, and so is the penalty.

    BERT's loss is the mean over a micro-batch; the Trainer adds up four of them, both loss and penalty.
    """
    whole = kind == "llama"
    examples = make_examples(kind, 8)

    def run(size: int, steps: int, weight: float = 3.0) -> dict[str, torch.Tensor]:
        model = zoo.make_model(kind, dropout=False)
        rate = 0.002 * (1 if whole or steps > 1 else 4)
        options = {**SGD, "learning_rate": rate, "per_device_train_batch_size": size, "max_steps": 2}
        args = make_arguments(tmp_path, gradient_accumulation_steps=steps, **options)
        method = R3F(epsilon=0.5, weight=weight, loss="both")
        RegularizedTrainer(
            model=model, args=args, train_dataset=examples, data_collator=pad, regularizers=[method]
        ).train()
        return weights_of(model)

    actual = run(1, 4)
    assert largest_difference(actual, run(4, 1)) < 1e-9
    assert largest_difference(actual, run(1, 4, weight=1.0)) > 1e-4


def test_loss_both_is_needed_beside_another_method_with_two_views() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    for other in (RDrop(), HiddenCut()):
        with pytest.raises(
            ValueError, match=r"R3F trains on the first view alone and .* on both; set R3F\(loss='both'\)"
        ):
            Engine(model, [other, R3F()])
        methods = [other, R3F(loss="both"), ADDrop(cross_tuning=False)]
        with Engine(model, methods) as engine, engine.micro_batch(batch) as inputs:
            engine.loss(model(**inputs)).backward()
    Engine(model, [RDrop(alpha=0), R3F()]).close()


def test_clean_loss_with_label_smoothing_is_refused(tmp_path: Path) -> None:
    def run(method: R3F) -> None:
        args = make_arguments(tmp_path, max_steps=1, label_smoothing_factor=0.1)
        examples = make_examples("bert", 4)
        RegularizedTrainer(
            model=zoo.make_model("bert"), args=args, train_dataset=examples, data_collator=pad, regularizers=[method]
        ).train()

    run(R3F(loss="both"))
    with pytest.raises(ValueError, match=r"R3F\.loss is 'clean', for which the loss must be the model's own"):
        run(R3F())


def test_fields_out_of_range_are_refused() -> None:
    assert R3F(weight=0).views == 1
    with pytest.raises(ValueError, match=r"R3F\.epsilon is -1; it must be a number from 0"):
        R3F(epsilon=-1)
    with pytest.raises(ValueError, match=r"R3F\.weight is -0\.1"):
        R3F(weight=-0.1)
    with pytest.raises(ValueError, match=r"R3F\.noise is 'pink'; it must be one of 'uniform', 'normal'"):
        R3F(noise="pink")
    with pytest.raises(ValueError, match=r"R3F\.loss is 'noisy'; it must be one of 'clean', 'both'"):
        R3F(loss="noisy")


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "gpt2", "bart"])
def test_detached_noisy_embeddings_get_no_gradient(kind: str) -> None:
    """As in fairseq's criterion for sentence prediction: z is added to a detached copy of the embeddings."""
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    gradients = {}
    for detach in (False, True):
        model.zero_grad()
        method = R3F(EPSILON, WEIGHT, detach=detach)
        with Engine(model, [method], seed=5) as engine, engine.micro_batch(batch) as inputs:
            engine.loss(model(**inputs)).backward()
        gradients[detach] = model.get_input_embeddings().weight.grad.clone()
    assert (gradients[True] - gradients[False]).abs().max() > 1e-4

    def noisy(x: torch.Tensor) -> torch.Tensor:
        draws = uniform(key_of(5, 0, -1, "r3f"), torch.arange(len(x)), (1, *x.shape[1:])).squeeze(1)
        return x.detach() + (2 * draws - 1) * EPSILON

    one = literal(**batch)
    with reading(literal.get_submodule(FIRST_BLOCK[kind]), noisy):
        two = literal(**batch)
    (one.loss + WEIGHT * mean_over_rows(kind, one.logits, two.logits, batch["labels"], both)).backward()
    assert_same_gradients(model, literal)


def test_detach_must_be_true_or_false() -> None:
    with pytest.raises(ValueError, match=r"R3F\.detach is 'yes'; it must be one of True, False"):
        R3F(detach="yes")
