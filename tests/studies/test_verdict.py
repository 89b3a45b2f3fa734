"""The study behind the verdict: its plan, the choice of settings and the judgement, on made-up results."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import yaml

from attendrop.lab.studies.spec import RunSpec
from attendrop.methods import parse_method
from studies.verdict import choose, judge, lines, plan
from studies.verdict.lines import read
from studies.verdict.run import COLUMNS, portable_id


def test_every_method_has_the_same_number_of_valid_settings() -> None:
    for method in plan.PLAN["methods"]:
        settings = plan.candidates(method)
        assert len(settings) == plan.PLAN["points"]
        assert len({(setting.text, *setting.training.values()) for setting in settings}) == len(settings)
        for setting in settings:
            if setting.text:
                parse_method(setting.text)


def test_choices_use_no_confirmation_task() -> None:
    stages = plan.PLAN["stages"]
    development = (plan.TUNE, plan.DEFAULTS)
    others = {task for name, stage in stages.items() if name not in development for task in stage["tasks"]}
    for name in development:
        assert not others & set(stages[name]["tasks"])


def test_run_id_does_not_depend_on_file_locations() -> None:
    one, other = (plan.runs(plan.TUNE, folder, f"{folder}/model") for folder in ("/here", "/there"))
    assert [portable_id(run) for run in one] == [portable_id(run) for run in other]
    assert len({portable_id(run) for run in one}) == len(one)


def test_every_task_has_the_same_number_of_training_examples() -> None:
    runs = plan.runs("confirm", "/data", "/model", ["plain"])
    assert {run.task: run.settings["shots"] for run in runs} == {"imdb": "150", "glue/mnli": "100", "glue/qqp": "150"}
    assert {run.size for run in runs} == {"shots=150"}


def test_workers_take_one_setting_each_and_share_the_longest_at_the_end() -> None:
    runs = plan.runs("confirm", "/data", "/model", ["plain", "SAM"])[: 2 * 20]  # one task
    groups = lines._Groups(runs)
    one: list[RunSpec] = []
    other: list[RunSpec] = []
    taken = [groups.next_run(one) for _ in range(11)]
    assert [run.method for run in taken if run] == ["plain"] * 10 + ["SAM"]
    taken += [groups.next_run(other) for _ in range(20)]  # two groups
    assert [len(one), len(other)] == [9, 0]
    taken.append(groups.next_run(other))
    assert [len(one), len(other)] == [5, 3]  # of nine it took four, and runs one of them
    taken += [groups.next_run(group) for group in [one] * 6 + [other] * 3]
    assert groups.next_run(one) is None is groups.next_run(other)
    assert sorted(run.id for run in taken if run) == sorted(run.id for run in runs)


def test_truncated_line_is_skipped(tmp_path: Path) -> None:
    file = tmp_path / "tune.csv"
    file.write_text(",".join(COLUMNS) + "\n" + "a," * (len(COLUMNS) - 1) + "a\nb,half", encoding="utf-8")
    assert [row["id"] for row in read(file)] == ["a"]


def make_row(method: str, task: str, seed: int, score: float, **more: object) -> dict[str, str]:
    row = {**dict.fromkeys(COLUMNS, ""), "method": method, "task": task, "seed": seed, "size": "shots=150"}
    row |= {"status": "finished", "accuracy": score, "loss": 1 - score, "scaled_loss": 1 - score, "brier": 1 - score}
    return {name: str(value) for name, value in {**row, **more}.items()}


def make_tuned_rows(best: dict[str, tuple[int, float]]) -> list[dict[str, str]]:
    """Runs of all settings of some methods; of each, one setting has a better score than the others."""
    stage, rows = plan.PLAN["stages"][plan.TUNE], []
    for method, (number, score) in best.items():
        for index, setting in enumerate(plan.candidates(method)):
            named = {"setting": setting.text, "learning_rate": setting.training["learning_rate"]}
            named["epochs"] = setting.training["num_train_epochs"]
            rows += [
                make_row(method, task, seed, score if index == number else 0.5, **named)
                for task in stage["tasks"]
                for seed in range(stage["seeds"])
            ]
    return rows


def test_choose_takes_the_smallest_scaled_loss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = make_tuned_rows({"plain": (2, 0.8), "mixout": (5, 0.9)})
    failed = plan.candidates("mixout")[5].text
    monkeypatch.setattr(choose, "rows_of", lambda part, name: rows)
    monkeypatch.setattr(choose, "FROZEN", tmp_path / "frozen.yaml")
    monkeypatch.setattr("sys.argv", ["choose"])
    choose.main()
    frozen = yaml.safe_load((tmp_path / "frozen.yaml").read_text(encoding="utf-8"))
    assert [name for name in frozen if "development" in frozen[name]] == ["plain", "mixout"]  # no others are complete
    assert frozen["mixout"]["method"] == failed
    assert frozen["plain"]["training"] == plan.candidates("plain")[2].training
    assert "SAM: 0 of 8 settings are complete" in capsys.readouterr().out
    next(row for row in rows if row["setting"] == failed)["status"] = "failed"
    assert choose.tuned(choose.means(rows))["mixout"]["method"] != failed  # a setting that fails once is not chosen


def test_fixed_settings_and_combinations_follow_from_the_chosen_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    fixed = {
        "default": {"method": "addrop"},
        "integrated": {"like": "AD-DROP", "attribution": "iga"},
        "other plain": {"choose_by": "loss"},
        "plain like it": {"like": "AD-DROP", "method": ""},
    }
    wanted = {"two": ["best", "best"], "ours": ["AD-DROP", "best"], "none": ["AD-DROP", "AD-DROP"]}
    monkeypatch.setitem(plan.PLAN, "fixed", fixed)
    monkeypatch.setitem(plan.PLAN, "combinations", wanted)
    # EMA and WiSE-FT both decide the final weights, so that they cannot act together.
    best = {"plain": (1, 0.6), "AD-DROP": (0, 0.7), "mixout": (4, 0.8), "WiSE-FT": (2, 0.85), "EMA": (3, 0.9)}
    rows = make_tuned_rows(best)
    least = plan.candidates("plain")[5].training
    for row in rows:
        if row["method"] == "plain" and float(row["learning_rate"]) == least["learning_rate"]:
            row["loss"] = "0.1"
    means = choose.means(rows)
    chosen = choose.tuned(means)
    added = choose.fixed(chosen, means)
    assert added["other plain"] == {"method": "", "training": least}
    assert added["plain like it"] == {"method": "", "training": chosen["AD-DROP"]["training"]}
    assert added["default"] == {"method": "addrop", "training": chosen["plain"]["training"]}
    assert parse_method(added["integrated"]["method"]).attribution == "iga"
    assert added["integrated"]["training"] == chosen["AD-DROP"]["training"]
    together = choose.combinations(chosen)
    assert {name: of["members"] for name, of in together.items()} == {
        "two": ["EMA", "mixout"],
        "ours": ["AD-DROP", "EMA"],
    }
    assert together["ours"]["method"] == f"{chosen['AD-DROP']['method']} + {chosen['EMA']['method']}"
    assert together["ours"]["training"] == chosen["EMA"]["training"]


def test_judge_detects_a_planted_effect_and_counts_failures() -> None:
    generator, rows = np.random.default_rng(0), []
    for task in ("a", "b", "c"):
        for seed in range(20):
            level = generator.normal(0.8, 0.02)
            rows.append(make_row("plain", task, seed, level))
            rows.append(make_row("better", task, seed, level + 0.05 + generator.normal(0, 0.01)))
            rows.append(make_row("same", task, seed, level + generator.normal(0, 0.002)))
    rows[-1]["status"] = "failed"
    cells = judge.in_each_cell(judge.by_cell(rows, "score"), "score")
    assert {methods["better"].verdict for methods in cells.values()} == {"helps"}
    assert {methods["same"].verdict for methods in cells.values()} == {"no difference"}
    assert cells["c", "shots=150"]["same"].failed == 1
    over = judge.over_cells(judge.by_cell(rows, "loss"), "loss")
    assert over["better"].verdict == "helps"
    assert over["better"].difference == pytest.approx(-0.05, abs=0.01)


def test_stage_can_be_limited_to_the_best_methods_and_scale_the_rate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    losses = {"plain": 0.6, "mixout": 0.5, "SAM": 0.4, "EMA": 0.45, "AD-DROP": 0.7}
    training = {"learning_rate": 1e-4, "num_train_epochs": 16.0}
    frozen = {
        name: {"method": "", "training": training, "development": {plan.PLAN["choose_by"]: loss}}
        for name, loss in losses.items()
    }
    frozen |= {name: {"method": "", "training": training} for name in ("Best two together", "AD-DROP, default")}
    (tmp_path / "frozen.yaml").write_text(yaml.safe_dump(frozen, sort_keys=False), encoding="utf-8")
    monkeypatch.setattr(plan, "FROZEN", tmp_path / "frozen.yaml")
    monkeypatch.setitem(plan.PLAN, "always", ["plain", "AD-DROP"])
    whole = {**plan.PLAN["stages"]["whole"], "best": 2}
    monkeypatch.setitem(plan.PLAN["stages"], "whole", whole)
    monkeypatch.setitem(plan.PLAN["models"], "wide", {"rate_factor": 0.5, "seeds": 3})
    actual = plan.runs("whole", "/data", "/model", name="wide")
    assert {run.method for run in actual} == {"plain", "SAM", "EMA", "AD-DROP", "Best two together"}
    assert {run.settings["learning_rate"] for run in actual} == {5e-5}
    assert {run.settings["num_train_epochs"] for run in actual} == {whole["epochs"]}
    assert {run.seed for run in actual} == {0, 1, 2}
