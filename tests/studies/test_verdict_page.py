"""The page of the verdict study, made from a small made-up study with known effects."""

from __future__ import annotations

import csv
import statistics
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import yaml

from attendrop.lab.report.page import checked_analysis, render_page
from docs.tables import pages
from studies.verdict import (
    answers,
    figure,
    judge,
    page,
    parts,
    plan,
    protocol_gains,
    protocols,
    recommend,
    report,
    seeds,
)
from studies.verdict.run import COLUMNS

TRAINING = {"learning_rate": 1e-4, "num_train_epochs": 10.0}
OTHER_TRAINING = {
    "plain": {"learning_rate": 1.2e-4},
    "EMA": {"num_train_epochs": 8.0},
    "plain, fewer epochs": {"num_train_epochs": 8.0},
    "LLRD": {"learning_rate": 2e-4},
}
ADDROP = "addrop:p=0.3,q=0.3"
# method -> its setting, its development loss, and its true effects on score and log loss
METHODS: dict[str, tuple[str, float | None, float, float]] = {
    "plain": ("", 0.60, 0.0, 0.0),
    "mixout": ("mixout:p=0.5", 0.40, -0.05, -0.10),  # the best on development tasks, but it lowers the score
    "EMA": ("ema:decay=0.99", 0.45, 0.0, -0.10),
    "AD-DROP": (ADDROP, 0.50, 0.03, -0.05),
    "LLRD": ("llrd:decay=0.9", 0.55, 0.0, 0.0),
    "AD-DROP, default": ("addrop", None, 0.0, 0.10),
    "plain, fewer epochs": ("", None, 0.0, -0.10),  # a control
    "Two together": (f"{ADDROP} + ema:decay=0.99", None, 0.02, -0.20),
}


def make_rows(name: str, sizes: list[str], count: int) -> Iterator[dict[str, object]]:
    generator, of_control = np.random.default_rng(0), np.random.default_rng(1)
    for size in sizes:
        for task in ("imdb", "glue/mnli", "glue/qqp"):
            for seed in range(count):
                score, loss = generator.normal(0.8, 0.02), generator.normal(0.6, 0.05)
                for method, (setting, _, up, down) in METHODS.items():
                    if name == "mpnet":
                        up, down = 0.0, 0.0
                    noise = of_control if method.startswith("plain,") else generator
                    own, other = noise.normal(up, 0.003), noise.normal(down, 0.005)
                    row = {**dict.fromkeys(COLUMNS, ""), "id": f"{size} {task} {seed} {method}", "method": method}
                    row |= {"setting": setting, "task": task, "size": size, "seed": seed, "status": "finished"}
                    row |= {"accuracy": score + own, "seconds": 1.0 if method == "plain" else 2.0}
                    row |= dict.fromkeys(("loss", "scaled_loss", "brier", "ece", "scaled_ece"), loss + other)
                    yield row


def write(file: Path, rows: list[dict[str, object]]) -> None:
    with file.open("w", encoding="utf-8", newline="") as output:
        writer = csv.DictWriter(output, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def forget() -> None:
    for cached in (parts.rows_of, parts.planned, parts._confirmation_rows, judge.over_tasks, judge.on_tasks):
        cached.cache_clear()


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    frozen: dict[str, dict[str, object]] = {}
    for name, (setting, loss, *_) in METHODS.items():
        frozen[name] = {"method": setting, "training": {**TRAINING, **OTHER_TRAINING.get(name, {})}}
        if loss is not None:
            frozen[name]["development"] = {"loss": loss, "score": 0.8, plan.PLAN["choose_by"]: loss}
    frozen["Two together"]["members"] = ["AD-DROP", "EMA"]
    (tmp_path / "frozen.yaml").write_text(yaml.safe_dump(frozen, sort_keys=False), encoding="utf-8")
    write(tmp_path / "confirm-minilm.csv", list(make_rows("minilm", ["shots=150"], 20)))
    write(tmp_path / "fewer-minilm.csv", list(make_rows("minilm", ["shots=50"], 20)))
    write(tmp_path / "confirm-mpnet.csv", list(make_rows("mpnet", ["shots=150"], 10)))
    for module in (parts, page):
        monkeypatch.setattr(module, "RECORDS", tmp_path)
    monkeypatch.setattr(plan, "FROZEN", tmp_path / "frozen.yaml")
    forget()
    yield tmp_path
    forget()


def rows_of(text: str) -> dict[str, list[str]]:
    lines = [[cell.strip() for cell in line.strip("|\n").split("|")] for line in text.splitlines()]
    return {line[0]: line[1:] for line in lines}


def test_sentences_match_the_planted_effects(study: Path) -> None:
    actual = rows_of(page.TABLES["verdict-words"]())
    score, loss, seconds = 0, 1, -1
    assert [actual["mixout"][at] for at in (score, loss)] == ["hurts", "**helps**"]
    assert [actual["EMA"][at] for at in (score, loss)] == ["=", "**helps**"]
    assert [actual["AD-DROP"][at] for at in (score, loss)] == ["**helps**", "**helps**"]
    assert [actual["AD-DROP, default"][at] for at in (score, loss, seconds)] == ["=", "hurts", "2.0\u00a0×"]
    assert list(actual)[2] == "Two together"  # the lowest log loss comes first
    assert set(rows_of(page.TABLES["verdict-words-mpnet"]())["mixout"][:2]) == {"="}
    number = rows_of(page.TABLES["verdict-numbers"]())["AD-DROP"]
    assert number[score].startswith("+3.0 [+2.9,\u00a0+3.1]")
    assert number[loss].startswith("−0.05")
    majority = " ".join(page.TABLES["verdict-majority"]().split())
    for change in ("lower the log loss", "raise the score"):
        start = f"- all-MiniLM-L6-v2, {change} on a majority of the tasks, p < 0.05 after Holm's correction: "
        assert f"{start}*Two together* (3 of 3) and *AD-DROP* (3 of 3)." in majority


def test_control_separates_the_method_from_its_epochs(study: Path) -> None:
    actual = rows_of(page.TABLES["verdict-controls"]())
    assert actual["EMA"][:2] == ["8", "1.0e-04"]
    assert actual["EMA"][3].endswith("no difference")  # it helps against plain fine-tuning, which has more epochs
    assert actual["AD-DROP"][1] == "1.0e-04 (plain 1.2e-04)"
    assert actual["AD-DROP"][2].endswith("**helps**")
    assert actual["AD-DROP"][3].startswith("−0.05")
    assert not {"LLRD", "plain, fewer epochs"} & set(actual)  # nothing is trained like LLRD
    assert "*Two together* (3 of 3)" in page.TABLES["verdict-majority"]().split("matched")[1]


def test_table_by_size_omits_methods_measured_at_one_size(study: Path) -> None:
    rows = [row for row in make_rows("minilm", ["shots=50"], 20) if row["method"] != "Two together"]
    write(study / "fewer-minilm.csv", rows)
    forget()
    actual, matched = (rows_of(page.TABLES[f"verdict-sizes{part}-loss"]()) for part in ("", "-matched"))
    assert "Two together" not in actual
    assert actual["EMA"][0].endswith("**helps**")  # n = 100
    assert matched["EMA"][0].endswith("no difference")  # fewer epochs lower it as much
    assert "LLRD" not in matched


def test_recommendation_is_the_best_development_method_that_does_not_hurt(study: Path) -> None:
    assert recommend.best_first() == ["mixout", "EMA", "AD-DROP", "LLRD", "plain"]
    assert recommend.recommended_for("minilm", "shots=150", "score") == "AD-DROP"
    assert recommend.recommended_for("minilm", "shots=150", "loss") == "Two together"  # it is better than EMA
    assert recommend.recommended_for("mpnet", "shots=150", "loss") == "plain"
    table = page.TABLES["verdict-recommendation"]()
    assert "up to 200 (measured: 100)" in table
    assert "more than 200 (measured: 300)" in table
    assert f"`{ADDROP}` + `ema:decay=0.99`: log loss −0.20" in table


def test_incomplete_stage_is_ignored(study: Path) -> None:
    rows = list(make_rows("minilm", ["shots=50"], 20))
    assert parts.sizes("minilm") == ["shots=50", "shots=150"]
    write(study / "fewer-minilm.csv", rows[: -len(METHODS)])  # the last seed is missing
    forget()
    assert parts.sizes("minilm") == ["shots=150"]
    assert "any number (measured: 300)" in page.TABLES["verdict-recommendation"]()
    made, wanted = len(rows) - len(METHODS), len(parts.planned("fewer", "minilm"))
    assert answers.run_counts()[1][2:] == (made, 0, 20, wanted)
    assert page._made(answers.RunCount("fewer", "minilm", made, 0, 20, 720)) == f"{made} of 720"


def test_selected_method_was_measured_at_every_size(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert recommend.selected_by(recommend.RULES[1]) == "EMA"
    monkeypatch.setitem(plan.PLAN["stages"]["fewer"], "best", 0)
    others = [row for row in make_rows("minilm", ["shots=50"], 20) if row["method"] != "EMA"]
    write(study / "fewer-minilm.csv", others)
    forget()
    assert parts.is_complete("fewer", "minilm")
    assert recommend.selected_by(recommend.RULES[1]) == "AD-DROP"


def test_other_data_have_their_own_table(study: Path) -> None:
    before = page.TABLES["verdict-words"]()
    rows = [row for row in make_rows("minilm", ["shots=150"], 20) if row["task"] == "imdb"]
    for row in rows:
        row |= {"task": "rotten_tomatoes", "other_accuracy": 0.7 + 0.05 * (row["method"] == "AD-DROP")}
        row["loss"] = float(str(row["loss"])) + 0.3 * (row["method"] == "EMA")
    write(study / "other-data-minilm.csv", rows)
    forget()
    assert page.TABLES["verdict-words"]() == before
    assert parts.sizes("minilm") == ["shots=50", "shots=150"]
    actual = rows_of(page.TABLES["verdict-other-data"]())
    assert actual["AD-DROP"][-1] == "+5.0 [+5.0,\u00a0+5.0] **helps**"
    assert actual["EMA"][1].endswith("hurts")
    assert recommend.selected_by(recommend.RULES[1]) == "AD-DROP"  # EMA hurts there
    assert "| method | imdb | glue/mnli | glue/qqp | rotten_tomatoes |" in page.TABLES["verdict-tasks-loss"]()
    assert "| rotten_tomatoes | 300 | 20 |" in page.TABLES["verdict-levels"]()


def test_whole_training_sets_have_their_own_table(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = page.TABLES["verdict-tasks-score"]()
    monkeypatch.setitem(plan.PLAN["stages"]["whole"], "tasks", ["glue/mrpc", "glue/stsb"])
    rows = []
    for row in make_rows("minilm", ["all"], 20):
        if row["task"] == "imdb":
            rows.append({**row, "task": "glue/mrpc"})
        if row["task"] == "glue/qqp":  # a regression has a correlation, and no log loss
            rows.append({**row, "task": "glue/stsb", "pearson": row["accuracy"], "accuracy": "", "brier": ""})
    write(study / "whole-minilm.csv", rows)
    forget()
    assert page.TABLES["verdict-tasks-score"]() == before
    text = page.TABLES["verdict-whole"]()
    assert "| method | rate | score, mrpc | score, stsb | log loss, mrpc |" in text
    assert rows_of(text)["AD-DROP"][0] == "0.0001"
    assert all(cell.endswith("**helps**") for cell in rows_of(text)["AD-DROP"][1:])
    matched = rows_of(page.TABLES["verdict-whole-matched"]())
    assert "no difference" in matched["EMA"][3]  # its control has the same effect
    assert "LLRD" not in matched  # no plain fine-tuning matches it


def test_preset_can_be_the_defaults_of_a_method(study: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = {"plain": "", "AD-DROP, default": "addrop", "EMA": "ema"}
    stage = {"tasks": ["glue/sst2"], "sizes": ["shots=150"], "first_seed": 0, "seeds": 8, "trained_as": ["plain"]}
    monkeypatch.setitem(plan.PLAN["stages"], "defaults", {**stage, "settings": settings})
    frozen = yaml.safe_load((study / "frozen.yaml").read_text(encoding="utf-8"))
    frozen["AD-DROP, default"]["training"] = frozen["plain"]["training"]
    (study / "other.yaml").write_text(yaml.safe_dump(frozen, sort_keys=False), encoding="utf-8")
    monkeypatch.setattr(plan, "FROZEN", study / "other.yaml")
    rows = [
        {**dict.fromkeys(COLUMNS, ""), "method": method, "task": "glue/sst2", "size": "shots=150", "seed": seed}
        | {"status": "finished", "epochs": 10.0, "accuracy": 0.8, "brier": 0.1, "scaled_loss": 0.5 + seed / 100 - gain}
        for method, gain in {"plain": 0.0, "AD-DROP, default": 0.25, "EMA": 0.5}.items()
        for seed in range(8)
    ]
    write(study / "defaults-minilm.csv", rows[:-1])
    forget()
    assert "AD-DROP, default" not in recommend.candidates()  # a run is missing
    write(study / "defaults-minilm.csv", rows)
    forget()
    losses = recommend.candidates()
    assert losses["AD-DROP, default"] == pytest.approx(0.60 - 0.25)
    assert losses["EMA"] == 0.45  # it was searched


def test_defaults_are_compared_with_plain_at_the_same_epochs(study: Path) -> None:
    rows = []
    for epochs in (16.0, 32.0):
        for seed in range(8):
            for method, loss in {"plain": epochs / 32, "AD-DROP, default": epochs / 32 - 0.1}.items():
                row = {**dict.fromkeys(COLUMNS, ""), "method": method, "task": "glue/sst2", "size": "shots=150"}
                row |= {"seed": seed, "status": "finished", "epochs": epochs, "accuracy": 0.8 + seed / 100}
                rows.append(row | dict.fromkeys(("loss", "scaled_loss", "brier"), loss + seed / 100))
    write(study / "defaults-minilm.csv", rows)
    lines = page.TABLES["verdict-defaults"]().splitlines()[2:]
    assert [line.split("|")[1:3] for line in lines] == [[" AD-DROP, default ", f" {e} "] for e in (16, 32)]
    assert all("−0.100 [−0.100,\u00a0−0.100] **helps**" in line for line in lines)


def test_failed_runs_are_counted_and_named(study: Path) -> None:
    rows = list(make_rows("minilm", ["shots=150"], 20))
    rows[-1] |= {"status": "failed", "accuracy": "", "loss": ""}
    write(study / "confirm-minilm.csv", rows)
    forget()
    assert "| confirm | all-MiniLM-L6-v2 | 480 | 1 | 20 |" in page.TABLES["verdict-runs"]()


def test_figure_has_a_line_for_each_method_and_outcome(study: Path) -> None:
    text = figure.draw()
    assert text.count("<title>") == 2 * (len(METHODS) - 1)
    assert "mixout: −5.0, hurts" in text
    assert f'stroke="{figure.COLOURS["hurts"]}"' in text


def test_report_and_page_have_the_same_differences(study: Path) -> None:
    analysis = report.analysis_of(parts.confirmation_rows("minilm", "shots=150"), "minilm")
    assert "The verdict: all-MiniLM-L6-v2, 300 training examples" in render_page(checked_analysis(analysis))
    for cell in analysis.cells:
        if cell.method != "plain":
            expected = judge.on_tasks("minilm", "shots=150", "loss")[cell.task, cell.size][cell.method]
            assert (comparison := cell.outcomes["loss"].comparison) is not None
            assert comparison.difference == pytest.approx(expected.difference)


def test_selection_bias_shows_in_the_papers_protocol_only(study: Path) -> None:
    generator = np.random.default_rng(0)
    rows = []
    for task, dev in protocols.TASKS.items():
        for setting in ["", *protocols.SETTINGS]:
            for seed in range(protocols.METHOD_SEEDS if setting else protocols.PLAIN_SEEDS):
                sizes = {"dev": dev, "choose": protocols.TO_CHOOSE, "test": 1000}
                scores = {name: generator.binomial(n, 0.7, 10) / n for name, n in sizes.items()}
                texts = {name: " ".join(f"{value:.4f}" for value in of) for name, of in scores.items()}
                method = "AD-DROP" if setting else "plain"
                named = {"task": task, "method": method, "setting": setting, "seed": seed, "status": "finished"}
                rows.append({**named, **texts})
    write(study / "protocols-minilm.csv", rows)
    for nothing, ours, failed in protocol_gains.gains("minilm").values():
        assert failed == 0
        assert nothing.mean.papers > 0.5  # points, without any effect
        assert nothing.mean.best_seed > nothing.mean.papers
        assert abs(nothing.mean.untouched) < 0.3 > abs(nothing.mean.honest)
        assert nothing.low.honest < 0 < nothing.high.honest
        assert ours.papers > ours.honest
    assert "nothing (plain under another name)" in page.TABLES["verdict-protocols"]()


def test_every_table_of_the_page_exists() -> None:
    names = ("docs/verdict.md", "docs/verdict-first-edition.md")
    text = "".join((pages.ROOT / name).read_text(encoding="utf-8") for name in names)
    marked = {match["name"] for match in pages.MARKED.finditer(text)}
    assert marked == {name for name in page.TABLES if not name.startswith("verdict-of-")}
    for method in page.METHODS:
        assert f"<!-- table: verdict-of-{method} -->" in (pages.ROOT / f"docs/methods/{method}.md").read_text("utf-8")


def test_method_card_lists_the_settings(study: Path) -> None:
    lines = page.TABLES["verdict-of-addrop"]().splitlines()[2:]
    assert [line.split("|")[1].strip() for line in lines] == [f"`{ADDROP}`", "`addrop`"]  # combinations are not there
    assert lines[0].count("**helps**") == 4
    assert page.TABLES["verdict-of-llrd"]().endswith("|  |\n")  # nothing is trained like it


def test_each_version_of_the_rule_selects_by_its_own_outcomes(study: Path) -> None:
    written, changed, without_veto = recommend.RULES
    assert recommend.selected_by(changed) == "EMA"  # mixout hurts the score
    raised = [{**row, "loss": 2.0} if row["method"] == "EMA" else row for row in make_rows("minilm", ["shots=50"], 20)]
    write(study / "fewer-minilm.csv", raised)
    forget()
    assert recommend.selected_by(changed) == "AD-DROP"
    assert recommend.selected_by(without_veto) == "EMA"
    assert recommend.selected_by(written) == "EMA"  # its scaled loss is lower
    assert "| EMA |" in page.TABLES["verdict-rules"]()


def test_answer_begins_with_what_helps_everywhere(study: Path) -> None:
    def begins() -> str:
        return " ".join(page.TABLES["verdict-answer"]().partition("\n\n")[0].split())

    assert "In all 3 parts" in begins()
    assert "none lowers the log loss" in begins()  # nothing has an effect on MPNet-base here
    (study / "confirm-mpnet.csv").unlink()
    forget()
    # mixout lowers the score, and fewer epochs lower the loss as much as EMA does
    assert "*Two together* and *AD-DROP* lower the log loss" in begins()
    assert begins().endswith("others that were compared in all of them do not.")


def test_seeds_for_a_decision_are_computed_from_the_scores_of_all_epochs() -> None:
    by_way = {(of.task, of.scored, of.epochs): of for of in seeds.rows("minilm")}
    here = [row for row in parts.rows_of(protocols.PART, "minilm") if row["task"] == "glue/rte"]
    by_hand: dict[tuple[str, int], float] = {}
    for row in here:
        dev, choose, test = ([float(v) for v in row[name].split()[-3:]] for name in protocols.SETS)
        scores = [(277 * a + 100 * b + 990 * c) / 1367 for a, b, c in zip(dev, choose, test, strict=True)]
        by_hand[row["setting"], int(row["seed"])] = statistics.fmean(scores)
    pairs = [[by_hand[s, n] - by_hand["", n] for n in range(protocols.METHOD_SEEDS)] for s in protocols.SETTINGS]
    variance = statistics.fmean(statistics.variance(of) for of in pairs)
    row = by_way["glue/rte", "all", 3]
    assert row.deviation == pytest.approx(100 * variance**0.5)
    assert row.difference == pytest.approx(100 * statistics.fmean(d for of in pairs for d in of))
    assert row.times == pytest.approx((by_way["glue/rte", "dev", 1].deviation / row.deviation) ** 2)
