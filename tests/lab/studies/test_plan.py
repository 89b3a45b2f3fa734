"""Plans of comparisons: written before, run, contradicted, deviated from; bad designs; tables for a paper."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.report.page import latex_table, markdown_results, plot_differences, render_markdown, render_page
from attendrop.lab.studies.analysis import analyse, analyse_records
from attendrop.lab.studies.compare import _check_steps, compare
from attendrop.lab.studies.design import make_design
from attendrop.lab.studies.plan import changed_by_flags, design_of_plan, make_plan, read_plan
from attendrop.lab.studies.status import Watcher
from helpers.cli_tools import save_encoder, sentences, write_csv
from helpers.studies import MadeUpExecutor, noisy, record_of

pytestmark = pytest.mark.xdist_group("compare")

WORDS = [
    "--model",
    "m",
    "--task",
    "glue/rte",
    "--method",
    "rdrop",
    "--num-train-epochs",
    "3",
    "--learning-rate",
    "2e-5",
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    assert run(["plan", str(tmp_path / "plan.yaml"), *WORDS, "--seeds", "6", "--delta", "0.02"]) == 0
    return tmp_path / "plan.yaml"


def test_the_command_writes_a_plan_and_never_replaces_another(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = read_plan(path)
    assert (plan.primary, plan.content["seeds"], plan.content["methods"]) == ("score", 6, ["plain", "rdrop"])
    assert plan.content["delta"]["score"] == 0.02
    assert {family["outcome"]: family["kind"] for family in plan.content["families"]}["loss"] == "exploratory"
    design = design_of_plan(plan.study())
    assert make_plan(design, 6, None, {"score": 0.02}).hash == plan.hash
    path.write_text("# a remark\n" + yaml.safe_dump(dict(plan.content), sort_keys=True))
    assert read_plan(path).hash == plan.hash
    assert run(["plan", str(path), *WORDS, "--seeds", "7"]) == 2
    assert "a plan is never replaced" in " ".join(capsys.readouterr().err.split())


def test_a_plan_is_run_and_the_report_lists_each_deviation(path: Path, tmp_path: Path) -> None:
    plan = read_plan(path)
    score = noisy({"rdrop": 0.05})
    study = plan.study()
    executor = MadeUpExecutor(score)
    analysis = compare(design_of_plan(study), tmp_path / "study", executor, seeds=6, deltas={"score": 0.02}, plan=plan)
    assert analysis.plan[0].endswith("There is no deviation from the plan.")
    records = [json.loads(file.read_text()) for file in (tmp_path / "study" / "runs").glob("*.json")]
    assert {record["plan"] for record in records} == {plan.hash}
    wanted = changed_by_flags(plan, {"seeds": 7, "delta": {"score": 0.03}}, "plan.yaml", may_deviate=True)
    other = compare(
        design_of_plan(wanted), tmp_path / "other", MadeUpExecutor(score), seeds=7, deltas={"score": 0.03}, plan=plan
    )
    assert other.plan[1:] == ["seeds is 7, and was planned as 6", "delta of score is 0.03, and was planned as 0.02"]
    for shown in (render_markdown(other), render_page(other), latex_table(other)):
        assert "seeds is 7, and was planned as 6" in shown
    next((tmp_path / "study" / "runs").glob("*.json")).unlink()
    assert analyse(tmp_path / "study").plan[1:] == ["1 of 12 planned runs have not ended"]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--seeds", "20"], "seeds is 20, and 6 in the plan"),
        (["--delta", "0.05"], "delta of score is 0.05, and 0.02 in the plan"),
        (["--learning-rate", "1e-3"], "learning_rate is 1e-3, and 2e-5 in the plan"),
        (["--method", "mixout"], "methods is ['plain', 'mixout'], and ['plain', 'rdrop'] in the plan"),
        (["--train-file", "x.csv"], "train_file is given, and --plan says what is compared"),
    ],
)
def test_flags_that_contradict_the_plan_are_refused(
    path: Path, tmp_path: Path, more: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["compare", "--plan", str(path), *more, "--output-dir", str(tmp_path / "study")]) == 2
    assert sentence in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("model: m", "is not a plan of schema 1"),
        ("schema: 1\nprimary: score", "is wrong: .settings. is missing"),
        ("[1", "is not YAML"),
    ],
)
def test_files_that_are_no_plans_are_refused(tmp_path: Path, content: str, sentence: str) -> None:
    (tmp_path / "plan.yaml").write_text(content)
    with pytest.raises(UserError, match=sentence):
        read_plan(tmp_path / "plan.yaml")


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tasks": 3}, "'tasks' is a int, not a list"),
        ({"settings": ["x"]}, "'settings' is a list, not a dict"),
        ({"first_seed": "x"}, "'first_seed' is 'x'; it must be a whole number"),
        ({"seed": 3}, "has 'seed', which no plan has"),
        ({"delta": {"scores": 0.1}}, "an outcome in delta of the plan .* is 'scores'; it must be one of 'score'"),
        ({"delta": {"score": -1}}, "delta of score in the plan .* is -1; it must be a number from 0"),
        ({"seeds": 0}, "seeds of the plan .* is 0; it must be a whole number of at least 1"),
    ],
)
def test_a_plan_with_a_wrong_value_is_refused(path: Path, changes: dict[str, Any], sentence: str) -> None:
    path.write_text(yaml.safe_dump({**read_plan(path).content, **changes}))
    with pytest.raises(UserError, match=sentence):
        read_plan(path)


def test_a_plan_is_run_by_the_command(tmp_path: Path) -> None:
    rows = sentences(16, seed=1)
    model = save_encoder(tmp_path / "model", [text for text, _ in rows])
    words = ["--model", str(model), "--train-file", str(write_csv(tmp_path / "train.csv", rows)), "--use-cpu",
             "--max-steps", "1", "--method", "rdrop", "--seeds", "1", "--delta", "0.6"]  # fmt: skip
    plan, study = str(tmp_path / "plan.yaml"), tmp_path / "study"
    assert run(["plan", plan, *words]) == 0
    assert run(["compare", "--plan", plan, "--workers", "0", "--output-dir", str(study)]) == 0
    assert json.loads((study / "study.json").read_text())["delta"]["score"] == 0.6
    assert "There is no deviation from the plan." in (study / "report.md").read_text()


def test_records_of_another_plan_in_the_folder_are_refused(path: Path, tmp_path: Path) -> None:
    plan = read_plan(path)
    design = design_of_plan(plan.study())
    compare(design, tmp_path / "study", MadeUpExecutor(noisy({})), seeds=2, plan=plan)
    other = make_plan(design, 9, None, {})
    with pytest.raises(UserError, match=r"plan\.\w+.* is .* in the study that"):
        compare(design, tmp_path / "study", MadeUpExecutor(noisy({})), seeds=2, plan=other)
    file = next((tmp_path / "study" / "runs").glob("*.json"))
    content = json.loads(file.read_text())
    del content["checksum"]
    file.write_text(json.dumps({**content, "plan": other.hash}))
    with pytest.raises(UserError, match="has another plan than that of run"):
        analyse(tmp_path / "study")


def test_seeds_that_vary_nothing_are_refused(tmp_path: Path) -> None:
    methods, settings = ["frozen", "frozen@max_length=64"], {"model": "m"}
    design = make_design(settings, methods, tasks=("glue/rte",), baseline="frozen")
    with pytest.raises(UserError, match="seeds is 5, and the seeds vary nothing"):
        compare(design, tmp_path / "study", MadeUpExecutor(noisy({})), seeds=5)
    assert not (tmp_path / "study").exists()
    sampled = make_design(settings, methods, tasks=("glue/rte",), baseline="frozen", sizes=("shots=8",))
    assert compare(sampled, tmp_path / "study", MadeUpExecutor(noisy({})), seeds=5).cells


def test_a_delta_below_the_step_of_the_score_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = sentences(30, seed=1)
    save_encoder(tmp_path / "model", [text for text, _ in rows])
    train, dev = write_csv(tmp_path / "train.csv", rows[:20]), write_csv(tmp_path / "dev.csv", rows[20:])
    words = ["--model", str(tmp_path / "model"), "--train-file", str(train), "--validation-file", str(dev)]
    more = ["--method", "rdrop", "--workers", "0", "--use-cpu", "--output-dir", str(tmp_path / "study")]
    assert run(["compare", *words, *more, "--delta", "0.05"]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert "scored on 10 examples, so that the accuracy of a run moves in steps of 0.1, more than delta, 0.05" in shown
    assert not (tmp_path / "study").exists()


def test_a_usual_delta_below_the_step_is_a_note() -> None:
    notes: list[str] = []

    class Notes(Watcher):
        def note(self, text: str) -> None:
            notes.append(text)

    design = make_design({"model": "m"}, ["rdrop"], tasks=("glue/rte",))
    checked = replace(record_of(design.runs(design.cells[0], 0)[0], 0.5), status="checked")
    _check_steps([checked], 0.01, False, Notes())
    assert notes == [
        "glue/rte is scored on 50 examples, so that the accuracy of a run moves in steps of 0.02, more than delta, 0.01"
    ]


def test_figure_for_a_paper_has_a_panel_for_each_task() -> None:
    design = make_design({"model": "m"}, ["rdrop", "addrop:p=0.3,q=0.3"], tasks=("glue/rte", "glue/mrpc"))
    score = noisy({"rdrop": 0.05})
    records: list[Any] = [
        record_of(spec, score(spec)) for cell in design.cells for n in range(6) for spec in design.runs(cell, n)
    ]
    analysis = analyse_records(records, design.configuration())
    figure = plot_differences(analysis)
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["glue/mrpc", "glue/rte"]
    (cell,) = (of for of in analysis.cells if (of.task, of.method) == ("glue/mrpc", "rdrop"))
    comparison = cell.outcomes["score"].comparison
    low, high = comparison.interval
    bars = [tuple(line.get_xdata()) for line in figure.axes[0].lines]
    assert (low, high) in bars
    assert (comparison.difference,) in bars


def test_tables_of_the_result_for_a_paper(tmp_path: Path) -> None:
    design = make_design({"model": "m"}, ["rdrop", "addrop:p=0.3,q=0.3"], tasks=("glue/rte", "glue/mrpc"))
    score = noisy({"rdrop": 0.05})
    records: list[Any] = [
        record_of(spec, score(spec)) for cell in design.cells for n in range(6) for spec in design.runs(cell, n)
    ]
    analysis = replace(analyse_records(records, design.configuration()), title="50 % of my_data & more")
    latex, markdown = latex_table(analysis), markdown_results(analysis)
    assert latex.count(r"\\") == 7
    assert latex.count("helps") == markdown.count("helps") == 2
    assert r"50 \% of my\_data \& more" in latex
    assert r"\midrule" in latex
    assert markdown.count("\n| ") == 8
    compare(design, tmp_path, MadeUpExecutor(score), seeds=5)
    assert run(["report", str(tmp_path), "--latex", "--markdown"]) == 0
    assert (tmp_path / "results.tex").read_text().startswith("% written by attendrop report")
    assert run(["report", str(tmp_path), "--pdf"]) == run(["report", str(tmp_path), "--pdf"]) == 0
    assert (tmp_path / "results.pdf").read_bytes().startswith(b"%PDF")
    (tmp_path / "results.pdf").write_bytes(b"mine")
    assert run(["report", str(tmp_path), "--pdf"]) == 2
    (tmp_path / "results.md").write_text("mine")
    assert run(["report", str(tmp_path), "--markdown"]) == 2
    assert (tmp_path / "results.md").read_text() == "mine"
