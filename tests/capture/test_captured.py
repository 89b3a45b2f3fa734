"""Captured steps match eager steps. These tests need a GPU; those of the decisions whether to capture do not."""

from __future__ import annotations

import logging as python_logging
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from attendrop import ADDrop, AttendOut, Mixout, RDrop, RegularizedTrainer
from attendrop.capture.batches import NotesPadding, PaddedShapes, take_note
from attendrop.capture.draws import DrawKeys, StaticMicroBatch
from attendrop.capture.eligibility import reason_against, reason_against_auto
from attendrop.capture.graphs import Graphs
from attendrop.capture.optimizers import OptimizerGraph, allows_capture
from attendrop.core.regularizer import Regularizer
from attendrop.core.schedule import Progress
from attendrop.core.step import MicroBatch, Step
from attendrop.kernels.draws import uniform
from attendrop.kernels.draws.reference import signed
from attendrop.lab.runs.losses import LabelLoss
from attendrop.model.plan import Plan
from attendrop.random import key_of
from attendrop.utils.batches import padded_length
from helpers import zoo
from helpers.captured import CAPTURED, make_methods
from helpers.settings import SETTINGS, bert_for


def make_trainer(
    tmp_path, kind="bert", regularizers=(), capture="auto", model=None, data=None, cls=None, **options
) -> Any:
    usual = {
        "per_device_train_batch_size": 4, "max_steps": 6, "logging_steps": 1, "save_strategy": "no", "report_to": [],
        "disable_tqdm": True, "learning_rate": 1e-3, "lr_scheduler_type": "linear",
    }  # fmt: skip
    model = zoo.make_model(kind) if model is None else model
    if data is None:
        batch = zoo.make_batch(kind, size=24, length=16, seed=4)
        batch = {k: v.to(model.dtype) if v.is_floating_point() else v for k, v in batch.items()}
        data = [{k: v[i] for k, v in batch.items()} for i in range(24)]
    return (cls or RegularizedTrainer)(
        model=model,
        args=TrainingArguments(tmp_path, **usual | options),
        train_dataset=data,
        regularizers=list(regularizers),
        capture=capture,
    )


def losses_of(trainer: Any) -> torch.Tensor:
    return torch.tensor([entry["loss"] for entry in trainer.state.log_history if "loss" in entry])


def weights_of(model: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().double().flatten().cpu() for parameter in model.parameters()])


# ---- everywhere ------------------------------------------------------------------------------------------------------


def test_lengths_are_rounded_up_to_few_values() -> None:
    assert [padded_length(n) for n in (1, 16, 17, 47, 128, 129, 250, 257, 1025)] == [
        16, 16, 32, 48, 128, 160, 256, 320, 1280,
    ]  # fmt: skip
    assert len({padded_length(n) for n in range(1, 513)}) == 16
    assert all(n <= padded_length(n) < n + max(16, n / 3) for n in range(1, 2000))


def test_unknown_value_of_capture_is_refused(tmp_path) -> None:
    with pytest.raises(ValueError, match=r"capture is 'graph'; it must be one of 'auto', 'eager', 'captured'\."):
        make_trainer(tmp_path, capture="graph")


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU can")
def test_without_a_gpu_auto_runs_eagerly_and_captured_is_refused(tmp_path, caplog) -> None:
    trainer = make_trainer(tmp_path, regularizers=[ADDrop(cross_tuning=False)], max_steps=1)
    trainer.train()
    assert not trainer.capture.are_captured
    with pytest.raises(ValueError, match="capture is 'captured', which is not possible, because the model is on cpu"):
        make_trainer(tmp_path, regularizers=[ADDrop(cross_tuning=False)], capture="captured", max_steps=1)


def test_capture_can_be_set_in_the_training_arguments(tmp_path) -> None:
    args = TrainingArguments(tmp_path, report_to=[])
    args.capture = "eager"
    trainer = RegularizedTrainer(model=zoo.make_model("bert"), args=args)
    assert trainer.capture._mode == "eager"


def test_deprecated_argument_step_still_works(tmp_path) -> None:
    message = "step is deprecated and will be removed; use capture instead"
    args = TrainingArguments(tmp_path, report_to=[])
    with pytest.warns(FutureWarning, match=message):
        assert RegularizedTrainer(model=zoo.make_model("bert"), args=args, step="eager").capture._mode == "eager"
    args.step = "eager"
    with pytest.warns(FutureWarning, match=message):
        assert RegularizedTrainer(model=zoo.make_model("bert"), args=args).capture._mode == "eager"


class OfTheUser(Regularizer):
    def plan(self, batch: MicroBatch) -> Plan:
        return Plan()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({}, None),
        ({"regularizers": [ADDrop(cross_tuning=False)]}, None),
        ({"gradient_checkpointing": True}, None),
        ({"torch_compile": True}, "of torch.compile"),
        ({"regularizers": [RDrop()]}, None),
        ({"regularizers": [Mixout()]}, None),
        ({"regularizers": [OfTheUser()]}, "OfTheUser has a plan or a penalty and no capture_key"),
    ],
    ids=str,
)
def test_reasons_against_capture(options: dict[str, Any], reason: str | None, tmp_path, monkeypatch) -> None:
    trainer = make_trainer(tmp_path, **options)
    moved = [type("Parameter", (), {"device": torch.device("cuda")})()]
    monkeypatch.setattr(trainer.model, "parameters", lambda: iter(moved))
    assert reason_against(trainer) == reason


def test_auto_avoids_capture_when_a_replay_would_skip_python_code(tmp_path) -> None:
    class Counting(RegularizedTrainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            return super().compute_loss(*args, **kwargs)

    assert reason_against_auto(make_trainer(tmp_path)) is None
    assert reason_against_auto(make_trainer(tmp_path, cls=Counting)) == "Counting has a compute_loss of its own"
    hooked = make_trainer(tmp_path)
    hooked.model.classifier.register_forward_hook(lambda *_: None)
    assert reason_against_auto(hooked) == "Linear has hooks"


def test_capture_key_of_schedules_and_plain_epochs() -> None:
    def key(method: ADDrop, epoch: int = 0) -> Any:
        return method.capture_key(Step(None, None, Progress(epoch=epoch, epochs=2)))  # type: ignore[arg-type]

    assert key(ADDrop(p="0.1..0.5", cross_tuning=False)) is True
    assert key(ADDrop(p="0..0.5", cross_tuning=False)) is False
    assert key(ADDrop(cross_tuning=False)) is True
    assert [key(ADDrop(), epoch) for epoch in (0, 1)] == [True, False]
    assert key(ADDrop(q=0, cross_tuning=False)) is False


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_keys_in_device_memory_give_the_same_draws(device: str) -> None:
    at = torch.device(device)
    draws = DrawKeys(at)
    step = Step(None, None, Progress(step=14), seed=3)  # type: ignore[arg-type]
    batch = MicroBatch(step, first_position=8, size=2)
    static = StaticMicroBatch.of(batch, draws)
    for turn in range(2):
        step.progress = Progress(step=14 + turn)
        for site in (0, 2):
            static.key(site, "x"), static.key(site, "y")
        draws.write(batch)
        for site, stream in ((2, "x"), (0, "y")):
            assert int(static.key(site, stream)) == signed(key_of(3, 14 + turn, site, stream))
            wanted = uniform(key_of(3, 14 + turn, site, stream), 16 + torch.arange(4), (2, 5, 7))
            assert torch.equal(static.uniform(site, (4, 2, 5, 7), at, stream).cpu(), wanted)
            assert torch.equal(batch.uniform(site, (4, 2, 5, 7), at, stream).cpu(), wanted)


def test_only_fused_optimizers_without_hooks_are_captured() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    fused, unfused = (torch.optim.AdamW([weight], fused=fused) for fused in (True, False))
    assert allows_capture(fused)
    assert not allows_capture(unfused)
    assert not allows_capture(torch.optim.SGD([weight]))
    fused.register_step_post_hook(lambda *_: None)
    assert not allows_capture(fused)


def test_gradients_that_were_not_captured_are_stepped_eagerly() -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([weight], lr=0.1, fused=True)
    graph = OptimizerGraph(optimizer, Graphs(torch.device("cpu")))
    for _ in range(2):
        weight.grad = torch.ones(3)
        graph.step(optimizer.step)
    twice = torch.nn.Parameter(torch.ones(3))
    plain = torch.optim.AdamW([twice], lr=0.1, fused=True)
    for _ in range(2):
        twice.grad = torch.ones(3)
        plain.step()
    assert torch.equal(weight, twice)


def test_optimizer_step_is_recaptured_when_its_tensors_move(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [torch.nn.Parameter(torch.ones(3)) for _ in range(2)]
    optimizer = torch.optim.AdamW(weights, lr=0.1, fused=True)
    graphs, keys = Graphs(torch.device("cpu")), []
    graphs._gradients = {weight: torch.ones(3) for weight in weights}
    monkeypatch.setattr(graphs, "run", lambda key, *_, **__: keys.append(key))
    graph = OptimizerGraph(optimizer, graphs)

    def number_of_graphs(elsewhere: bool = False) -> int:
        for weight, gradient in graphs._gradients.items():
            weight.grad = gradient
        if elsewhere:
            weights[1].grad = torch.ones(3)
        graph.step(optimizer.step)
        return len(set(keys))

    assert number_of_graphs() == 0  # the first step creates the state
    assert [number_of_graphs(), number_of_graphs()] == [1, 1]
    optimizer.param_groups[0]["lr"] = 0.05
    assert number_of_graphs() == 1
    steps = len(keys)
    assert number_of_graphs(elsewhere=True) == 1
    assert len(keys) == steps  # it was eager
    moved = [weights[0].data, optimizer.state[weights[1]]["exp_avg"]]  # kept, so that their memory is not used again
    weights[0].data = moved[0].clone()
    assert number_of_graphs() == 2
    optimizer.state[weights[1]]["exp_avg"] = moved[1].clone()
    assert number_of_graphs() == 3
    optimizer.param_groups[0]["weight_decay"] = 0.5
    assert number_of_graphs() == 4


def test_short_batches_are_padded_in_static_memory() -> None:
    graphs = Graphs(torch.device("cpu"))
    shapes, fill = {"input_ids": (2, 6), "labels": (2,)}, {"input_ids": 9, "labels": -100}
    for length in (6, 3, 5):
        ids = torch.arange(2 * length).reshape(2, length)
        actual = graphs.static("a", {"input_ids": ids, "labels": torch.tensor([length, 1])}, shapes, fill)
        assert torch.equal(actual["input_ids"][:, :length], ids)
        assert (actual["input_ids"][:, length:] == 9).all()
        assert actual["labels"].tolist() == [length, 1]


def test_collator_notes_whether_there_is_padding() -> None:
    batches = [{"attention_mask": torch.tensor([[1, 1], [1, last]])} for last in (0, 1)]
    for batch, expected in zip(batches, (False, True), strict=True):
        noted = NotesPadding(lambda examples: dict(examples))(batch)
        assert take_note(noted) == (batch, expected)
    for other in ({"input_ids": torch.ones(2, 2)}, [1, 2]):
        assert take_note(NotesPadding(lambda examples: examples)(other)) == (other, False)


def test_mask_of_ones_is_removed_where_it_has_no_effect(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make_trainer(tmp_path, max_steps=1)
    shapes = PaddedShapes(trainer)
    batch = zoo.make_batch("bert", size=2, length=16)
    batch["attention_mask"].fill_(1)
    assert shapes.without_mask(batch) is batch  # on short texts it is faster with a mask
    monkeypatch.setattr("attendrop.capture.batches.MASK_FREE_FROM", 1)
    assert "attention_mask" not in shapes.without_mask(batch)
    shorter = {name: x[:, :9] if x.dim() > 1 else x for name, x in batch.items()}
    assert shapes.without_mask(shorter) is shorter  # it is padded to 16
    batch["attention_mask"][0, 8:] = 0
    assert "attention_mask" in PaddedShapes(trainer).without_mask(batch)  # the losses differ


# ---- on a GPU --------------------------------------------------------------------------------------------------------


@pytest.fixture
def deterministic() -> Iterator[None]:
    """The same kernels add up in the same order in every run."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(False)


# Trajectories are compared in float64. There Adam makes nothing of a gradient that is zero up to rounding, while in
# float32 it makes a step of it. What is left is the learning rate, which a captured step reads in float32: 20 to 50
# steps of at most 1e-3 differ by about 50 · 1e-3 · 6e-8, and later steps amplify that (2e-8 was seen). A wrong step
# differs by about the learning rate.
SAME_WEIGHTS = 1e-6
SAME_LOSSES = 1e-5  # relative; the Trainer adds losses up in float32


def assert_same_run(eager: tuple[torch.Tensor, torch.Tensor], captured: tuple[torch.Tensor, torch.Tensor]) -> None:
    """Compares losses and weights."""
    assert (eager[0] - captured[0]).abs().max() < SAME_LOSSES * eager[0].abs().max().clamp(min=1)
    assert (eager[1] - captured[1]).abs().max() < SAME_WEIGHTS


def both(tmp_path, **options: Any) -> tuple[Any, Any]:
    results = []
    for capture in ("eager", "captured"):
        results.append(make_trainer(tmp_path / capture, capture=capture, **options))
        results[-1].train()
    return results[0], results[1]


METHODS = {
    "plain": lambda: [],
    "addrop": lambda: [ADDrop(p=0.4, q=0.5, layers="all", cross_tuning=False)],
    "crossed": lambda: [ADDrop(p=0.4, q=0.5, layers="all")],
    "attendout": lambda: [AttendOut(T=3, samples=8, reward_on="cached", generator_lr=1e-3)],
    "random": lambda: [ADDrop(p=0.4, q=0.5, layers="all", cross_tuning=False, attribution="rd")],
}


@pytest.mark.usefixtures("deterministic")
@pytest.mark.gpu
@pytest.mark.filterwarnings("error:.*capturable=True")  # the optimizer of the defender is a copy
@pytest.mark.parametrize("reward_on", ["cached", "dev", "noisy"])
def test_captured_attendout_matches_eager(reward_on: str, tmp_path) -> None:
    results = []
    batch = zoo.make_batch("bert", size=24, length=16, seed=4)
    for capture in ("eager", "captured"):
        model = zoo.make_model("bert", dropout=False)
        method = AttendOut(T=3, samples=8, reward_on=reward_on, init_drop=0.3, generator_lr=1e-3)
        trainer = make_trainer(tmp_path, "bert", [method], capture, model, max_steps=12, learning_rate=2e-4)
        trainer.eval_dataset = [{k: v[i] for k, v in batch.items()} for i in range(24)]
        trainer.train()
        assert trainer.capture.gave_up is None
        drops = [entry["drop_probability"] for entry in method.history]
        results.append((losses_of(trainer), torch.tensor(drops), [entry["winner"] for entry in method.history]))
    assert results[0][2] == results[1][2]
    assert len(results[0][2]) == 4
    assert (results[0][0] - results[1][0]).abs().max() < 1e-3
    assert (results[0][1] - results[1][1]).abs().max() < 1e-3
    assert (results[0][1][-1] - results[0][1][0]).abs().max() > 1e-3


@pytest.mark.usefixtures("deterministic")
@pytest.mark.gpu
@pytest.mark.parametrize("method", ["plain", "addrop", "crossed", "random"])
@pytest.mark.parametrize("kind", ["bert", "roberta", "gpt2", "llama", "token", "albert", "distilbert"])
def test_captured_steps_match_eager(kind: str, method: str, tmp_path) -> None:
    options = {"max_steps": -1, "num_train_epochs": 10} if method == "crossed" else {"max_steps": 50}
    models = [zoo.make_model(kind, dropout=False).double() for _ in range(2)]
    results = []
    for model, capture in zip(models, ("eager", "captured"), strict=True):
        trainer = make_trainer(
            tmp_path, kind, METHODS[method](), capture, model, learning_rate=2e-4, tf32=False, **options
        )
        trainer.train()
        assert trainer.state.global_step >= 50
        assert trainer.capture.gave_up is None
        results.append((losses_of(trainer), weights_of(model)))
    assert_same_run(*results)


# LoRA Dropout needs adapters. Beside adapters the weights that super tickets mask are frozen, and some methods are
# refused; the mixup of hidden states and losses on distances need labels of whole examples.
REFUSES_LORA = {name for name, setting in SETTINGS.items() if setting.lora_error is not None}
LEFT_OUT = {
    "mpnet": {"lora_dropout"},
    "deberta_v2": {"lora_dropout"},
    "llama_lora": {"supertickets", "hidden_mixup", "supcon", "softtriple"} | REFUSES_LORA,
}
# On BERT every setting of each method, on the others one.
EVERY_METHOD = [(bert_for(name), name, text) for name, texts in CAPTURED.items() for text in texts] + [
    (kind, name, texts[0])
    for kind, left_out in LEFT_OUT.items()
    for name, texts in CAPTURED.items()
    if name not in left_out
]


def data_for(kind: str, name: str) -> list[dict[str, Any]]:
    batch = zoo.make_batch(kind, size=24, length=16, seed=4)
    batch |= SETTINGS[name].columns(batch, "usual")
    return [{k: v[i] for k, v in batch.items()} for i in range(24)]


def test_every_method_that_the_gpu_tests_capture_is_accepted_by_its_model(tmp_path) -> None:
    for kind, name, text in EVERY_METHOD:
        make_trainer(tmp_path, kind, make_methods(text), data=data_for(kind, name), remove_unused_columns=False)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.gpu
@pytest.mark.parametrize(("kind", "name", "text"), EVERY_METHOD, ids=[f"{k}-{t}" for k, _, t in EVERY_METHOD])
def test_every_captured_method_matches_eager(kind: str, name: str, text: str, tmp_path) -> None:
    # The loss does not depend on the biases of keys, so that their gradient is rounding alone. With the pull of L2-SP
    # and the usual ε of Adam, each step would multiply a deviation by lr · α / ε = 10⁴.
    epsilon = 1e-3 if name == "l2_sp" else 1e-8
    results = []
    for capture in ("eager", "captured"):
        model = zoo.make_model(kind, dropout=False).double()
        trainer = make_trainer(
            tmp_path, regularizers=make_methods(text), capture=capture, model=model, data=data_for(kind, name),
            max_steps=50, learning_rate=2e-4, tf32=False, logging_steps=7, remove_unused_columns=False,
            adam_epsilon=epsilon,
        )  # fmt: skip
        take, losses = trainer.capture.try_captured, []
        trainer.capture.try_captured = lambda *args, take=take, losses=losses: losses.append(take(*args)) or losses[-1]
        trainer.train()
        assert len(losses) == 50
        assert all((loss is None) == (capture == "eager") for loss in losses)
        results.append((losses_of(trainer), weights_of(model)))
    assert_same_run(*results)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.gpu
@pytest.mark.parametrize("method", ["plain", "addrop"])
@pytest.mark.parametrize("kind", ["t5", "bart", "marian", "span", "choice", "multilabel"])
def test_captured_steps_match_eager_on_rare_architectures(kind: str, method: str, tmp_path) -> None:
    test_captured_steps_match_eager(kind, method, tmp_path)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.gpu
@pytest.mark.parametrize("method", ["plain", "addrop"])
@pytest.mark.parametrize(("kind", "dropout"), [("llama", False), ("bert", True)])
def test_gradient_checkpointing_is_captured(kind: str, dropout: bool, method: str, tmp_path) -> None:
    """With dropout, blocks that run again must draw what they drew: with and without checkpointing is the same too."""
    results = []
    for capture, checkpointing in (("eager", True), ("captured", True), ("captured", False)):
        model = zoo.make_model(kind, dropout=dropout).double()
        trainer = make_trainer(
            tmp_path, kind, METHODS[method](), capture, model, max_steps=20, learning_rate=2e-4, tf32=False,
            gradient_checkpointing=checkpointing,
        )  # fmt: skip
        trainer.train()
        assert trainer.capture.gave_up is None
        results.append((losses_of(trainer), weights_of(model)))
    assert_same_run(results[0], results[1])
    assert_same_run(results[2], results[1])


@pytest.mark.usefixtures("deterministic")
@pytest.mark.gpu
@pytest.mark.parametrize("optim", ["adamw_torch_fused", "adamw_torch", "sgd"])
def test_captured_optimizer_steps_match_eager(optim: str, tmp_path) -> None:
    results = []
    for capture in ("eager", "captured"):
        model = zoo.make_model("bert", dropout=False).double()
        trainer = make_trainer(
            tmp_path,
            capture=capture,
            model=model,
            optim=optim,
            weight_decay=0.1,
            max_steps=20,
            warmup_steps=5,
            tf32=False,
        )
        kinds = set()
        run = Graphs.run

        def watched(self: Any, key: Any, *args: Any, run: Any = run, kinds: set = kinds, **options: Any) -> Any:
            kinds.add(key[0])
            return run(self, key, *args, **options)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Graphs, "run", watched)
            trainer.train()
        assert ("pass" in kinds) == (capture == "captured")
        assert ("optimizer" in kinds) == (capture == "captured" and optim == "adamw_torch_fused")
        assert "attendrop" not in trainer.optimizer.optimizer.step.__code__.co_filename
        assert all(isinstance(group["lr"], float) for group in trainer.optimizer.optimizer.param_groups)
        results.append(weights_of(model))
    assert (results[0] - results[1]).abs().max() < SAME_WEIGHTS


@pytest.mark.gpu
@pytest.mark.parametrize("method", ["plain", "addrop"])
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_loss_curves_with_dropout_match_eager(method: str, precision: str, tmp_path) -> None:
    half = {} if precision == "fp32" else {precision: True}
    eager, captured = both(tmp_path, regularizers=METHODS[method](), max_steps=20, **half)
    assert captured.args.logging_nan_inf_filter
    a, b = losses_of(eager), losses_of(captured)
    assert (a - b).abs().max() < (2e-4 if precision == "fp32" else 0.05) * a.abs().max()


@pytest.mark.usefixtures("deterministic")
@pytest.mark.gpu
def test_accumulation_clipping_and_a_smaller_last_batch_match_eager(tmp_path) -> None:
    data = zoo.make_batch("bert", size=22, length=16, seed=4)
    data = [{k: v[i] for k, v in data.items()} for i in range(22)]
    results = []
    for capture in ("eager", "captured"):
        model = zoo.make_model("bert", dropout=False).double()
        trainer = make_trainer(
            tmp_path, regularizers=METHODS["addrop"](), capture=capture, model=model, data=data, max_steps=-1,
            num_train_epochs=4, gradient_accumulation_steps=2, max_grad_norm=0.1, learning_rate=2e-4,
        )  # fmt: skip
        trainer.train()
        results.append((losses_of(trainer), weights_of(model)))
    assert_same_run(*results)


@pytest.mark.usefixtures("deterministic")
@pytest.mark.gpu
@pytest.mark.parametrize("method", ["plain", "addrop"])
@pytest.mark.parametrize("kind", ["bert", "llama", "deberta_v2"])
def test_batches_without_padding_need_no_mask(kind: str, method: str, tmp_path) -> None:
    batch = zoo.make_batch(kind, size=26, length=16, seed=4)
    batch["attention_mask"].fill_(1)
    batch["attention_mask"][:8, 12:] = 0  # padding in some batches, and a smaller one at the end of each epoch
    batch["input_ids"].clamp_(min=3)
    data = [{k: v[i] for k, v in batch.items()} for i in range(26)]
    results = []
    for capture in ("eager", "captured"):
        model = zoo.make_model(kind, dropout=False).double()
        trainer = make_trainer(
            tmp_path, kind, METHODS[method](), capture, model, data, max_steps=28, learning_rate=2e-4, tf32=False,
            train_sampling_strategy="sequential",
        )  # fmt: skip
        masks = []
        take = Graphs.static_batch

        def watched(self: Any, batch: Any, take: Any = take, masks: list = masks) -> Any:
            masks.append("attention_mask" in batch)
            return take(self, batch)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Graphs, "static_batch", watched)
            patch.setattr("attendrop.capture.batches.MASK_FREE_FROM", 1)
            trainer.train()
        if capture == "captured":
            assert masks == 4 * [True, True, False, False, False, False, False]
        results.append((losses_of(trainer), weights_of(model)))
    assert_same_run(*results)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["bert", "gpt2", "token"])
def test_padding_to_rounded_lengths_matches_eager(kind: str, tmp_path) -> None:
    batches = [zoo.make_batch(kind, size=4, length=length, seed=length) for length in (9, 13, 16, 21, 9, 30)]
    data = [{k: v[i] for k, v in batch.items()} for batch in batches for i in range(4)]
    results = []
    for capture in ("eager", "captured"):
        model = zoo.make_model(kind, dropout=False)
        trainer = make_trainer(
            tmp_path, kind, METHODS["addrop"](), capture, model, data, max_steps=12, learning_rate=2e-4,
            train_sampling_strategy="sequential",
        )  # fmt: skip
        trainer.train()
        results.append((losses_of(trainer), weights_of(model)))
    # other lengths, other kernels: a score may fall on the other side of its row's threshold
    assert (results[0][0] - results[1][0]).abs().max() < 1e-3
    assert (results[0][1] - results[1][1]).abs().mean() < 1e-5


@pytest.mark.usefixtures("deterministic")
@pytest.mark.gpu
@pytest.mark.parametrize("method", ["plain", "crossed", "attendout"])
def test_killed_captured_run_resumes(method: str, tmp_path) -> None:
    class Killed(Exception):
        pass

    def train(folder: str, stop: int | None = None, resume: bool = False) -> torch.Tensor:
        trainer = make_trainer(
            tmp_path / folder, regularizers=METHODS[method](), capture="captured", max_steps=-1, num_train_epochs=4,
            save_strategy="steps", save_steps=5,
        )  # fmt: skip
        take = trainer.capture.try_captured

        def or_die(*args: Any) -> Any:
            if trainer.state.global_step == stop:
                raise Killed
            return take(*args)

        trainer.capture.try_captured = or_die
        try:
            trainer.train(resume_from_checkpoint=resume)
        except Killed:
            assert trainer.args.logging_nan_inf_filter
        return losses_of(trainer)

    whole = train("whole")
    train("killed", stop=8)
    assert torch.allclose(train("killed", resume=True), whole, atol=1e-5)


@pytest.mark.gpu
def test_logged_metrics_match_eager(tmp_path) -> None:
    results = []
    for capture in ("eager", "captured"):
        trainer = make_trainer(
            tmp_path, regularizers=METHODS["addrop"](), capture=capture, logging_steps=2,
            model=zoo.make_model("bert", dropout=False).double(),
        )  # fmt: skip
        trainer.train()
        results.append([v for log in trainer.state.log_history for k, v in log.items() if k.startswith("addrop/")])
    assert len(results[0]) > 6
    assert torch.allclose(torch.tensor(results[0]), torch.tensor(results[1]), atol=1e-5)  # metrics are in float32


class Hostile(torch.nn.Module):
    """Reads a number from the device in every forward."""

    def __init__(self, inner: Any) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        actual = self.inner(*args, **kwargs)
        return actual * 1.0 if float(actual.sum()) > -1e9 else actual


@pytest.mark.gpu
def test_model_that_cannot_be_captured_runs_eagerly_and_warns_once(tmp_path, caplog, monkeypatch) -> None:
    monkeypatch.setattr("attendrop.capture.recording.BREAK_EVEN_STEPS", 1)  # in a run of 8 steps
    results = []
    for capture in ("eager", "auto"):
        model = zoo.make_model("bert")
        model.classifier = Hostile(model.classifier)
        trainer = make_trainer(tmp_path, regularizers=METHODS["addrop"](), capture=capture, model=model, max_steps=8)
        with caplog.at_level(python_logging.WARNING, logger="transformers"):
            python_logging.getLogger("transformers").propagate = True
            trainer.train()
        assert not trainer.capture.are_captured
        results.append(losses_of(trainer))
    assert torch.equal(results[0], results[1])
    messages = [record.getMessage() for record in caplog.records if "not captured from here on" in record.getMessage()]
    assert len(messages) == 1
    again = make_trainer(tmp_path, capture="captured", max_steps=8)  # nothing is left behind in torch
    again.train()
    assert losses_of(again).isfinite().all()


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["mpnet", "deberta_v2", "bart", "t5", "vit", "span", "choice", "multilabel"])
def test_auto_trains_every_architecture(kind: str, tmp_path, monkeypatch) -> None:
    """Some of these run eagerly, because their forward creates tensors on the host."""
    monkeypatch.setattr("attendrop.capture.recording.BREAK_EVEN_STEPS", 1)  # in a run of 8 steps
    results = []
    for capture in ("eager", "auto"):
        model = zoo.make_model(kind, dropout=False)
        trainer = make_trainer(tmp_path, kind, METHODS["addrop"](), capture, model, max_steps=8, learning_rate=1e-4)
        trainer.train()
        results.append(losses_of(trainer))
    assert (results[0] - results[1]).abs().max() < 1e-3 * results[0].abs().max()


@pytest.mark.gpu
def test_model_that_draws_random_numbers_on_the_host_is_refused(tmp_path) -> None:
    model = zoo.make_model("bart")
    model.model.encoder.layerdrop = 0.5
    trainer = make_trainer(tmp_path, "bart", capture="captured", model=model)
    with pytest.raises(RuntimeError, match="draws random numbers on the CPU"):
        trainer.train()


@pytest.mark.gpu
@pytest.mark.parametrize("capture", ["eager", "captured"])
def test_losses_that_are_not_finite_are_filtered_from_the_log(capture: str, tmp_path) -> None:
    model = zoo.make_model("regression", dropout=False)
    batch = zoo.make_batch("regression", size=24, length=16, seed=4)
    batch["labels"] = batch["labels"].float()
    batch["labels"][4:8] = float("inf")
    data = [{k: v[i] for k, v in batch.items()} for i in range(24)]
    trainer = make_trainer(
        tmp_path, "regression", capture=capture, model=model, data=data, max_steps=3, learning_rate=0.0,
        logging_steps=3, train_sampling_strategy="sequential", max_grad_norm=0.0,
    )  # fmt: skip
    trainer.train()
    assert losses_of(trainer).isfinite().all()


@pytest.mark.gpu
def test_captured_steps_never_synchronise(tmp_path) -> None:
    """In this debug mode torch raises an error when a step waits for the GPU."""
    methods = METHODS["addrop"]()
    trainer = make_trainer(tmp_path, regularizers=methods, capture="captured", max_steps=8, logging_steps=50)
    take = trainer.capture.try_captured

    def watched(*args: Any) -> Any:
        if trainer.state.global_step < 3:
            return take(*args)
        torch.cuda.set_sync_debug_mode("error")
        try:
            return take(*args)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    trainer.capture.try_captured = watched
    trainer.train()
    assert trainer.state.global_step == 8


@pytest.mark.usefixtures("deterministic")
@pytest.mark.gpu
def test_captured_training_matches_the_stock_trainer(tmp_path) -> None:
    stock, ours = (zoo.make_model("bert", dropout=False).double() for _ in range(2))
    captured = make_trainer(tmp_path, capture="captured", model=ours, max_steps=20, learning_rate=2e-4)
    Trainer(model=stock, args=captured.args, train_dataset=captured.train_dataset).train()
    captured.train()
    assert (weights_of(stock) - weights_of(ours)).abs().max() < SAME_WEIGHTS


@pytest.mark.usefixtures("deterministic")
@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["bert", "token"])
def test_class_weights_and_the_focal_loss_match_eager(kind: str, tmp_path) -> None:
    results = []
    for capture in ("eager", "captured"):
        model = zoo.make_model(kind, dropout=False).double()
        trainer = make_trainer(
            tmp_path, kind, METHODS["addrop"](), capture, model, gradient_accumulation_steps=2, learning_rate=2e-4
        )
        weights = torch.linspace(0.5, 2, model.config.num_labels, device=trainer.args.device)
        trainer.compute_loss_func = LabelLoss(weights, gamma=2.0)
        trainer.train()
        results.append((losses_of(trainer), weights_of(model)))
    assert_same_run(*results)
