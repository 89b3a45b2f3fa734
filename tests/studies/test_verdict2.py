"""The second edition of the verdict from its plan to its page: a tiny model and two tasks in every stage."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from attendrop.methods import parse_method
from helpers.cli_tools import save_encoder, sentences
from studies.verdict.lines import read
from studies.verdict2 import choose, judge, page, plan, run, worker

pytestmark = pytest.mark.xdist_group("study_worker")
TINY = {
    "settings": {**plan.PLAN["settings"], "max_length": 16, "tf32": False, "per_device_train_batch_size": 9},
    "grid": {"learning_rate": [1e-3, 3e-3], "num_train_epochs": [1]},
    "points": 1,
    "tasks": {"development": ["snli", "subj"], "confirmation": ["cr", "mpqa"], "apart": []},
    "stages": {
        "grid": {"tasks": "development", "sizes": [30], "first_seed": 1000, "seeds": 1},
        "fields": {"tasks": "development", "sizes": [30], "first_seed": 1000, "seeds": 1},
        "confirm": {"tasks": "confirmation", "sizes": [30], "first_seed": 0, "seeds": 5},
    },
    "models": {"minilm": {}},
    "contenders": {
        "plain": {},
        "frozen": {"method": "frozen", "grid": False},
        "Label smoothing": {"method": "label_smoothing", "epsilon": "0.02..0.3"},
        "Label smoothing, like it": {"method": "label_smoothing", "like": "Label smoothing"},
    },
}


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny plan with its own hash, a tiny model, and the files of four tasks."""
    content = {**copy.deepcopy(plan.PLAN), **TINY}
    for module in (plan, choose, judge, page, run):
        if hasattr(module, "PLAN"):
            monkeypatch.setattr(module, "PLAN", content)
    for module in (plan, choose):
        monkeypatch.setattr(module, "FROZEN", tmp_path / "frozen.yaml")
    plan.current_hash.cache_clear()
    texts: list[str] = []
    for number, task in enumerate([*content["tasks"]["development"], *content["tasks"]["confirmation"]]):
        folder = tmp_path / "arena" / task
        folder.mkdir(parents=True)
        for part, count in (("train", 60), ("test", 40)):
            rows = sentences(count, seed=10 * number + count)
            columns: dict[str, Any] = {"text": [text for text, _ in rows], "label": [label for _, label in rows]}
            if task == "snli":
                columns["text_pair"] = columns["text"][::-1]
            texts += columns["text"]
            pq.write_table(pa.table(columns), folder / f"{part}.parquet")
    save_encoder(tmp_path / "model", texts)
    yield tmp_path
    plan.current_hash.cache_clear()


def start(module: object, monkeypatch: pytest.MonkeyPatch, *words: object) -> None:
    monkeypatch.setattr("sys.argv", ["name", *map(str, words)])
    module.main()  # type: ignore[attr-defined]


def test_the_study_runs_from_the_plan_to_the_page(
    data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--data", data, "--model", data / "model", "--workers", "0", "--output", data / "out"]
    with pytest.raises(SystemExit, match=r"frozen.yaml does not exist; run the stage 'grid'"):
        start(run, monkeypatch, "confirm", *places)
    start(run, monkeypatch, "grid", *places, "--minutes", "0")
    with pytest.raises(SystemExit, match=r"no setting of 'plain' has all its runs"):
        start(choose, monkeypatch, "grid", "--output", data / "out")
    start(run, monkeypatch, "grid", *places)
    grid = read(data / "out/grid-minilm.csv")
    assert len(grid) == 2 * (2 + 1 + 2)  # plain and label smoothing at two rates, frozen once; two tasks
    assert {row["status"] for row in grid} == {"finished"}, grid
    assert {row["plan"] for row in grid} == {plan.current_hash()}
    start(choose, monkeypatch, "grid", "--output", data / "out")
    with pytest.raises(SystemExit, match="the fields are not chosen yet"):
        start(run, monkeypatch, "confirm", *places)
    start(run, monkeypatch, "fields", *places)
    assert len(read(data / "out/fields-minilm.csv")) == 2
    start(choose, monkeypatch, "fields", "--output", data / "out")
    frozen = plan.frozen()["settings"]
    assert frozen["Label smoothing"]["methods"] == frozen["Label smoothing, like it"]["methods"]
    assert frozen["Label smoothing, like it"]["development_score"] is None

    names = {setting.name for setting in plan.confirmed()} - {"frozen"}  # which is left open
    places += [word for name in names for word in ("--method", name)]
    start(run, monkeypatch, "confirm", *places)
    rows = read(data / "out/confirm-minilm.csv")
    assert len(rows) == 2 * 5 * len(names)
    before = (data / "out/confirm-minilm.csv").read_bytes()
    start(run, monkeypatch, "confirm", *places)  # nothing is left
    assert (data / "out/confirm-minilm.csv").read_bytes() == before
    for row in rows:
        assert (row["status"], row["size"], row["metric"]) == ("finished", "n=30", "accuracy")
        assert 0.01 <= float(row["temperature"]) <= 100
        assert 0 < float(row["tenth_loss"]) < 5
    capsys.readouterr()
    start(page, monkeypatch, "--output", data / "out")
    text = capsys.readouterr().out
    assert f"Plan `{plan.current_hash()}`" in text
    assert f"| confirm, minilm | {len(rows)} | 0 |" in text
    assert "## minilm, 30 training examples" in text
    assert "| Label smoothing, like it |" in text
    assert "| frozen | `frozen` | not measured |" in text
    assert "**not final**" in text
    assert "| SetFit | six of the confirmation tasks" in text
    # Equal methods have equal runs, and so the same figures.
    lines = judge.Lines(data / "out", "minilm")
    summaries = lines.over_tasks("n=30", "score", judge.BEST)
    assert summaries["Label smoothing"].difference == summaries["Label smoothing, like it"].difference
    values = lines.values("n=30", "score")
    by_hand = [
        sum(values[task]["Label smoothing"][s] - values[task]["plain"][s] for s in range(5)) / 5 for task in values
    ]
    assert summaries["Label smoothing"].difference == pytest.approx(sum(by_hand) / 2)


def test_lines_of_another_plan_count_for_nothing(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = ["--data", data, "--model", data / "model", "--workers", "0", "--output", data / "out"]
    start(run, monkeypatch, "grid", *places, "--method", "frozen")
    assert choose.mean_scores(read(data / "out/grid-minilm.csv"), "grid")
    plan.PLAN["points"] = 2
    plan.current_hash.cache_clear()
    assert not choose.mean_scores(read(data / "out/grid-minilm.csv"), "grid")


def test_the_tenth_chooses_the_epoch_and_the_test_examples_are_scored_once(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = next(
        spec
        for setting, spec in plan.runs("grid", str(data), str(data / "model"), num_train_epochs=3)
        if setting.name == "plain"
    )
    record = worker.TenthWorker("cpu").run(spec)
    assert record.status == "finished"
    assert record.kept.rule == "split"
    assert record.kept.epoch in (1.0, 2.0, 3.0)
    assert record.curves == []  # no epoch was scored on the test examples
    assert record.scores["tenth"]["examples"] == 3
    assert record.examples["train"] == 27


def test_rules_follow_from_the_words(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contender that always gains two points helps, is selected, and reaches the moonshot; a slow one is not."""
    settings = {
        name: {"methods": [] if name in ("plain", "frozen") else ["label_smoothing"], "learning_rate": 1e-3,
               "num_train_epochs": 1, "development_score": 0.8 + 0.01 * number}
        for number, name in enumerate(plan.PLAN["contenders"])
    }  # fmt: skip
    plan.FROZEN.write_text(yaml.safe_dump({"plan": "x", "stage": "fields", "settings": settings}), encoding="utf-8")
    plan.PLAN["tasks"] = {**plan.PLAN["tasks"], "confirmation": ["a", "b", "c", "d", "e"]}
    gains = {"plain": 0.0, "frozen": -0.05, "Label smoothing": 0.02, "Label smoothing, like it": 0.03}
    lines = [",".join(run.COLUMNS)]
    for task in "abcde":
        for seed in range(6):
            for name, gain in gains.items():
                # The noise of a task and seed is the same for all, but for a little of its own.
                noise = 0.001 * ((seed * 7 + ord(task) + len(name)) % 5)
                gain *= 1 + 0.1 * (ord(task) - ord("b"))
                row = dict.fromkeys(run.COLUMNS, "")
                row |= {
                    "plan": plan.current_hash(), "method": f'"{name}"', "task": task, "size": "n=30",
                    "seed": str(seed), "status": "finished", "score": str(0.8 + gain + noise),
                    "tenth_loss": str(0.5 - gain + noise), "seconds": "30" if name.endswith("like it") else "10",
                }  # fmt: skip
                lines.append(",".join(row[column] for column in run.COLUMNS))
    (data / "out").mkdir()
    (data / "out/confirm-minilm.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    measured = judge.Lines(data / "out", "minilm")
    assert [judge.word(measured, name, "n=30") for name in list(gains)[1:]] == ["hurts", "helps", "helps"]
    assert measured.time_ratio("Label smoothing, like it", "n=30") == 3
    result = judge.ruling(data / "out")
    assert (result.preset, result.moonshot, result.defaults) == ("Label smoothing", ["Label smoothing"], [])
    assert result.is_final
    effect = measured.smallest_effect("Label smoothing", "n=30")
    assert effect is not None
    assert 0 < effect < 0.02


def test_the_committed_plan_is_consistent() -> None:
    """Every contender parses, every setting of the first stage is one run, and no task is in two parts."""
    tasks = [task for part in plan.PLAN["tasks"].values() for task in part]
    assert len(set(tasks)) == len(tasks) == 22
    for name in plan.PLAN["contenders"]:
        for method in plan.methods_of(name):
            if method != "frozen":
                parse_method(method)
        for like in plan.likes(name):
            assert like in plan.PLAN["contenders"]
        for setting in plan.with_points(name, (3e-5, 10)) if not plan.likes(name) else []:
            parse_method(setting.methods[0])
    listed = [spec for _, spec in plan.runs("grid", "DATA", "MODEL")]
    assert len({spec.id for spec in listed}) == len(listed) == run.planned_runs("grid", "minilm")
    assert not {spec.task for spec in listed} & {*plan.PLAN["tasks"]["confirmation"], *plan.PLAN["tasks"]["apart"]}
