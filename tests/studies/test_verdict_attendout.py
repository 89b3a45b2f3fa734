"""The AttendOut experiment: its choices and tables on made-up results with planted effects, and one real run."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attendrop.methods import parse_method
from helpers.wordpiece import make_tokenizer, save_model
from studies.verdict.attendout import plan, report, run
from studies.verdict.attendout.files import Files
from studies.verdict.lines import Workers, append_lines, read, remove_failed
from studies.verdict.run import portable_id

STAGES = [stage for part in plan.PARTS for stage in part]
EFFECTS = (-0.3, 0.2, 0.2, 0.2, 0.2, 0.2)  # of the rate of each layer on the loss: dropping in the first layer helps
REWARDS = (0.02, 0.0, 0.0, 0.0, 0.0, -0.02)  # of the shift of each layer on the reward


def made_up_line(stage: str, spec: Any, generator: np.random.Generator) -> dict[str, str]:
    level = np.random.default_rng(spec.seed).normal(0.5, 0.05)  # shared by all contenders with this seed
    loss = level + generator.normal(0, 0.002)
    if spec.method.startswith("rates "):
        loss += float(np.dot(EFFECTS, plan.rates_of(spec.method)))
    if spec.method == "AttendOut, exact reward, explore":
        loss -= 0.1
    epochs, rate = spec.settings["num_train_epochs"], spec.settings["learning_rate"]
    loss += 0.1 * (epochs != 20) + 0.1 * (rate != 1e-4)
    optimism = 0.02 if spec.method in plan.GAMES else 0.0
    values = {"accuracy": 1 - loss, "dev_accuracy": 1 - loss + optimism, "dev_loss": loss - optimism}
    values |= {"loss": loss, "scaled_loss": loss, "dev_scaled_loss": loss - optimism, "seconds": 2.0}
    rounds = ""
    if spec.method in plan.GAMES:
        shifts = generator.normal(size=(19, plan.LAYERS))
        rewards = shifts @ REWARDS + generator.normal(0, 0.01, 19)
        logged = {"reward": rewards, "reward_error": np.full(19, 0.001), "attacker_won": rewards > 0, "shift": shifts}
        logged["drop_probability"] = np.linspace(0.1, 0.1 + np.array(REWARDS), 19)
        rounds = json.dumps({name: np.asarray(value, float).tolist() for name, value in logged.items()})
    named = {"stage": stage, "id": portable_id(spec), "method": spec.method, "task": spec.task, "seed": spec.seed}
    named |= {"learning_rate": rate, "epochs": epochs, "status": "finished", "rounds": rounds}
    return {name: str(value) for name, value in {**dict.fromkeys(run.COLUMNS, ""), **named, **values}.items()}


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    """The lines of a whole experiment."""
    files, generator = Files("data", "files", 10), np.random.default_rng(0)
    lines: list[dict[str, str]] = []
    for stage in STAGES:
        lines += [made_up_line(stage.name, spec, generator) for spec in plan.runs(stage, lines, files, "model")]
    return lines


def test_runs_are_unique_and_their_methods_exist(rows: list[dict[str, str]]) -> None:
    assert 700 < len(rows) < 850
    assert len({row["id"] for row in rows}) == len(rows)
    for text in [*plan.GAMES.values(), *(plan.contender_of(rates).text for rates in plan.fixed_rates())]:
        parse_method(text)
    method: Any = parse_method(plan.contender_of((0.1, 0.2, 0.3, 0, 0, 0.6)).text)
    assert [method.probability(layer, 6, 0.7) for layer in range(6)] == [0.1, 0.2, 0.3, 0.0, 0.0, 0.6]


def test_choices_follow_the_planted_effects_and_never_see_a_confirmation_task(rows: list[dict[str, str]]) -> None:
    assert not set(plan.DEVELOPMENT) & set(plan.CONFIRMATION)
    assert plan.chosen_recipe(rows) == [{"learning_rate": 1e-4, "num_train_epochs": 20}]
    best = "rates 0.5,0,0,0,0,0"
    assert {contender.name for role, contender in plan.finalists(rows).items() if "uniform" not in role} == {best}
    confirmed = {row["method"] for row in rows if row["stage"] == "confirm"}
    assert confirmed == {"plain", best, "AttendOut, exact reward, explore", *plan.CONTROLS, plan.DEFAULT}
    changed = [{**row, "scaled_loss": "0"} if row["stage"] == "confirm" else row for row in rows]
    for stage in STAGES:
        names = [[c.name for c in stage.contenders(of, stage.tasks[0])] for of in (rows, changed)]
        assert names[0] == names[1]


def test_tables_show_the_planted_effects(rows: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "lines", lambda: tuple(rows))
    tables = {name.removeprefix("attendout-"): make() for name, make in report.TABLES.items()}
    assert all(report.NOT_YET not in text for text in tables.values())
    slopes = next(line for line in tables["slopes"].splitlines() if "glue/sst2 | log loss |" in line).split(" | ")
    assert float(slopes[2].split()[0].replace("−", "-")) == pytest.approx(-0.03, abs=0.002)
    assert float(slopes[3].split()[0]) == pytest.approx(0.02, abs=0.002)
    confirmed = [line for line in tables["confirmed"].splitlines() if "best rates" in line]
    assert len(confirmed) == 2
    assert all(line.count("**helps**") == 3 and "| 20 |" in line for line in confirmed)
    no_masks = [line for line in tables["confirmed"].splitlines() if plan.NO_MASKS in line]
    assert all(line.count("no difference") == 3 for line in no_masks)
    learned = [line for line in tables["learned"].splitlines() if plan.NEVER_LEARNS in line]
    assert len(learned) == 2 * 3 + 2  # three games on the development tasks, one on the others
    for line in learned:
        assert line.count("**helps**" if "explore" in line else "no difference") == 3
    assert all("+2.0 [+2.0,\u00a0+2.0]" in line for line in tables["selection"].splitlines()[2:])  # planted optimism
    rewards = next(line for line in tables["rewards"].splitlines() if "glue/sst2 | all" in line).split(" | ")
    assert [float(rewards[i].split()[0].replace("−", "-")) for i in (2, 7)] == pytest.approx([0.02, -0.02], abs=0.002)


def test_game_run_records_its_rounds(tmp_path: Path) -> None:
    """Its reward set, its training examples and its test examples are three different sets."""
    for part, count in (("train", 40), ("validation", 12)):
        target = tmp_path / "data" / "glue" / "sst2" / f"{part}.parquet"
        target.parent.mkdir(parents=True, exist_ok=True)
        texts = [f"{part} {'good' if i % 2 else 'bad'} film {i}" for i in range(count)]
        pq.write_table(pa.table({"sentence": texts, "label": [i % 2 for i in range(count)]}), target)
    files = Files(tmp_path / "data", tmp_path / "files", reward_set=16)
    files.write("glue/sst2")
    sets = [pq.read_table(path)["sentence"].to_pylist() for path in sorted(tmp_path.rglob("*.parquet"))]
    assert len({text for part in sets for text in part}) == 40 + 12
    model = save_model(tmp_path / "model", make_tokenizer(), layers=plan.LAYERS)
    game = "AttendOut, exact reward, explore"
    stage = STAGES[0]._replace(
        tasks=["glue/sst2"], seeds=[3], contenders=lambda rows, task: [plan.Contender(game, plan.GAMES[game])]
    )
    small = {"shots": 8, "tf32": None, "max_steps": 20, "use_cpu": True}
    wanted = plan.runs(stage._replace(recipes=lambda rows: plan.RECIPES[:1]), [], files, str(model), small)
    file = tmp_path / "attendout.csv"
    remove_failed(file, run.COLUMNS)
    lines = {portable_id(spec): [spec] for spec in wanted}
    workers = Workers(0)
    for _ in range(2):  # the second time there is nothing to do
        assert append_lines(
            file, run.COLUMNS, lines, partial(run.line_of, dict.fromkeys(lines, "judge")), workers, np.inf
        )
    (line,) = read(file)
    assert line["error"] == ""
    rounds = json.loads(line["rounds"])
    assert len(rounds["reward"]) == 2
    assert np.shape(rounds["shift"]) == np.shape(rounds["drop_probability"]) == (2, plan.LAYERS)
    assert 0 <= float(line["accuracy"]) <= 1
    assert float(line["accuracy"]) * 12 == pytest.approx(
        round(float(line["accuracy"]) * 12), abs=1e-4
    )  # of 12 examples
