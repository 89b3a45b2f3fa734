"""Concrete dropout compared with its formula: loss, gradients of weights and rates, and the update of the rates."""

from __future__ import annotations

import copy
import math
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch

from attendrop import ADDrop, ConcreteDropout, Engine, Progress, RDrop, RegularizedTrainer
from attendrop.kernels.draws import uniform
from attendrop.methods.concrete_dropout import keep_factor, negative_entropy
from attendrop.random import key_of
from helpers import zoo
from helpers.data import largest_difference, make_arguments, make_examples, pad, weights_of
from helpers.literal import giving
from helpers.precision import assert_same_gradients, assert_same_numbers

BLOCKS = {
    "bert": ["bert.encoder.layer.0", "bert.encoder.layer.1"],
    "gpt2": ["transformer.h.0", "transformer.h.1"],
    "llama": ["model.layers.0", "model.layers.1"],
    "bart": [f"model.{side}.layers.{i}" for side in ("encoder", "decoder") for i in (0, 1)],
}


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", BLOCKS)
def test_whole_step_matches_the_formula(kind: str) -> None:
    method = ConcreteDropout(init=0.2, lr=0.03, entropy=1e-3, temperature=0.5)
    model, batch = zoo.make_model(kind, dropout=False).train(), zoo.make_batch(kind)
    literal = copy.deepcopy(model)
    with Engine(model, [method], seed=2) as engine:
        engine.begin_step(Progress(step=6, total_steps=10))
        with engine.micro_batch(batch) as inputs:
            loss = engine.loss(model(**inputs))
            loss.backward()
        before = method.probabilities()
        engine.before_optimizer()
        engine.after_optimizer()
        logged = engine.pop_metrics()

    logits = torch.full((len(BLOCKS[kind]),), math.log(0.2 / 0.8), requires_grad=True)

    def drop(block: int, x: torch.Tensor) -> torch.Tensor:
        u = uniform(key_of(2, 6, block, "concrete_dropout"), torch.arange(len(x)), (1, *x.shape[1:])).squeeze(1)
        u = u + 2**-25
        p = logits[block].sigmoid()
        z = torch.sigmoid((p.log() - (1 - p).log() + u.log() - (1 - u).log()) / 0.5)
        return x * (1 - z) / (1 - p)

    with ExitStack() as stack:
        for block, name in enumerate(BLOCKS[kind]):
            stack.enter_context(giving(literal.get_submodule(name), lambda x, b=block: drop(b, x)))
        expected = literal(**batch).loss
    p = logits.sigmoid()
    expected = expected + 1e-3 * 32 * (p * p.log() + (1 - p) * (1 - p).log()).sum()
    expected.backward()
    assert_same_numbers(loss, expected)
    assert_same_gradients(model, literal)
    torch.optim.Adam([logits], lr=0.03).step()
    assert before == pytest.approx([0.2] * len(before))
    assert_same_numbers(torch.tensor(method.probabilities()), logits.sigmoid().detach())
    assert logged["concrete_dropout/p_block_1"].item() == pytest.approx(method.probabilities()[1])


def test_keep_factor_has_mean_one_and_is_binary_at_a_low_temperature() -> None:
    u = uniform(key_of(0, 1, 2), torch.arange(100), (1, 30, 30))
    for p in (0.1, 0.5, 0.8):
        logit = torch.tensor(math.log(p / (1 - p)))
        factor = keep_factor(logit, u, 1e-4)
        share = (factor < 1e-3).float().mean()
        assert abs(share - p) < 4 * (p * (1 - p) / u.numel()) ** 0.5 + 1e-3
        error = (p / (1 - p) / u.numel()) ** 0.5
        assert abs(factor.mean() - 1) < 4 * error + 1e-3
    assert keep_factor(torch.tensor(-6.9), torch.tensor([0.0, 1 - 2**-24]), 0.1).isfinite().all()
    assert negative_entropy(torch.tensor(0.0)).item() == pytest.approx(-math.log(2))


def test_entropy_moves_rates_towards_one_half_and_lr_zero_keeps_them() -> None:
    for init, lr, low, high in ((0.1, 0.05, 0.12, 0.5), (0.9, 0.05, 0.5, 0.88), (0.1, 0.0, 0.0999, 0.1001)):
        model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
        method = ConcreteDropout(init=init, lr=lr, entropy=10.0)
        with Engine(model, [method]) as engine:
            for _ in range(10):
                with engine.micro_batch(batch) as inputs:
                    engine.loss(model(**inputs)).backward()
                engine.before_optimizer()
                engine.after_optimizer()
        assert all(low < p < high for p in method.probabilities())


@pytest.mark.usefixtures("float64")
def test_accumulated_micro_batches_give_one_update_of_the_rates() -> None:
    results = []
    for parts in (1, 2):
        model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert", size=4)
        batch["attention_mask"][:] = 1
        method = ConcreteDropout(init=0.3, lr=0.1)
        with Engine(model, [method], batch_size=4 // parts) as engine:
            for part in range(parts):
                piece = {k: v.chunk(parts)[part] for k, v in batch.items()}
                with engine.micro_batch(piece) as inputs:
                    (engine.loss(model(**inputs)) / parts).backward()
            results.append(method.learned.grad.clone())
            engine.before_optimizer()
            engine.after_optimizer()
    assert_same_numbers(*results)


def test_rates_are_saved_with_a_checkpoint(tmp_path: Path) -> None:
    def run(folder: Path, resume: bool = False) -> tuple[dict[str, torch.Tensor], list[float]]:
        model, method = zoo.make_model("bert"), ConcreteDropout(init=0.3, lr=0.05)
        args = make_arguments(folder, max_steps=6, save_strategy="steps", save_steps=4)
        trainer = RegularizedTrainer(
            model=model, args=args, train_dataset=make_examples("bert", 16), data_collator=pad, regularizers=[method]
        )
        trainer.train(resume_from_checkpoint=str(folder / "checkpoint-4") if resume else None)
        return weights_of(trainer.model), method.probabilities()

    weights, rates = run(tmp_path)
    again, rates_again = run(tmp_path, resume=True)
    assert rates == rates_again
    assert all(abs(p - 0.3) > 1e-3 for p in rates)
    assert largest_difference(weights, again) == 0


def test_method_object_restarts_its_rates_for_another_model() -> None:
    method = ConcreteDropout(init=0.3, lr=0.5)
    rates = []
    for _ in range(2):
        model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
        torch.manual_seed(0)
        with Engine(model, [method]) as engine:
            with engine.micro_batch(batch) as inputs:
                engine.loss(model(**inputs)).backward()
            engine.before_optimizer()
            engine.after_optimizer()
        rates.append(method.probabilities())
    assert rates[0] == rates[1] != [0.3, 0.3]


def test_overflow_of_the_loss_scaler_changes_no_rate() -> None:
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    method = ConcreteDropout(init=0.3, lr=0.5)
    with Engine(model, [method]) as engine:
        with engine.micro_batch(batch) as inputs:
            (engine.loss(model(**inputs)) * float("inf")).backward()
        engine.before_optimizer()
        engine.after_optimizer()
    assert method.probabilities() == pytest.approx([0.3, 0.3])


def test_views_draw_independently_and_compose_with_addrop() -> None:
    model, batch = zoo.make_model("llama", dropout=False).train(), zoo.make_batch("llama")
    methods = [RDrop(), ADDrop(p=0.5, q=0.5, cross_tuning=False), ConcreteDropout(init=0.3, entropy=0)]
    with Engine(model, methods) as engine, engine.micro_batch(batch) as inputs:
        outputs = model(**inputs)
        assert engine.loss(outputs) > outputs.loss + 1e-3


def test_fields_out_of_range_are_refused() -> None:
    for field, value, allowed in (
        ("init", 1.0, "from 0 to below 1"),
        ("lr", -1, "from 0"),
        ("entropy", float("nan"), "from 0"),
        ("temperature", 0, "above 0"),
    ):
        with pytest.raises(ValueError, match=rf"ConcreteDropout\.{field} is .*; it must be a number {allowed}"):
            ConcreteDropout(**{field: value})


def train_scaled(scales: list[float], entropy: float) -> tuple[list[float], dict[str, torch.Tensor]]:
    """One step for each factor of the loss. The gradients of the model are unscaled as a loss scaler does it."""
    model, batch = zoo.make_model("bert").train(), zoo.make_batch("bert")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    method = ConcreteDropout(init=0.3, lr=0.05, entropy=entropy)
    torch.manual_seed(0)
    with Engine(model, [method]) as engine:
        for scale in scales:
            with engine.micro_batch(batch) as inputs:
                (engine.loss(model(**inputs)) * scale).backward()
            engine.before_optimizer()
            for parameter in model.parameters():
                parameter.grad /= scale
            optimizer.step()
            optimizer.zero_grad()
            engine.after_optimizer()
    return method.probabilities(), weights_of(model)


@pytest.mark.parametrize("entropy", [0.0, 1e-3])
def test_a_changing_loss_scale_does_not_change_the_rates(entropy: float) -> None:
    """Scales are powers of two, so that scaling is exact: rates and weights must be equal bit for bit."""
    rates, weights = train_scaled([1.0] * 8, entropy)
    scaled_rates, scaled_weights = train_scaled([2.0**n for n in (16, 16, 15, 4, 0, 10, 10, 3)], entropy)
    assert scaled_rates == rates
    assert largest_difference(weights, scaled_weights) == 0


def test_fp16_autocast_with_a_loss_scaler_learns_the_same_rates_as_bfloat16_without() -> None:
    results = []
    for dtype in (torch.bfloat16, torch.float16):
        model, batch = zoo.make_model("bert", dropout=False).train(), zoo.make_batch("bert")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        # the scale doubles after every second step
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**4, growth_interval=2, enabled=dtype == torch.float16)
        method = ConcreteDropout(init=0.3, lr=0.05, entropy=0.1)
        with Engine(model, [method]) as engine:
            for _ in range(16):
                with torch.autocast("cpu", dtype), engine.micro_batch(batch) as inputs:
                    scaler.scale(engine.loss(model(**inputs))).backward()
                engine.before_optimizer()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                engine.after_optimizer()
        results.append(method.probabilities())
    assert scaler.get_scale() == 2.0**12
    assert all(abs(p - 0.3) > 0.05 for p in results[0])
    assert results[1] == pytest.approx(results[0], abs=0.003)


def test_a_step_whose_scaled_gradients_overflow_leaves_the_rates() -> None:
    before, _ = train_scaled([1.0] * 3, 1e-3)
    after, _ = train_scaled([1.0] * 3 + [math.inf], 1e-3)
    assert after == before
