"""Predictions that are marked as unsure, and prediction sets, from the validation outputs of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.runs.decisions import OUTPUTS_FILE, Required, choose_rule
from attendrop.lab.runs.predict import predict_file, read_finished, text_columns
from attendrop.lab.statistics.calibration import softmax
from helpers.cli_tools import sentences, write_csv
from helpers.small_runs import save_sources, train_small

pytestmark = pytest.mark.xdist_group("small runs")


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = save_sources(tmp_path_factory.mktemp("decisions"))
    write_csv(folder / "single.csv", sentences(400, seed=6))
    return folder


@pytest.fixture(scope="module")
def trained(sources: Path) -> Path:
    return train_small(sources, "single", max_steps=60, max_length=32, validation_share=0.5)


def saved(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder / OUTPUTS_FILE) as content:
        return content["logits"], content["gold"]


def test_validation_outputs_are_those_of_the_model(trained: Path) -> None:
    logits, gold = saved(trained)
    record = json.loads((trained / "record.json").read_text("utf-8"))
    assert len(logits) == record["examples"]["validation"]
    assert (logits.argmax(-1) == gold).mean() == pytest.approx(record["scores"]["validation"]["accuracy"])


def test_predictions_below_the_confidence_are_unsure(trained: Path, tmp_path: Path) -> None:
    file = write_csv(tmp_path / "new.csv", sentences(60, seed=7))
    done = predict_file(trained, file, tmp_path / "out.jsonl", required=Required(min_confidence=0.9))
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    largest = [max(row["probability_bad"], row["probability_good"]) for row in rows]
    for row, confidence in zip(rows, largest, strict=True):
        if abs(confidence - 0.9) > 1e-4:  # the column is rounded
            assert row["decision"] == (row["prediction"] if confidence > 0.9 else "unsure")
    unsure = sum(row["decision"] == "unsure" for row in rows)
    assert f"{unsure} of 60 are unsure ({unsure / 60:.1%})" in done.decisions
    logits, _ = saved(trained)
    share = (softmax(logits, read_finished(trained).temperature).max(-1) < 0.9).mean()
    assert f"expect {share:.1%} to be unsure" in done.decisions[0]


def test_target_accuracy_chooses_on_the_validation_data(trained: Path) -> None:
    finished = read_finished(trained, required=Required(target_accuracy=0.8))
    assert finished.rule is not None
    assert finished.rule.least is not None
    logits, gold = saved(trained)
    probabilities = softmax(logits, finished.temperature)
    is_sure = probabilities.max(-1) >= finished.rule.least
    assert (probabilities.argmax(-1) == gold)[is_sure].mean() > 0.8
    assert "at least 0.8" in finished.rule.sentences[0]


def test_sets_hold_the_prediction_and_cover_the_validation_data(trained: Path, tmp_path: Path) -> None:
    rule = choose_rule(trained, read_finished(trained).task, 1.0, Required(coverage=0.95))
    logits, gold = saved(trained)
    task = read_finished(trained).task
    sets = rule.columns(task, softmax(logits))["prediction_set"]
    assert np.mean([task.labels[right] in of for right, of in zip(gold, sets, strict=True)]) >= 0.95
    columns, _ = text_columns(trained, ["a fine film", "it is"], required=Required(coverage=0.95))
    assert [of[0] for of in columns["prediction_set"]] == columns["prediction"]


def test_command_line_says_what_is_unsure(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["predict", str(trained), "it is", "--min-confidence", "0.9999999", "--coverage", "0.9"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("unsure: ")
    assert "{" in shown.out
    assert "1 of 1 are unsure (100.0%)" in " ".join(shown.err.split())


@pytest.mark.parametrize(
    ("required", "sentence"),
    [
        (Required(min_confidence=1.0), "min_confidence is 1.0; it must be a number above 0 and below 1"),
        (Required(min_confidence=0.5, target_accuracy=0.9), "both choose what is unsure; give one of them"),
        (
            Required(target_accuracy=0.999999),
            "target_accuracy is 0.999999, and no probability promises it on 200 validation",
        ),
        (
            Required(coverage=0.999),
            "coverage is 0.999, which needs at least 999 validation examples, and the run has 200",
        ),
    ],
)
def test_unattainable_requirements_are_refused(required: Required, sentence: str, trained: Path) -> None:
    with pytest.raises(UserError) as caught:
        read_finished(trained, required=required)
    assert sentence in str(caught.value)


def test_other_kinds_are_refused(sources: Path) -> None:
    folder = train_small(sources, "regression")
    assert not (folder / OUTPUTS_FILE).exists()
    with pytest.raises(UserError, match="it is for classes of which an example has one"):
        read_finished(folder, required=Required(coverage=0.9))


def test_outputs_that_are_missing_or_changed_are_refused(trained: Path, tmp_path: Path) -> None:
    import shutil

    folder = shutil.copytree(trained, tmp_path / "copy")
    content = bytearray((folder / OUTPUTS_FILE).read_bytes())
    content[len(content) // 2] ^= 1
    (folder / OUTPUTS_FILE).write_bytes(bytes(content))
    with pytest.raises(UserError, match="is not as it was written"):
        read_finished(folder, required=Required(coverage=0.9))
    (folder / "attendrop_manifest.json").unlink()
    (folder / OUTPUTS_FILE).write_bytes(b"no archive")
    with pytest.raises(UserError, match="is damaged"):
        read_finished(folder, required=Required(coverage=0.9))
    (folder / OUTPUTS_FILE).unlink()
    with pytest.raises(UserError, match="use --min-confidence, or train again"):
        read_finished(folder, required=Required(coverage=0.9))
    finished: Any = read_finished(folder, required=Required(min_confidence=0.7))
    assert finished.rule.least == 0.7


def test_a_service_marks_what_is_unsure(trained: Path) -> None:
    pytest.importorskip("fastapi")
    from attendrop.lab.serving.schema import answers_of

    finished = read_finished(trained, required=Required(min_confidence=0.999999, coverage=0.9))
    (answer,) = answers_of(finished.task, finished.load().columns(["it is"], 8))
    assert answer["decision"] == "unsure"
    assert answer["prediction"] in answer["prediction_set"]
