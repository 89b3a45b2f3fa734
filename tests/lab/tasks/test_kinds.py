"""The kinds of tasks: one that is added in one file, the facts of the others, and former names."""

from __future__ import annotations

import ast
import csv
import dataclasses
import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendrop.errors import UserError
from attendrop.lab.evaluation.outputs import Outputs, read_outputs, write_outputs
from attendrop.lab.evaluation.outputs import as_text as outputs_as_text
from attendrop.lab.runs import fine_tune
from attendrop.lab.runs.evaluate import evaluate_file
from attendrop.lab.runs.predict import predict_file
from attendrop.lab.runs.settings import make_config
from attendrop.lab.tasks import KINDS, METRICS, Task, find_task, load_files, modality_of
from attendrop.lab.tasks.catalogue import RENAMED_KINDS
from attendrop.lab.tasks.modalities import file_kinds
from helpers.cli_tools import save_encoder, sentences, write_csv
from helpers.ordinal import RANK_ERROR, Ordinal

ROOT = Path(__file__).parents[3]
STARS = ("1", "2", "3", "4")


def starred(count: int, seed: int) -> list[tuple[str, str]]:
    """Sentences with one to four stars, which their labels and the first letters decide."""
    return [(text, STARS[2 * (label == "good") + (len(text) % 2)]) for text, label in sentences(count, seed=seed)]


@pytest.fixture
def _ordinal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(KINDS, "ordinal", Ordinal())  # the one line of a kind
    monkeypatch.setitem(METRICS, "rank_error", RANK_ERROR)  # that of a metric


def read(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("_ordinal")
def test_a_new_kind_runs_from_a_file_to_scores_predictions_and_evaluation(tmp_path: Path) -> None:
    rows = starred(60, seed=1)
    model = save_encoder(tmp_path / "model", [text for text, _ in rows])
    train, dev = write_csv(tmp_path / "train.csv", rows), write_csv(tmp_path / "dev.csv", starred(30, seed=2))
    result = fine_tune(
        model=str(model), train_file=str(train), validation_file=str(dev), test_file=str(dev), num_train_epochs=2,
        learning_rate=1e-3, use_cpu=True, kind="ordinal", method=["addrop"], class_weights=["balanced"],
        output_dir=str(tmp_path / "run"),
    )  # fmt: skip
    assert result.record.task_definition["kind"] == "ordinal"
    assert result.record.task_definition["labels"] == list(STARS)
    predicted = read(tmp_path / "run" / "predictions_test.csv")
    off = [abs(int(row["prediction"]) - int(row["label"])) for row in predicted]
    assert result.scores["validation"]["rank_error"] == pytest.approx(np.mean(off))
    assert result.scores["test"]["rank_error"] == pytest.approx(np.mean(off))
    assert set(predicted[0]) >= {"prediction", *(f"probability_{star}" for star in STARS)}
    evaluation = json.loads((tmp_path / "run" / "evaluation.json").read_text())["validation"]
    score = evaluation["scores"]["rank_error"]
    assert score["low"] <= score["value"] <= score["high"]
    gold = np.array([int(row["label"]) for row in predicted])
    assert evaluation["baseline"].startswith("the median, ")
    assert score["baseline"] == pytest.approx(min(np.abs(gold - star).mean() for star in (1, 2, 3, 4)))
    assert "macro_f1" in evaluation["scores"]
    errors = [float(row["loss"]) for row in read(tmp_path / "run" / "errors.csv")]
    assert errors == sorted(errors, reverse=True)
    assert max(errors) <= 3
    done = predict_file(tmp_path / "run", dev, tmp_path / "dev.jsonl")
    assert done.scores["rank_error"] == pytest.approx(np.mean(off))
    assert evaluate_file(tmp_path / "run", dev).scores["dev"]["rank_error"] == pytest.approx(np.mean(off))
    assert (tmp_path / "run" / "README.md").read_text().count("rank_error")


@pytest.mark.usefixtures("_ordinal")
def test_a_new_kind_is_listed_in_messages(tmp_path: Path) -> None:
    file = write_csv(tmp_path / "a.csv", starred(20, seed=1))
    with pytest.raises(UserError, match=r"--kind is 'rank'; .* mlm, ordinal, image_classification"):
        load_files(file, kind="rank")
    assert load_files(file, kind="ordinal").task.metrics == ("rank_error", "accuracy")


def test_every_kind_names_metrics_that_exist_and_a_model() -> None:
    for name, kind in KINDS.items():
        assert kind.name == name
        assert kind.default_metrics(("O", "B-X"))[0] in METRICS
        assert {*kind.metrics, *kind.further_metrics} <= METRICS.keys()
        assert kind.modalities
        assert kind.model_class.startswith("AutoModelFor")
        assert kind.__doc__
        assert not (kind.is_per_word and kind.has_one_class)
        assert (kind.members is None) == kind.is_generated
    assert set(file_kinds()) == {*KINDS, "image_classification", "audio_classification"}


def test_unknown_kind_raises_one_line_error() -> None:
    with pytest.raises(UserError, match="kind is 'ranking'; it must be one of classification, regression, "):
        modality_of(task := Task("t", "ranking", ("text",), "label")).model_class(task)


def test_no_other_module_compares_the_name_of_a_kind() -> None:
    lab = ROOT / "src" / "attendrop" / "lab"
    comparisons = []
    for path in lab.rglob("*.py"):
        if "kinds" in path.relative_to(lab).parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and "kind" in ast.unparse(node.left):
                parts = [part for side in node.comparators for part in ast.walk(side)]
                named = {part.value for part in parts if isinstance(part, ast.Constant)}
                if named & {*KINDS, *RENAMED_KINDS}:
                    comparisons.append(f"{path.relative_to(lab)}:{node.lineno}: {ast.unparse(node)}")
    assert not comparisons, "\n".join(comparisons)


@pytest.mark.parametrize(("old", "new"), [("tokens", "token_classification"), ("choice", "multiple_choice")])
def test_former_names_of_kinds_are_accepted(old: str, new: str, tmp_path: Path) -> None:
    message = f"the kind {old} is deprecated and will be removed; use {new} instead"
    with pytest.warns(FutureWarning, match=message):
        config = make_config({"model": "m", "train_file": "a.csv", "kind": old})
    assert config.kind == new
    with pytest.warns(FutureWarning, match=message):
        config = make_config({"model": "m", "train_file": "a.csv", "task": old})
    assert (config.kind, config.task) == (new, None)
    with pytest.warns(FutureWarning, match=message):
        task = Task("t", old, ("a", "b", "c"), "label", ("0", "1"))
    assert task.kind == new
    line = '{"tokens": ["a"], "tags": ["O"]}\n{"tokens": ["b"], "tags": ["B-X"]}\n'
    quiz = "question,option_a,option_b,label\nx,y,z,0\nu,v,w,1\n"
    file = tmp_path / ("a.jsonl" if old == "tokens" else "a.csv")
    file.write_text(line if old == "tokens" else quiz)
    with pytest.warns(FutureWarning, match=message):
        assert load_files(file, kind=old).task.kind == new
    with warnings.catch_warnings():  # what was written by an earlier version is read silently
        warnings.simplefilter("error")
        fields: dict[str, Any] = dataclasses.asdict(find_task("conll2003" if old == "tokens" else "swag"))
        assert Task.from_dict({**fields, "kind": old}).kind == new
        assert modality_of(Task.from_dict({**fields, "kind": old})).pipeline_tag(task)
        write_outputs(tmp_path, "id", str(outputs_as_text({"validation": Outputs(old, np.zeros(2), np.zeros(2, int))})))
        assert read_outputs(tmp_path, "id")["validation"].kind == new
