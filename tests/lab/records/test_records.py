"""Records: a round trip through JSON, files of the previous schema, and what is refused."""

from __future__ import annotations

import json
import math
import shutil
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from attendrop.errors import UserError
from attendrop.lab.records import (
    SCHEMA,
    Cost,
    FolderRecord,
    IntervalScore,
    Kept,
    RunError,
    SplitEvaluation,
    StudyRecord,
    TuningResult,
    flat_scores,
)
from attendrop.lab.report.card import write_card
from attendrop.lab.runs.folder import read_record
from attendrop.lab.runs.predict import read_finished
from attendrop.lab.studies.analysis import analyse
from attendrop.lab.studies.driver import run_study
from attendrop.lab.studies.executors import make_executor
from attendrop.lab.studies.records import read_records
from helpers.study_workers import LIGHT, light_specs

OLD = Path(__file__).parent / "schema_1"  # written by the last version with schema 1


def folder_record(**more: Any) -> FolderRecord:
    return FolderRecord(task="t", seed=3, settings={"model": "m"}, task_definition={"name": "t"}, max_length=8, **more)


def test_records_are_the_same_after_a_round_trip_through_json() -> None:
    judgement = SplitEvaluation(9, {"accuracy": IntervalScore(0.5, 0.4, 0.6)}, confusion=[[1, 2], [3, 4]])
    scores = {"validation": {"accuracy": 0.1 + 0.2}, "glue/mrpc": {"f1": 1.0}}
    kept, cost = Kept(2.0, 8, sentences=["a"], chosen={"wise_ft": 0.5}), Cost(total_seconds=1.5, steps=8)
    one = folder_record(scores=scores, kept=kept, cost=cost, evaluation={"validation": judgement})
    content = json.loads(json.dumps(one.to_json()))
    assert content["schema"] == SCHEMA
    assert FolderRecord.from_json(content) == one
    assert flat_scores(one.scores) == {"validation/accuracy": 0.1 + 0.2, "glue/mrpc/f1": 1.0}
    two = StudyRecord(
        id="a", status="failed", method="plain", task="t", seed=0, settings={}, error=RunError("ValueError", "no")
    )
    assert StudyRecord.from_json(json.loads(json.dumps(two.to_json()))) == two


def test_scores_that_are_not_finite_survive() -> None:
    record = folder_record(scores={"validation": {"loss": math.nan, "perplexity": math.inf}})
    read = FolderRecord.from_json(json.loads(json.dumps(record.to_json())))
    assert math.isnan(read.scores["validation"]["loss"])
    assert read.scores["validation"]["perplexity"] == math.inf


def test_the_record_of_an_old_run_folder_is_converted(tmp_path: Path) -> None:
    shutil.copy(OLD / "record.json", tmp_path)
    old, record = json.loads((OLD / "record.json").read_text(encoding="utf-8")), read_record(tmp_path)
    assert flat_scores(record.scores) == old["metrics"]
    assert record.settings == old["config"]
    assert record.examples == old["rows"] == {"train": 24, "validation": 12}
    assert (record.task, record.metric, record.task_definition) == ("train.csv", "accuracy", old["task"])
    assert (record.cost.total_seconds, record.cost.steps) == (old["seconds"], old["steps"])
    assert record.kept.sentences == old["kept"]["sentences"]
    judged = record.evaluation["validation"]
    assert judged.scores["accuracy"].low == old["evaluation"]["validation"]["scores"]["accuracy"]["low"]
    assert judged.calibration is not None
    assert judged.calibration.temperature == record.temperature == old["temperature"]
    assert FolderRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    assert read_finished(tmp_path).max_length == old["max_length"]
    text = write_card(tmp_path, record).read_text(encoding="utf-8")
    assert f"- {old['steps']} steps in {old['seconds']:.0f} s on 1 × cpu" in text


def test_an_old_study_is_read_and_analysed() -> None:
    records = read_records(OLD / "compare")
    assert {record.method for record in records.values()} == {"plain", "rdrop"}
    for name, record in records.items():
        old = json.loads((OLD / "compare" / "runs" / f"{name}.json").read_text(encoding="utf-8"))
        assert record.scores == old["scores"]
        assert record.cost.seconds == old["cost"]["seconds"]
        assert record.predictions["validation"].gold == old["predictions"]["validation"]["gold"]
        assert record.kept.epoch == old["kept"]["epoch"]
        assert record.model is not None
        assert record.model.fingerprint == old["model"]["fingerprint"]
    analysis = analyse(OLD / "compare")
    assert [method.name for method in analysis.methods] == ["plain", "rdrop"]
    assert analysis.metric == "accuracy"


def test_an_old_study_continues(tmp_path: Path) -> None:
    """Finished runs are not repeated, failed ones keep their error, and new records stand beside the old ones."""
    shutil.copytree(OLD / "light", tmp_path / "study")
    specs = [*light_specs(3), *light_specs(1, fault="diverges")]
    before = {path.name: path.read_bytes() for path in (tmp_path / "study" / "runs").iterdir()}
    with closing(make_executor(workers=0, device="cpu", make_worker=LIGHT)) as executor:
        records = run_study(tmp_path / "study", {"kind": "compare", "seeds": 3}, specs, executor)
    assert set(records) == {spec.id for spec in specs}
    assert records[specs[3].id].error == RunError(
        "DivergedError", "the loss is not finite in step 3", records[specs[3].id].error.traceback
    )
    files = {path.name: path.read_bytes() for path in (tmp_path / "study" / "runs").iterdir()}
    assert {name: files[name] for name in before} == before
    assert len(files) == len(before) + 1


REFUSED: dict[str, tuple[Any, str]] = {
    "no number": ({"schema": "3"}, "its schema is '3', and this version of attendrop reads schemas up to 2"),
    "list": ([1], "it holds a list"),
    "nothing": ({}, "'config' is missing"),
    "no task": ({"config": {}}, "'task' is missing"),
    "wrong length": (
        {"config": {}, "task": {}, "seed": 1, "max_length": "long"}, "'max_length' is 'long'; it must be a whole number"
    ),
    "wrong metrics": ({"config": {}, "task": {}, "seed": 1, "max_length": 8, "metrics": [1]}, "AttributeError"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_a_wrong_record_is_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    content, words = REFUSED[case]
    (tmp_path / "record.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError, match="record.json' is damaged .*copy it again, or train again.$") as caught:
        read_record(tmp_path)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_a_later_version_is_not_called_damaged(tmp_path: Path) -> None:
    sentence = (
        "its schema is 3, and this version of attendrop reads schemas up to 2; install the version that wrote it."
    )
    for name in ("record.json", "tuning.json"):
        (tmp_path / name).write_text('{"schema": 3}', encoding="utf-8")
    with pytest.raises(UserError, match=rf"record.json' cannot be read: {sentence}$"):
        read_record(tmp_path)
    with pytest.raises(UserError, match=rf"tuning.json' cannot be read: {sentence}$"):
        TuningResult.read(tmp_path / "tuning.json", "rerun the command of the study")


def test_a_later_study_is_refused(tmp_path: Path) -> None:
    shutil.copytree(OLD / "light", tmp_path / "study")
    path = tmp_path / "study" / "study.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": 3}))
    with pytest.raises(UserError, match="its schema is 3, and this version of attendrop reads schemas up to 2"):
        analyse(tmp_path / "study")


TUNING: dict[str, tuple[Any, str]] = {
    "list": ([1], "it holds a list"),
    "trial": ({"schema": 2, "trials": [{"method": "plain", "state": "failed"}]}, "entry 0 of 'trials' has no 'number'"),
    "score": (
        {"schema": 2, "chosen": {"rdrop": {"trial": 3, "score": "high"}}},
        "'score' of 'rdrop' of 'chosen' is 'high'; it must be a number",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", TUNING)
def test_a_wrong_result_of_a_search_is_refused_in_one_sentence(case: str, tmp_path: Path) -> None:
    content, words = TUNING[case]
    (tmp_path / "tuning.json").write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(UserError) as caught:
        TuningResult.read(tmp_path / "tuning.json", "rerun the command of the study")
    assert str(caught.value).endswith(f"tuning.json' is damaged ({words}); rerun the command of the study.")


def test_a_result_of_a_search_without_a_schema_is_read() -> None:
    content = {"curves": [{"method": "plain", "k": [1], "expected_best": [0.5], "low": [0.4], "high": [0.6]}],
               "dev": {"plain": {"chosen": {"trial": 1, "values": {"7": 0.5}, "mean": 0.5, "errors": []}}}}  # fmt: skip
    result = TuningResult.from_json(content)
    assert result.curves[0].expected_best == [0.5]
    assert result.dev["plain"]["chosen"].values == {"7": 0.5}
    assert TuningResult.from_json(json.loads(json.dumps(result.to_json()))) == result
