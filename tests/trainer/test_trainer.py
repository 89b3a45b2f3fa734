"""RegularizedTrainer, the mixin and `regularized`, in training runs of tiny models."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from torch import Tensor

from attendrop import (
    ADDrop,
    RegularizedTrainer,
    Regularizer,
    Schedule,
    Seams,
    attribute,
    load_regularizers,
    regularized,
)
from attendrop.trainer.mixin import _StepCallback
from helpers.data import SGD, largest_difference, make_arguments, make_examples, pad, same_bits, weights_of
from helpers.precision import assert_same_numbers
from helpers.zoo import make_batch, make_model

ON = {"p": 0.5, "q": 0.5, "cross_tuning": False}


@pytest.fixture(autouse=True)
def _environment_restored() -> Iterator[None]:
    """Restores the environment: TrainingArguments writes variables for precision and compilation into it."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def make_trainer(
    folder: Path, model: Any, kind: str, regularizers: list[Regularizer] | None, cls: type | None = None, **options: Any
) -> Any:
    """A trainer of `model`; `regularizers=None` gives a stock Trainer."""
    cls = cls or (hf.Trainer if regularizers is None else RegularizedTrainer)
    extra = {} if regularizers is None else {"regularizers": regularizers}
    examples = options.pop("examples", None) or make_examples(kind)
    args = make_arguments(folder, **options)
    return cls(model=model, args=args, train_dataset=examples, data_collator=pad, **extra)


def train(
    folder: Path, kind: str, regularizers: list[Regularizer] | None, dropout: bool = True, **options: Any
) -> dict[str, Tensor]:
    """The weights of a model after training."""
    model = make_model(kind, dropout=dropout)
    make_trainer(folder, model, kind, regularizers, **options).train()
    return weights_of(model)


# ---- the identity, and what is not one -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bert", "deberta_v2", "bart"])
def test_zero_strength_matches_the_stock_trainer_exactly(tmp_path: Path, kind: str) -> None:
    stock = train(tmp_path, kind, None, max_steps=20)
    assert not same_bits(stock, weights_of(make_model(kind))), "nothing was trained"
    for regularizers in ([], [ADDrop(q=0, cross_tuning=False)], [ADDrop(p=0, cross_tuning=False)]):
        assert same_bits(stock, train(tmp_path, kind, regularizers, max_steps=20)), regularizers


def test_addrop_changes_training_and_is_reproducible(tmp_path: Path) -> None:
    stock = train(tmp_path, "bert", None, max_steps=20)
    first = train(tmp_path, "bert", [ADDrop(**ON)], max_steps=20)
    assert largest_difference(stock, first) > 1e-4
    assert same_bits(first, train(tmp_path, "bert", [ADDrop(**ON)], max_steps=20))
    other_seed = train(tmp_path, "bert", [ADDrop(**ON)], max_steps=20, seed=12, data_seed=11)
    assert not same_bits(first, other_seed)


def test_empty_list_of_regularizers_works_with_any_model(tmp_path: Path) -> None:
    """A model whose attention is not supported trains as usual when there is no regularizer."""
    config = hf.FNetConfig(vocab_size=60, hidden_size=16, num_hidden_layers=1, intermediate_size=16, num_labels=3)
    examples = [{name: e[name] for name in ("input_ids", "labels")} for e in make_examples("bert", 8)]
    options = {"max_steps": 2, "examples": examples}
    torch.manual_seed(0)
    stock, model = (hf.FNetForSequenceClassification(config) for _ in range(2))
    model.load_state_dict(stock.state_dict())
    make_trainer(tmp_path, stock, "bert", None, **options).train()
    make_trainer(tmp_path, model, "bert", [], **options).train()
    assert same_bits(weights_of(stock), weights_of(model))
    with pytest.raises(ValueError, match="FNet"):
        make_trainer(tmp_path, model, "bert", [ADDrop(**ON)], **options)


# ---- cross-tuning ----------------------------------------------------------------------------------------------------


class Witness(ADDrop):
    """AD-DROP that records in which steps it dropped anything."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.seen: list[tuple[int, int, bool]] = []

    def plan(self, batch: Any) -> Any:
        plan = super().plan(batch)
        self.seen.append((batch.step.progress.step, batch.step.progress.epoch, bool(plan.keep)))
        return plan


@pytest.mark.parametrize(
    ("epochs", "end_on", "method_epochs"),
    [
        (3, "plain", {1}),
        (3, "method", {0, 2}),
        (3, "either", {1}),
        (4, "plain", {0, 2}),
        (4, "method", {1, 3}),
        (4, "either", {1, 3}),
    ],
)
def test_cross_tuning_acts_in_every_other_epoch(
    tmp_path: Path, epochs: int, end_on: str, method_epochs: set[int]
) -> None:
    witness = Witness(p=0.5, q=0.5, end_on=end_on)
    # 20 examples in micro-batches of 4, two of them to a step: three steps to an epoch, the last one shorter.
    make_trainer(
        tmp_path, make_model("bert"), "bert", [witness],
        num_train_epochs=epochs, gradient_accumulation_steps=2, examples=make_examples("bert", 20),
    ).train()  # fmt: skip
    expected = [
        (3 * epoch + step, epoch, epoch in method_epochs) for epoch in range(epochs) for step in (0, 0, 1, 1, 2)
    ]
    assert witness.seen == expected


# ---- how a batch is dealt out, and how memory is saved, changes nothing ----------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_gradient_accumulation_equals_the_larger_batch(tmp_path: Path, kind: str) -> None:
    def run(q: float, **options: Any) -> dict[str, Tensor]:
        model = make_model(kind, dropout=False)
        method = ADDrop(p=0.5, q=q, cross_tuning=False, layers="all")
        trainer = make_trainer(
            tmp_path, model, kind, [method], num_train_epochs=2, examples=make_examples(kind, 20), **SGD, **options
        )
        if kind == "bert":
            # BERT takes **kwargs and ignores the number of items, so the Trainer would not divide by the micro-batches.
            trainer.model_accepts_loss_kwargs = False
        trainer.train()
        return weights_of(model)

    whole = run(0.5, per_device_train_batch_size=8)
    parts = run(0.5, per_device_train_batch_size=4, gradient_accumulation_steps=2)
    plain = run(0.0, per_device_train_batch_size=8)
    assert largest_difference(whole, parts) < 1e-9
    assert largest_difference(whole, plain) > 1e-4


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("kind", "dropout"),
    [
        ("bert", False),
        ("bert", True),
        ("gpt2", False),
        ("llama", False),
        pytest.param("bart", False, marks=pytest.mark.slow),
        ("t5", False),
        ("deberta_v2", False),
    ],
)
def test_gradient_checkpointing_changes_nothing(tmp_path: Path, kind: str, dropout: bool) -> None:
    def run(checkpointing: bool) -> dict[str, Tensor]:
        model = make_model(kind, dropout=dropout)
        trainer = make_trainer(
            tmp_path, model, kind, [ADDrop(**ON, layers="all")],
            max_steps=4, gradient_checkpointing=checkpointing, **SGD,
        )  # fmt: skip
        trainer.train()
        assert model.is_gradient_checkpointing is checkpointing
        return weights_of(model)

    without, with_it = run(False), run(True)
    assert largest_difference(with_it, without) < 1e-9


def test_compiled_training_equals_eager_training(tmp_path: Path) -> None:
    examples = make_examples("bert", 16, longest=4)  # all of one length, so that there is one shape to compile
    options = {"max_steps": 4, "examples": examples, **SGD}

    def run(regularizers: list[Regularizer], **more: Any) -> dict[str, Tensor]:
        model = make_model("bert", dropout=False).double()
        model.config.problem_type = "single_label_classification"  # the model would set it in its first pass
        make_trainer(tmp_path, model, "bert", regularizers, **options, **more).train()
        return weights_of(model)

    eager, plain = run([ADDrop(**ON, layers="all")]), run([])
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = run([ADDrop(**ON, layers="all")], torch_compile=True, torch_compile_backend="aot_eager")
    assert largest_difference(eager, compiled) < 1e-9
    assert largest_difference(eager, plain) > 1e-3
    # The masks are inputs of the graph: a new plan in every step must not compile it again.
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize(("p", "q"), [(1.0, 1.0), (0.5, 0.5)])
def test_bf16_training_stays_finite(tmp_path: Path, p: float, q: float) -> None:
    model = make_model("bert")
    before = weights_of(model)
    trainer = make_trainer(
        tmp_path, model, "bert", [ADDrop(p=p, q=q, cross_tuning=False, layers="all")],
        max_steps=30, bf16=True, logging_strategy="steps", logging_steps=1, logging_nan_inf_filter=False,
    )  # fmt: skip
    assert trainer.accelerator.mixed_precision == "bf16"
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(losses) == 30
    assert all(math.isfinite(loss) for loss in losses)
    assert all(value.isfinite().all() for value in model.state_dict().values())
    assert not same_bits(before, weights_of(model))


@pytest.mark.parametrize("size_of_head", [1, 1e-5])
@pytest.mark.parametrize("kind", ["bert", "llama"])
def test_fp16_attributions_rank_like_fp32(kind: str, size_of_head: float) -> None:
    """With a small head most gradients would be 0 in fp16 without scaling: its smallest number is 6e-8.

    The error would then be near 1, and the ranks unrelated. How fp16 rounds depends on the processor's kernels.
    """
    model, batch = make_model(kind, dropout=False), pad(make_examples(kind, 4))
    head = model.classifier if kind == "bert" else model.lm_head
    with torch.no_grad():
        head.weight.mul_(size_of_head)
    exact = attribute(model, batch)
    with torch.autocast("cpu", dtype=torch.float16):
        assert head(torch.ones(1, 32)).dtype == torch.float16
        half = attribute(model, batch)
    for site, expected in exact.items():
        actual = half[site].float()
        assert actual.isfinite().all()
        assert (actual - expected).norm() / expected.norm() < 0.2
        rows = expected.abs().amax(-1) > 0.05 * expected.abs().max()  # those that carry a signal
        ranks = torch.stack([x[rows].argsort(-1).argsort(-1).float() for x in (expected, actual)])
        ranks = ranks - ranks.mean(-1, keepdim=True)
        correlation = (ranks[0] * ranks[1]).sum(-1) / ranks.norm(dim=-1).prod(0)
        assert correlation.mean() > 0.9, site


# ---- what is logged, saved and left behind ---------------------------------------------------------------------------


def test_drop_rates_are_logged(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path, make_model("bert"), "bert", [ADDrop(p=0.5, q=0.5, layers="all", end_on="plain")],
        num_train_epochs=3, logging_strategy="steps", logging_steps=4,
    )  # fmt: skip
    trainer.train()
    lines = {entry["step"]: entry for entry in trainer.state.log_history if "loss" in entry}
    assert sorted(lines) == [4, 8, 12, 16, 20, 24]
    names = [f"addrop/{what}_layer_{n}" for n in (0, 1) for what in ("candidate_share", "drop_rate", "dropped_mass")]
    for step, line in lines.items():
        logged = [name for name in line if name.startswith("addrop/")]
        if not 8 < step <= 16:  # the second epoch is AD-DROP's
            assert logged == []
            continue
        assert sorted(logged) == sorted(names)
        for n in (0, 1):
            region, dropped, mass = (
                line[f"addrop/{what}_layer_{n}"] for what in ("candidate_share", "drop_rate", "dropped_mass")
            )
            # At least half of each row, rounded up, more with ties; half of that is dropped.
            assert 0.5 <= region <= 1
            assert dropped == pytest.approx(0.5 * region, abs=0.06)
            assert 0 < mass < 1


def test_configuration_is_saved_with_every_checkpoint_and_loaded_again(tmp_path: Path) -> None:
    regularizers = [ADDrop(p="0.1..0.5", q=0.25, layers=slice(0, 2), attribution="aa", end_on="method")]
    trainer = make_trainer(
        tmp_path / "run", make_model("bert"), "bert", regularizers, max_steps=4, save_strategy="steps", save_steps=2
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "model"))
    folders = [tmp_path / "run" / "checkpoint-2", tmp_path / "run" / "checkpoint-4", tmp_path / "model"]
    for folder in folders:
        loaded = load_regularizers(folder)
        assert loaded == regularizers
        assert loaded[0].p == Schedule([(0, 0.1), (1, 0.5)])
        assert json.loads((folder / "regularizers.json").read_text())["seed"] == 11


def _state_of(model: Any) -> list[Any]:
    """Everything that binding can change."""
    return [
        (name, type(module), sorted(key for key in vars(module) if key.startswith("_attendrop")))
        for name, module in model.named_modules()
    ] + [module.config._attn_implementation for module in model.modules() if hasattr(module, "config")]


@pytest.mark.parametrize("kind", ["bert", "albert", "deberta_v2", "bart"])
def test_training_leaves_no_traces_on_the_model(tmp_path: Path, kind: str) -> None:
    model = make_model(kind)
    before = _state_of(model)
    bound = []

    class Watch(Witness):
        def plan(self, batch: Any) -> Any:
            bound.append(Seams.of(model) is batch.step.seams and _state_of(model) != before)
            return super().plan(batch)

    trainer = make_trainer(tmp_path, model, kind, [Watch(**ON, layers="all")], max_steps=2)
    assert Seams.of(model) is None
    assert _state_of(model) == before
    trainer.train()
    assert bound == [True, True]
    assert Seams.of(model) is None
    assert _state_of(model) == before
    assert trainer.engine is None


class Stop(Exception):
    pass


@dataclass
class Raising(Regularizer):
    def penalty(self, outputs: Any, batch: Any) -> Tensor | None:
        if batch.step.progress.step == 2:
            raise Stop
        return None


@pytest.mark.parametrize("kind", ["bert", "deberta_v2"])
def test_failed_step_leaves_no_traces_on_the_model(tmp_path: Path, kind: str) -> None:
    model = make_model(kind)
    before = _state_of(model)
    trainer = make_trainer(tmp_path, model, kind, [ADDrop(**ON), Raising()], max_steps=6)
    with pytest.raises(Stop):
        trainer.train()
    assert trainer.state.global_step == 2
    assert Seams.of(model) is None
    assert _state_of(model) == before
    assert trainer.engine is None
    assert not any(isinstance(callback, _StepCallback) for callback in trainer.callback_handler.callbacks)
    make_trainer(tmp_path, model, kind, [ADDrop(**ON)], max_steps=2).train()
    assert _state_of(model) == before


# ---- other trainers --------------------------------------------------------------------------------------------------


class OwnLoss(hf.Trainer):
    """A trainer of a user, with a loss of its own, that removes the labels from its inputs."""

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        labels = inputs.pop("labels")
        outputs = model(**inputs)
        loss = (outputs.logits - 3 * torch.nn.functional.one_hot(labels, 3)).pow(2).mean()
        return (loss, outputs) if return_outputs else loss


@dataclass
class PlusOne(Regularizer):
    def penalty(self, outputs: Any, batch: Any) -> Tensor | None:
        return outputs["logits"].sum() * 0 + 1


def test_custom_trainer_keeps_its_loss(tmp_path: Path) -> None:
    options = {"max_steps": 6, "logging_strategy": "steps", "logging_steps": 1}

    def run(cls: type, regularizers: list[Regularizer] | None) -> tuple[dict[str, Tensor], list[float]]:
        model = make_model("bert")
        trainer = make_trainer(tmp_path, model, "bert", regularizers, cls=cls, **options)
        trainer.train()
        return weights_of(model), [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]

    stock, losses = run(OwnLoss, None)
    assert not same_bits(stock, run(hf.Trainer, None)[0])
    same, same_losses = run(regularized(OwnLoss), [ADDrop(q=0, cross_tuning=False)])
    assert same_bits(stock, same)
    assert same_losses == losses
    more, more_losses = run(regularized(OwnLoss), [PlusOne()])
    assert same_bits(stock, more)  # a constant has no gradient
    assert more_losses == pytest.approx([loss + 1 for loss in losses], abs=2e-6)  # both are rounded
    dropped, dropped_losses = run(regularized(OwnLoss), [ADDrop(**ON)])
    assert largest_difference(stock, dropped) > 1e-4
    assert dropped_losses[0] == pytest.approx(losses[0], rel=0.5)

    class Inherited(RegularizedTrainer):
        compute_loss = OwnLoss.compute_loss

    assert same_bits(dropped, run(Inherited, [ADDrop(**ON)])[0])


def test_seq2seq_trainer_trains_and_generates(tmp_path: Path) -> None:
    model = make_model("bart")
    before = weights_of(model)
    shapes = []

    def metrics(prediction: Any) -> dict[str, float]:
        shapes.append(prediction.predictions.shape)
        return {"tokens": float((prediction.predictions >= 0).sum())}

    def make(cls: type, **extra: Any) -> Any:
        args = make_arguments(
            tmp_path, hf.Seq2SeqTrainingArguments, max_steps=6, eval_strategy="steps", eval_steps=3,
            predict_with_generate=True,
        )  # fmt: skip
        data = {"train_dataset": make_examples("bart"), "eval_dataset": make_examples("bart", 8, seed=4)}
        return cls(model=model, args=args, data_collator=pad, compute_metrics=metrics, **data, **extra)

    trainer = make(regularized(hf.Seq2SeqTrainer), regularizers=[ADDrop(**ON, layers="all")])
    trainer.train()
    inside = trainer.state.log_history[-2]  # the evaluation after the last step, with the seams still in
    assert largest_difference(before, weights_of(model)) > 1e-3
    assert len(shapes) == 2
    assert shapes[0][0] == 8
    after = make(hf.Seq2SeqTrainer).evaluate()
    assert inside["step"] == 6
    assert (inside["eval_loss"], inside["eval_tokens"]) == (after["eval_loss"], after["eval_tokens"])


# ---- LoRA ------------------------------------------------------------------------------------------------------------

_LORA = {
    "bert": {"task_type": "SEQ_CLS", "target_modules": ["query", "value"], "layers_pattern": "layer"},
    "gpt2": {"task_type": "CAUSAL_LM", "target_modules": ["c_attn"], "layers_pattern": "h", "fan_in_fan_out": True},
    "vit": {"target_modules": ["q_proj", "v_proj"], "layers_pattern": "layers"},
}


def _with_lora(kind: str, only_last: bool) -> Any:
    peft = pytest.importorskip("peft")
    options = dict(_LORA[kind])
    if only_last:
        options["layers_to_transform"] = [1]
    else:
        options.pop("layers_pattern")
    model = peft.get_peft_model(make_model(kind, dropout=False), peft.LoraConfig(r=2, **options))
    assert any("lora" in name and ".1." in name for name, _ in model.named_parameters())
    assert only_last != any("lora" in name and ".0." in name for name, _ in model.named_parameters())
    return model


@pytest.mark.parametrize("only_last", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_lora_trains_only_its_adapters(tmp_path: Path, kind: str, only_last: bool) -> None:
    def run(q: float) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        model = _with_lora(kind, only_last)
        before = weights_of(model)
        method = ADDrop(p=0.5, q=q, cross_tuning=False, layers="first")
        make_trainer(tmp_path, model, kind, [method], max_steps=5).train()
        return before, weights_of(model)

    before, after = run(0.5)
    trained = {name for name in before if "lora_" in name or "modules_to_save" in name}
    assert trained
    assert {name for name in before if not torch.equal(before[name], after[name])} == trained
    assert not same_bits(after, run(0.0)[1])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("kind", ["bert", "gpt2", "vit"])
def test_frozen_layers_get_attributions(kind: str, checkpointing: bool) -> None:
    """LoRA on the last layer only: nothing in the first layer needs a gradient. B is 0, so outputs are unchanged."""
    batch = make_batch(kind)
    expected = attribute(make_model(kind, dropout=False).train(), batch, layers="first")[0]
    model = _with_lora(kind, only_last=True).train()
    if checkpointing:
        model.gradient_checkpointing_enable()
    actual = attribute(model, batch, layers="first")[0]
    assert expected.abs().max() > 1e-3
    assert_same_numbers(actual, expected)
