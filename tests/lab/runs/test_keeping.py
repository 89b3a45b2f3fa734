"""Which epoch a run keeps: the last one, unless the best one is significantly better on the validation examples."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scipy import stats
from transformers import TrainerState

from attendrop.lab.runs import fine_tune
from attendrop.lab.runs.best import kept_epoch, still_improving
from attendrop.lab.runs.keeping import Keeping, p_value
from attendrop.lab.runs.trainer import RunTrainer
from helpers.cli_tools import save_encoder, sentences, write_csv

EXAMPLES = 200


def trained(*right: int, numbers: bool = False, planned: int | None = None, loss: float = 0.5) -> Any:
    """A Trainer after epochs in which so many of the examples were right: the first ones of a fixed order."""

    def quality(prediction: Any) -> Any:
        is_correct = np.arange(EXAMPLES) < prediction
        return is_correct.astype(float) if numbers else is_correct

    trainer = object.__new__(RunTrainer)
    trainer.args = SimpleNamespace(
        metric_for_best_model="accuracy", greater_is_better=True, save_strategy="epoch", load_best_model_at_end=True
    )
    trainer._keeping = Keeping(quality)
    trainer.state = TrainerState(max_steps=planned or len(right), best_model_checkpoint="checkpoint")
    for epoch, count in enumerate(right, 1):
        state = trainer.state
        state.global_step, state.epoch = epoch, float(epoch)
        metrics = {"eval_accuracy": count / EXAMPLES, "eval_loss": loss}
        state.log_history.append({**metrics, "epoch": float(epoch), "step": epoch})
        trainer._keeping.see(count)
        trainer._keeping.evaluated()
        trainer._determine_best_metric(metrics, None)
        # The state of a resumed run is read from a checkpoint.
        trainer.state = TrainerState(**json.loads(json.dumps(vars(state))))
    trainer.decision = trainer._keeping.decide(trainer.state, trainer.args)
    return trainer


@pytest.mark.parametrize("numbers", [False, True])
def test_last_epoch_is_kept_unless_the_best_is_significantly_better(numbers: bool) -> None:
    kept = kept_epoch(trained(100, 124, 120, numbers=numbers), None)
    assert kept.epoch == 3
    (sentence,) = kept.sentences
    assert sentence.startswith(
        "epoch 3 was kept: it is the last, and its validation accuracy, 0.6000, is not significantly worse than the "
        "best, 0.6200 of epoch 2 (p = "
    )
    kept = kept_epoch(trained(100, 160, 120, numbers=numbers), None)
    assert kept.epoch == 2
    assert kept.sentences == [
        "epoch 2 of 3 was kept: its validation accuracy, 0.8000, is significantly better than 0.6000 of the last one "
        "(p < 0.001, corrected for 2 other epochs)"
    ]
    assert kept_epoch(trained(100, 120, numbers=numbers), None).sentences == [
        "epoch 2 was kept: it is the last, and has the best validation accuracy, 0.6000"
    ]


def test_number_of_epochs_corrects_the_test() -> None:
    # 7 of 7 examples that differ: p = 2 / 2^7 = 0.0156
    assert kept_epoch(trained(107, 100), None).epoch == 1
    assert kept_epoch(trained(50, 60, 107, 70, 100), None).epoch == 5


def test_a_run_that_stopped_early_keeps_the_best_epoch() -> None:
    kept = kept_epoch(trained(100, 102, 101, planned=9), patience=1)
    assert kept.epoch == 2
    assert kept.sentences[0] == "epoch 2 of 3 was kept: it has the best validation accuracy, 0.5100"


def test_a_last_epoch_that_diverged_is_not_kept() -> None:
    kept = kept_epoch(trained(100, 98, loss=float("nan")), None)
    assert kept.epoch == 1
    assert kept.sentences == ["epoch 1 of 2 was kept: the last one has diverged"]


def test_p_values_are_those_of_the_literature() -> None:
    one, other = np.array([True] * 9 + [False] * 3), np.array([True] * 1 + [False] * 10 + [True])
    assert p_value(one, other) == pytest.approx(stats.binomtest(8, 9).pvalue)
    assert p_value(other, one) == 1
    a, b = np.array([1.0, 2, 3, 5]), np.array([0.5, 2.5, 2, 3])
    assert p_value(a, b) == pytest.approx(stats.ttest_rel(a, b).pvalue)
    assert p_value(b, a) == p_value(a[:1], b[:1]) == p_value(a, b[:2]) == p_value(a, a) == 1


def test_a_run_that_ends_too_early_says_so() -> None:
    def of(*losses: float) -> str | None:
        history = [{"step": 10 * place, "loss": loss} for place, loss in enumerate(losses, 1)]
        return still_improving(SimpleNamespace(log_history=history, max_steps=10 * len(losses), epoch=20.0))

    assert of(4.34, 4.3, 4.2, 4.1, 4.0, 3.9, 3.8, 3.7, 3.5, 3.4) == (
        "still improving: the training loss fell by 8% in the last fifth of the steps, to 3.45 from 4.34 at the start; "
        "train longer with --num-train-epochs 40"
    )
    assert of(4.3, 3, 2, 1.5, 1, 0.8, 0.6, 0.5, 0.4, 0.3) is None  # low
    assert of(0.7, 0.7, 0.69, 0.68, 0.69, 0.69, 0.68, 0.69, 0.67, 0.68) is None  # does not fall
    assert of(4, 3) is None
    assert of() is None


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("keeping")
    rows = sentences(40, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    write_csv(folder / "train.csv", rows)
    write_csv(folder / "dev.csv", sentences(24, seed=2))
    return folder


@pytest.mark.parametrize(
    ("given", "rule"),
    [
        ({}, "auto"),
        ({"keep_epoch": "last"}, "last"),
        ({"keep_epoch": "best"}, "best"),
        ({"metric_for_best_model": "loss"}, "best"),
        ({"load_best_model_at_end": True}, "best"),
        ({"load_best_model_at_end": False}, "last"),
        ({"eval_strategy": "no"}, "last"),
    ],
)
def test_settings_decide_which_epoch_is_kept(place: Path, tmp_path: Path, given: dict[str, Any], rule: str) -> None:
    result = fine_tune(
        model=str(place / "model"), train_file=str(place / "train.csv"), validation_file=str(place / "dev.csv"),
        num_train_epochs=3, learning_rate=1e-3, use_cpu=True, seed=5, output_dir=str(tmp_path / "out"), **given,
    )  # fmt: skip
    config, kept = result.record.settings, result.record.kept
    assert (config["keep_epoch"], config.get("load_best_model_at_end", False)) == (rule, rule != "last")
    scores = {entry["epoch"]: entry for entry in reversed(result.record.history) if "eval_loss" in entry}
    if rule == "last":
        assert (kept.epoch, kept.sentences) == (3.0, ["epoch 3 was kept: it is the last"])
    if rule == "best":
        name = f"eval_{given.get('metric_for_best_model', 'accuracy')}"
        values = [entry[name] for entry in scores.values()]
        assert scores[kept.epoch][name] == (min if name == "eval_loss" else max)(values)
    if scores:
        assert result.scores["validation"]["accuracy"] == scores[kept.epoch]["eval_accuracy"]
