"""The threshold of a multi-label task: chosen on validation data, scored on held-out parts, and used from then on."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.metrics import f1_score

from attendrop.lab.evaluation.thresholds import choose_threshold
from attendrop.lab.runs import fine_tune
from attendrop.lab.runs.evaluate import evaluate_file
from attendrop.lab.runs.predict import predict_file
from attendrop.lab.tasks import Task, kind_of
from helpers.cli_tools import save_encoder, sentences, write_csv

TASK = Task("mine", "multilabel", ("text",), "labels", tuple("abcdefgh"), ("micro_f1", "macro_f1", "exact_match"))


def answers_of(examples: int, shift: float, noise: float = 0.5, task: Task = TASK) -> Any:
    """Answers whose logits are right up to noise, and too low by a shift."""
    random = np.random.default_rng(0)
    gold = (random.random((examples, len(task.labels))) < 0.2).astype(int)
    logits = (2 * gold - 1) * 2 - shift + noise * random.standard_normal(gold.shape)
    return kind_of(task).answers(task, logits, gold)


def test_threshold_is_lower_where_the_logits_are_too_low() -> None:
    answers = answers_of(60, 2.5)
    threshold = choose_threshold(answers)
    assert threshold.value < 0.45
    best = f1_score(answers.gold, 1 / (1 + np.exp(-answers.values)) > threshold.value, average="micro")
    for value in np.arange(1, 20) / 20:
        predicted = 1 / (1 + np.exp(-answers.values)) > value
        assert f1_score(answers.gold, predicted, average="micro", zero_division=0) <= best + 1e-12
    # each example has a threshold that was chosen without it
    held_out = threshold.answers.threshold
    changed = answers_of(60, 2.5)
    changed.values[0] = 50.0
    assert choose_threshold(changed).answers.threshold[0] == held_out[0]
    predicted = 1 / (1 + np.exp(-answers.values)) > held_out[:, None]
    assert (threshold.answers.predicted == predicted).all()
    assert f"micro F1 {f1_score(answers.gold, predicted, average='micro'):.4f}" in threshold.note


def test_usual_threshold_stays_where_it_is_best_or_little_is_known() -> None:
    fitting = choose_threshold(answers_of(200, 0.0, noise=0.1))
    assert (fitting.value, fitting.answers.threshold) == (0.5, 0.5)
    assert "no other threshold was better" in fitting.note
    few = choose_threshold(answers_of(10, 2.5))
    assert few.value == 0.5
    assert "10 examples choose no other" in few.note
    one = Task("one", "classification", ("text",), "label", ("a", "b"))
    assert choose_threshold(kind_of(one).answers(one, np.zeros((30, 2)), np.zeros(30, int))).note == ""


def test_few_examples_get_as_many_labels_as_they_have() -> None:
    twenty = dataclasses.replace(TASK, labels=tuple("abcdefghijklmnopqrst"))
    answers = answers_of(15, 2.5, task=twenty)
    few = choose_threshold(answers)
    assert (1 / (1 + np.exp(-answers.values)) > few.value).sum() == answers.gold.sum()
    assert "gives the 15 validation examples as many labels as they have" in few.note
    changed = answers_of(15, 2.5, task=twenty)
    changed.values[0], changed.gold[0] = 50.0, 1  # each example has a threshold that was chosen without it
    assert choose_threshold(changed).answers.threshold[0] == few.answers.threshold[0]
    answers.gold[:] = 0
    assert choose_threshold(answers).answers.predicted.sum() <= 5
    answers.gold[:] = 1
    assert choose_threshold(answers).value < 1e-2


def test_a_run_uses_the_threshold_that_it_chose(tmp_path: Path) -> None:
    rows = [(text, label if number % 3 else "") for number, (text, label) in enumerate(sentences(90, seed=1))]
    save_encoder(tmp_path / "model", [text for text, _ in rows])
    write_csv(tmp_path / "train.csv", rows[:60])
    write_csv(tmp_path / "dev.csv", rows[60:])
    write_csv(tmp_path / "test.csv", rows[60:])
    result = fine_tune(
        model=str(tmp_path / "model"), train_file=str(tmp_path / "train.csv"), kind="multilabel", label_separator=",",
        validation_file=str(tmp_path / "dev.csv"), test_file=str(tmp_path / "test.csv"), num_train_epochs=3,
        learning_rate=3e-4, use_cpu=True, output_dir=str(tmp_path / "out"),
    )  # fmt: skip
    record = json.loads((tmp_path / "out/record.json").read_text(encoding="utf-8"))
    threshold = record["threshold"]
    assert record["threshold_note"][1:].split(" (")[0] in (tmp_path / "out/README.md").read_text(encoding="utf-8")
    assert threshold != 0.5
    predict_file(tmp_path / "out", tmp_path / "test.csv", tmp_path / "new.csv")
    ours = (tmp_path / "out/predictions_test.csv").read_text(encoding="utf-8")
    assert ours == (tmp_path / "new.csv").read_text(encoding="utf-8")
    temperature = record["temperature"]
    cut = 1 / (1 + np.exp(-np.log(threshold / (1 - threshold)) / temperature))
    with (tmp_path / "new.csv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file):
            above = [name for name in ("bad", "good") if float(row[f"probability_{name}"]) > cut]
            close = any(abs(float(row[f"probability_{name}"]) - cut) < 2e-4 for name in ("bad", "good"))
            assert close or row["prediction"] == ",".join(above)
    evaluated = evaluate_file(tmp_path / "out", tmp_path / "test.csv", tmp_path / "evaluated")
    assert evaluated.scores["test"]["micro_f1"] == pytest.approx(result.scores["test"]["micro_f1"], abs=1e-9)
    assert result.scores["validation"]["micro_f1"] == record["evaluation"]["validation"]["scores"]["micro_f1"]["value"]
