"""EMA: the average against a literal one, the weights of evaluations, checkpoints and the final model, resumed runs."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import TrainerCallback, TrainingArguments

from attendrop import EMA, ChildTuning, Engine, Mixout, RegularizedTrainer
from helpers import zoo
from helpers.precision import assert_same_numbers
from helpers.training import same_parameters, train


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    return {name: parameter.detach().clone() for name, parameter in model.named_parameters()}


class Recorder(TrainerCallback):
    """The weights after each step."""

    def __init__(self) -> None:
        self.steps: list[dict[str, Tensor]] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        self.steps.append(weights_of(model))


def literal(steps: list[dict[str, Tensor]], decay: float, warmup: bool) -> dict[str, Tensor]:
    average = {name: weight.clone() for name, weight in steps[0].items()}
    for number, weights in enumerate(steps[1:], start=2):
        beta = min(decay, number / (9 + number)) if warmup else decay
        average = {name: beta * average[name] + (1 - beta) * weights[name] for name in average}
    return average


def trainer_of(folder: Path, method: Any, model: Any = None, **arguments: Any) -> Any:
    batch = zoo.make_batch("bert", size=12, seed=4)
    data = [{name: values[i] for name, values in batch.items()} for i in range(12)]
    options = {
        "per_device_train_batch_size": 2, "num_train_epochs": 1, "learning_rate": 1e-3, "save_strategy": "no",
        "use_cpu": True, "report_to": [], "disable_tqdm": True, "weight_decay": 0.1, "gradient_accumulation_steps": 2,
    }  # fmt: skip
    args = TrainingArguments(folder, **{**options, **arguments})
    model = zoo.make_model("bert") if model is None else model
    return RegularizedTrainer(model=model, args=args, train_dataset=data, eval_dataset=data, regularizers=method)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("fields", [{"decay": 0.3}, {"decay": 0.9}, {"decay": 0.9, "warmup": False}])
def test_final_model_is_the_literal_average(fields: dict[str, Any], tmp_path: Path) -> None:
    trainer, recorder = trainer_of(tmp_path, EMA(**fields), num_train_epochs=2), Recorder()
    trainer.add_callback(recorder)
    trainer.train()
    assert len(recorder.steps) == 6
    expected = literal(recorder.steps, fields["decay"], fields.get("warmup", True))
    for name, weight in trainer.model.named_parameters():
        assert_same_numbers(weight, expected[name])


def test_training_is_not_changed(tmp_path: Path) -> None:
    runs = []
    for method in ([], EMA(0.5)):
        trainer, recorder = trainer_of(tmp_path, method, eval_strategy="steps", eval_steps=1), Recorder()
        trainer.add_callback(recorder)
        trainer.train()
        runs.append(recorder.steps)
    for plain, averaged in zip(*runs, strict=True):
        assert all(torch.equal(plain[name], averaged[name]) for name in plain)


def test_evaluations_and_checkpoints_have_the_averaged_weights(tmp_path: Path) -> None:
    trainer, recorder = trainer_of(tmp_path, EMA(0.5), eval_strategy="steps", eval_steps=1), Recorder()
    trainer.args.save_strategy, trainer.args.save_steps = "steps", 2
    trainer.state.save_steps = 2
    seen: list[dict[str, Tensor]] = []
    trainer.compute_metrics = lambda prediction: seen.append(weights_of(trainer.model)) or {}
    addresses = [parameter.data_ptr() for parameter in trainer.model.parameters()]
    trainer.add_callback(recorder)
    trainer.train()
    assert len(seen) == 3
    for number, weights in enumerate(seen, start=1):
        expected = literal(recorder.steps[:number], 0.5, True)
        assert all(torch.allclose(weights[name], expected[name], atol=1e-6) for name in weights)
    checkpoint = next(tmp_path.glob("checkpoint-2"))
    saved, trained = (load_file(checkpoint / f"{name}.safetensors") for name in ("model", "trained_weights"))
    assert all(torch.equal(saved[name], seen[1][name]) for name in trained)
    assert all(torch.equal(trained[name], recorder.steps[1][name]) for name in trained)
    assert all(torch.equal(weight, seen[2][name]) for name, weight in trainer.model.named_parameters())
    assert addresses == [parameter.data_ptr() for parameter in trainer.model.parameters()]


def test_best_checkpoint_is_loaded_with_its_average(tmp_path: Path) -> None:
    trainer = trainer_of(
        tmp_path, EMA(0.9), num_train_epochs=3, eval_strategy="epoch", save_strategy="epoch", learning_rate=0.05,
        load_best_model_at_end=True, metric_for_best_model="loss",
    )  # fmt: skip
    trainer.train()
    best = min(entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry)
    assert trainer.evaluate()["eval_loss"] == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("other", [Mixout(0.5), ChildTuning(0.5, variant="D", samples=4)])
def test_average_is_of_the_weights_that_other_methods_leave(other: Any, tmp_path: Path) -> None:
    """In any order of the list."""
    orders = ([EMA(0.5), other], [other, EMA(0.5)])
    # Weight decay moves weights that Child-Tuning restores.
    runs = [train(tmp_path, "bert", methods, weight_decay=0.5)[0] for methods in orders]
    assert same_parameters(*runs)


def test_average_of_half_precision_is_kept_in_float32() -> None:
    model = zoo.make_model("bert").bfloat16().train()
    method, weight = EMA(0.999, warmup=False), next(model.parameters())
    with Engine(model, method) as engine, torch.no_grad():
        for _ in range(50):
            engine.begin_step()
            engine.after_optimizer()
            weight += 1.0
        before = weight.clone()
        with engine.evaluated_weights(), engine.evaluated_weights():
            assert not torch.equal(weight, before)
        assert torch.equal(weight, before)
        average = next(iter(method.state()[0].values()))
        assert average.dtype == torch.float32
        engine.finish()
        assert torch.equal(weight, average.bfloat16())


def test_fully_frozen_model_is_refused() -> None:
    model = zoo.make_model("bert").requires_grad_(False)
    with pytest.raises(ValueError, match=r"has no weight that is trained, so EMA has nothing to act on\."):
        Engine(model, EMA())


def test_two_averages_are_refused() -> None:
    second = copy.deepcopy(EMA())
    second.__class__ = type("Another", (EMA,), {})
    with pytest.raises(ValueError, match="EMA and Another, which both decide the weights of the final model"):
        Engine(zoo.make_model("bert"), [EMA(), second])


@pytest.mark.parametrize("fields", [{"decay": 1}, {"decay": -0.1}, {"decay": "much"}])
def test_fields_out_of_range_are_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"EMA\.decay is .*; it must be a number from 0 to below 1"):
        EMA(**fields)
