"""Evaluation from graphs equals eager evaluation, and only what is repaid is recorded.

On a CPU the operations are recorded and repeated (`helpers/recorded.py`); with a GPU the graphs are real.
"""

from __future__ import annotations

import gc
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorWithPadding,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
    masking_utils,
)

from attendrop import ADDrop, RegularizedTrainer
from attendrop.capture import kept_batches, step_capture
from attendrop.capture.buckets import (
    BREAK_EVEN_STEPS,
    Buckets,
    buckets_for,
    expected_at_random,
    expected_grouped,
    expected_in_order,
    lengths_of,
)
from attendrop.capture.eligibility import reason_against_evaluation
from attendrop.capture.recording import RecordingPlan
from helpers import zoo
from helpers.recorded import RecordedGraphs, Tape
from helpers.wordpiece import make_tokenizer

LENGTHS = [5, 30, 12, 16, 9, 33, 20, 18, 31, 3, 7, 25, 11, 26, 14, 35, 8, 29, 13, 10]

SHORT = [min(length, 32) for length in LENGTHS]  # the models have 40 positions, and 48 would be too many


def padded(examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """A batch as long as its longest example."""
    width = max(len(example["input_ids"]) for example in examples)
    fill = {"labels": -100}
    batch = {}
    for name in examples[0]:
        rows = [torch.as_tensor(example[name]) for example in examples]
        if rows[0].dim():
            rows = [torch.nn.functional.pad(x, (0, width - len(x)), value=fill.get(name, 0)) for x in rows]
        batch[name] = torch.stack(rows)
    return batch


def examples_of(kind: str, lengths: list[int]) -> list[dict[str, Any]]:
    examples = []
    for number, length in enumerate(lengths):
        batch = zoo.make_batch(kind, size=1, length=length, seed=number)
        examples.append({name: value[0] for name, value in batch.items()})
    return examples


def make_trainer(kind: str, tmp_path: Path, capture: str = "auto", **options: Any) -> RegularizedTrainer:
    usual = {"per_device_eval_batch_size": 2, "per_device_train_batch_size": 4, "report_to": [], "disable_tqdm": True}
    return RegularizedTrainer(
        model=zoo.make_model(kind),
        args=TrainingArguments(tmp_path, **usual | options),
        data_collator=padded,
        capture=capture,
        **({"train_dataset": examples_of(kind, LENGTHS)} if "num_train_epochs" in options else {}),
        **({"eval_dataset": examples_of(kind, SHORT)} if "eval_strategy" in options else {}),
    )


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> type[RecordedGraphs]:
    """Evaluation from graphs also without a GPU."""
    RecordedGraphs.recorded = 0
    if not torch.cuda.is_available():
        monkeypatch.setattr(step_capture, "Graphs", RecordedGraphs)
        monkeypatch.setattr(masking_utils, "is_tracing", lambda *_: Tape.is_recording)
        monkeypatch.setattr(step_capture.StepCapture, "may_capture", property(lambda self: self._mode != "eager"))
        monkeypatch.setattr(step_capture, "reason_against_evaluation", lambda trainer: None)
    return RecordedGraphs


@pytest.mark.parametrize("kind", ["bert", "token", "span", "llama", "regression"])
def test_predictions_from_graphs_equal_eager_ones(
    kind: str, graphs: type[RecordedGraphs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Token logits of padded batches are cut to the length that they have in the Trainer's own batches."""
    monkeypatch.setattr("attendrop.capture.evaluation.BREAK_EVEN_FORWARDS", 2)
    data = examples_of(kind, SHORT)
    eager, captured = (make_trainer(kind, tmp_path, capture).predict(data) for capture in ("eager", "auto"))
    for name in ("predictions", "label_ids"):
        actual, expected = (getattr(result, name) for result in (captured, eager))
        pairs = zip(actual, expected, strict=True) if isinstance(expected, tuple) else [(actual, expected)]
        for one, other in pairs:
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)
    assert captured.metrics["test_loss"] == pytest.approx(eager.metrics["test_loss"], rel=1e-3)
    if not torch.cuda.is_available():  # of 10 batches 2 are padded to 16 tokens, the others to 32
        # In a span head padding changes the loss, so that only batches of just these lengths share a graph.
        assert graphs.recorded == (3 if kind == "span" else 2)


@pytest.mark.parametrize("capture", ["auto", "eager"])
def test_batches_of_a_capturable_evaluation_do_not_synchronise(
    capture: str, graphs: type[RecordedGraphs], tmp_path: Path
) -> None:
    trainer, seen = make_trainer("bert", tmp_path, capture), []

    class Noting(TrainerCallback):
        def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            seen.append(kwargs["eval_dataloader"]._non_blocking)

    trainer.add_callback(Noting())
    trainer.evaluate(examples_of("bert", [4, 4]))
    trainer.predict(examples_of("bert", [4, 4]))
    assert seen == [capture == "auto"] * 2
    assert not trainer.accelerator.dataloader_config.non_blocking


def test_evaluation_graphs_use_the_current_weights(
    graphs: type[RecordedGraphs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A graph reads weights at their addresses; other weights in the model have a graph of their own."""
    monkeypatch.setattr("attendrop.capture.evaluation.BREAK_EVEN_FORWARDS", 1)
    data, trainer = examples_of("bert", [16] * 6), make_trainer("bert", tmp_path)
    with trainer.capture.evaluating(data):
        evaluation = trainer.capture._evaluation
        assert evaluation is not None
        losses = []
        for change in (None, "in place", "moved"):
            for parameter in trainer.model.parameters() if change else ():
                if change == "in place":
                    parameter.data.mul_(1.5)
                else:
                    parameter.data = parameter.data * 0.5
            batch = {name: x.to(trainer.args.device) for name, x in padded(data[:2]).items()}
            trainer.model.eval()
            expected = trainer.model(**batch).loss.item()
            losses.append(expected)
            assert trainer.prediction_step(trainer.model, batch, True)[0].item() == pytest.approx(expected, rel=1e-4)
        assert len(set(losses)) == 3
        if not torch.cuda.is_available():
            assert graphs.recorded == 2


def test_graphs_of_losses_and_of_predictions_do_not_mix(
    graphs: type[RecordedGraphs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one evaluation of the losses alone, the logits of a padded batch are cut all the same afterwards."""
    monkeypatch.setattr("attendrop.capture.evaluation.BREAK_EVEN_FORWARDS", 1)
    trainer, data = make_trainer("token", tmp_path), examples_of("token", [9, 9, 9, 9])
    trainer.model.eval()
    with trainer.capture.evaluating(data):
        batch = {name: x.to(trainer.args.device) for name, x in padded(data[:2]).items()}
        loss, nothing, _ = trainer.prediction_step(trainer.model, batch, True)
        _, logits, labels = trainer.prediction_step(trainer.model, batch, False)
    assert nothing is None
    assert (logits.shape[1], labels.shape[1]) == (9, 9)
    expected = trainer.model(**batch)
    torch.testing.assert_close(loss, expected.loss, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(logits, expected.logits, atol=1e-3, rtol=1e-3)


def test_evaluation_that_cannot_be_captured_is_eager_and_training_stays_captured(
    graphs: type[RecordedGraphs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: Any, function: Any, *args: Any) -> None:
        self.failure = "of a test"

    monkeypatch.setattr("attendrop.capture.evaluation.BREAK_EVEN_FORWARDS", 1)
    monkeypatch.setattr(step_capture.Graphs, "_try_to_capture", fail)
    trainer, data = make_trainer("bert", tmp_path), examples_of("bert", SHORT)
    with trainer.capture.evaluating(data):
        assert trainer.capture._evaluation is not None
        trainer.predict(data)
        assert trainer.capture.graphs is None
    actual = trainer.predict(data).predictions
    expected = make_trainer("bert", tmp_path, "eager").predict(data).predictions
    np.testing.assert_allclose(actual, expected, atol=1e-4)


def test_user_code_is_not_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(RegularizedTrainer):
        def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
            return super().prediction_step(*args, **kwargs)

    trainer = Own(model=zoo.make_model("bert"), args=TrainingArguments(tmp_path, report_to=[]))
    moved = [type("Parameter", (), {"device": torch.device("cuda")})()]
    monkeypatch.setattr(trainer.model, "parameters", lambda: iter(moved))
    assert reason_against_evaluation(trainer) == "Own has a prediction_step of its own"
    trainer.args.predict_with_generate = True
    assert reason_against_evaluation(trainer) == "of predict_with_generate"


@pytest.mark.parametrize("side", ["right", "left"])
def test_predict_sorts_by_length_and_answers_in_the_order_of_the_file(side: str) -> None:
    """Also from graphs. Padding on the left is never made longer, because it would shift positions."""
    from attendrop.lab.runs.inference import Rows, run_model
    from attendrop.lab.tasks import Task

    tokenizer = make_tokenizer()
    tokenizer.padding_side = side
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(2, 32, (50,), generator=g).tolist()
    rows = [{"input_ids": torch.randint(5, 60, (n,), generator=g).tolist(), "attention_mask": [1] * n} for n in lengths]
    model = zoo.make_model("bert").eval()
    model = model.cuda() if torch.cuda.is_available() else model
    expected = [
        model(**{name: torch.tensor([x], device=model.device) for name, x in row.items()}).logits[0].tolist()
        for row in rows
    ]
    RecordedGraphs.recorded = 0
    graphs = None if torch.cuda.is_available() else RecordedGraphs(torch.device("cpu"))
    task = Task("own", "classification", ("text",), "label")
    seen: list[int] = []
    split = Rows.of_split(Dataset.from_list(rows), tokenizer)
    actual = run_model(model, split, tokenizer, task, 4, 128, seen.append, graphs=graphs)
    assert sum(seen) == 50
    if graphs is not None:
        assert RecordedGraphs.recorded == (1 if side == "right" else 0)  # 12 full batches of about 2 to 31 tokens
    if side == "right":
        np.testing.assert_allclose(actual, expected, atol=2e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["bert", "token", "llama"])
def test_evaluations_of_a_captured_run_match_an_eager_one(kind: str, tmp_path: Path) -> None:
    losses = {}
    for capture in ("eager", "captured"):
        trainer = make_trainer(
            kind, tmp_path, capture, num_train_epochs=6, eval_strategy="epoch", save_strategy="no", learning_rate=1e-4,
            lr_scheduler_type="constant", logging_strategy="no",
        )  # fmt: skip
        for module in trainer.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        keys = []
        clear = step_capture.Graphs.clear

        def noted(self: Any, keys: list[Any] = keys, clear: Any = clear) -> None:
            keys.extend(key[1][0] for key in self._graphs if isinstance(key[1], tuple))
            clear(self)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(step_capture.Graphs, "clear", noted)
            trainer.train()
        assert ("evaluation" in keys) is (capture == "captured")
        losses[capture] = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(losses["eager"]) == 6
    assert losses["captured"] == pytest.approx(losses["eager"], rel=2e-3)


# ---- batches that are kept -------------------------------------------------------------------------------------------


class Counted(DataCollatorWithPadding):
    """Counts the batches that it makes."""

    is_deterministic = True

    def __init__(self, tokenizer: Any) -> None:
        super().__init__(tokenizer)
        self.calls: list[int] = []  # a number would be a setting, on which batches may depend

    def __call__(self, examples: list[dict[str, Any]]) -> Any:
        self.calls.append(len(examples))
        return super().__call__(examples)

    @property
    def made(self) -> int:
        return len(self.calls)


def texts(count: int = 9) -> Dataset:
    lengths = [3 + number % 5 for number in range(count)]
    rows = [{"input_ids": [5] * n, "attention_mask": [1] * n, "labels": n % 2, "length": n} for n in lengths]
    return Dataset.from_list(rows)


def trainer_of(data: Any, collator: Any, tmp_path: Path, capture: str = "auto", **options: Any) -> RegularizedTrainer:
    trainer = make_trainer("bert", tmp_path, capture, **options)
    trainer.data_collator, trainer.eval_dataset = collator, data
    return trainer


def test_kept_batches_are_those_of_the_trainer_and_are_made_once(graphs: type[RecordedGraphs], tmp_path: Path) -> None:
    data, collator = texts(), Counted(make_tokenizer())
    expected = list(trainer_of(data, collator, tmp_path, "eager").get_eval_dataloader())
    assert collator.made == len(expected) == 5
    trainer = trainer_of(data, collator, tmp_path)
    for _ in range(2):
        for actual, wanted in zip(trainer.get_eval_dataloader(), expected, strict=True):
            assert set(actual) == set(wanted)
            assert all(torch.equal(actual[name], wanted[name]) for name in wanted)
            actual.pop("labels")  # as a Trainer with label smoothing does
    list(trainer_of(data, collator, tmp_path).get_eval_dataloader())  # of a later run on the same data
    assert collator.made == 10
    assert trainer.data_collator is collator
    collator.tokenizer.padding_side = "left"
    list(trainer.get_eval_dataloader())
    assert collator.made == 15


@pytest.mark.parametrize("keeps", [True, False])
def test_scores_from_kept_batches_are_the_same(
    keeps: bool, graphs: type[RecordedGraphs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("attendrop.capture.evaluation.BREAK_EVEN_FORWARDS", 1)
    data, collator = texts(), Counted(make_tokenizer())
    trainer = trainer_of(data, collator, tmp_path)
    trainer.compute_metrics = lambda result: {"sum": float(result.predictions.sum())}
    with monkeypatch.context() as patch:
        patch.setattr(step_capture.StepCapture, "kept_batches", lambda self, dataset: None)
        expected = trainer.evaluate()
    if not keeps:
        data = data.with_transform(lambda rows: rows)
    made = collator.made
    for actual in (trainer.evaluate(data), trainer.evaluate(data)):
        assert [actual[name] for name in ("eval_loss", "eval_sum")] == [expected["eval_loss"], expected["eval_sum"]]
    assert collator.made - made == (5 if keeps else 10)


def test_batches_that_may_change_are_not_kept(graphs: type[RecordedGraphs], tmp_path: Path) -> None:
    data, collator = texts(), DataCollatorWithPadding(make_tokenizer())
    known = trainer_of(data, collator, tmp_path)
    assert known.capture.kept_batches(data) is known.capture.kept_batches(data) is not None
    assert known.capture.kept_batches(data.to_list()) is None
    assert trainer_of(data, collator, tmp_path, "eager").capture.kept_batches(data) is None
    assert trainer_of(data, collator, tmp_path, dataloader_num_workers=1).capture.kept_batches(data) is None
    assert trainer_of(data, padded, tmp_path).capture.kept_batches(data) is None
    masking = DataCollatorForLanguageModeling(make_tokenizer(), mlm=True)
    assert trainer_of(data, masking, tmp_path).capture.kept_batches(data) is None


def test_kept_batches_end_with_their_data_set(
    graphs: type[RecordedGraphs], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, collator = texts().remove_columns("length"), Counted(make_tokenizer())
    trainer = trainer_of(None, collator, tmp_path)
    monkeypatch.setattr(kept_batches, "_MOST_BYTES", 1)
    for _ in range(2):
        list(trainer.get_eval_dataloader(data))
    assert collator.made == 10  # there is no memory for them
    reference = weakref.ref(data)
    del data
    gc.collect()
    assert reference() is None


# ---- what is recorded ------------------------------------------------------------------------------------------------


def test_rare_lengths_join_the_next_longer_bucket() -> None:
    assert buckets_for({16: 3, 32: 10, 48: 30, 64: 5, 80: 4}, 12).lengths == [32, 80]
    buckets = buckets_for({16: 3, 32: 10, 48: 30, 112: 5}, 12)
    assert buckets.lengths == [32, 48]  # the 5 longest batches would not repay a graph, and are much longer
    assert [buckets.rounded(n) for n in (5, 17, 33, 48, 49)] == [32, 32, 48, 48, 64]
    assert [buckets.is_worth_capturing(n) for n in (5, 48, 49)] == [True, True, False]
    assert Buckets().is_worth_capturing(10**6)
    assert Buckets().rounded(17) == 32


def test_expected_numbers_of_batches_match_a_simulation() -> None:
    g = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, 120, (300,), generator=g).tolist()
    expected = expected_at_random(lengths, 8, 1000)
    counts = dict.fromkeys(expected, 0)
    for _ in range(1000):
        longest = max(lengths[i] for i in torch.randint(300, (8,), generator=g).tolist())
        counts[-(-longest // 16) * 16] += 1
    assert sum(expected.values()) == pytest.approx(1000)
    assert all(abs(expected[n] - counts[n]) < 60 for n in expected)
    assert sum(expected_grouped(lengths, 1000).values()) == pytest.approx(1000)
    assert expected_in_order([5, 20, 3, 4, 40], 2) == {32: 1, 16: 1, 48: 1}


def test_lengths_of_examples_are_read_where_that_is_cheap() -> None:
    assert lengths_of(examples_of("bert", [5, 7])) == [5, 7]
    assert lengths_of([{"input_ids": [[1, 2], [1, 2, 3]]}]) == [3]
    assert lengths_of(Dataset.from_dict({"length": [4, 6]})) == [4, 6]
    assert lengths_of(iter([])) is None
    assert lengths_of([{"pixel_values": 1}]) is None


@pytest.mark.parametrize(
    ("epochs", "methods", "buckets", "small"),
    [(2, [], [], False), (20, [], [32, 48], True), (10, [ADDrop()], [48], False)],
    ids=["short", "long", "two kinds of epochs"],
)
def test_run_records_only_shapes_worth_capturing(
    epochs: int, methods: list[Any], buckets: list[int], small: bool, tmp_path: Path
) -> None:
    """20 texts in batches of 4: 5 batches in an epoch, the longest of which has 33 to 48 tokens in 34 of 100 cases."""
    trainer = make_trainer("bert", tmp_path, num_train_epochs=epochs)
    trainer.regularizers = methods
    trainer.state.max_steps, trainer.state.num_train_epochs = 5 * epochs, epochs
    engine = trainer._make_engine(trainer.model, epochs) if methods else None
    plan = RecordingPlan.of(trainer, engine)
    assert (plan.buckets.lengths, plan.small_batches) == (buckets, small)
    if engine is not None:
        engine.close()
    uses = expected_at_random(LENGTHS, 4, 5 * epochs / (1 + bool(methods)))
    assert sum(uses[n] for n in uses if any(n <= b for b in buckets)) >= BREAK_EVEN_STEPS * len(buckets)


def test_evaluation_needs_no_datasets(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no dependency of the library."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert kept_batches.kept_batches([{"labels": 1}], lambda data: data, default_data_collator) is None
