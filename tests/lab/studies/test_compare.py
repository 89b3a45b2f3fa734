"""`attendrop compare`: paired runs, seeds that are added until methods are decided, verdicts, and wrong input."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendrop.errors import UserError
from attendrop.lab.cli.app import run
from attendrop.lab.records import RunError
from attendrop.lab.report.analysis import Analysis, Sequential, checked_analysis
from attendrop.lab.report.page import card_section, latex_table, render_page
from attendrop.lab.report.page.markdown import render_markdown
from attendrop.lab.report.page.words import headline
from attendrop.lab.statistics.sequential import SequentialDesign
from attendrop.lab.statistics.verdict import Comparison
from attendrop.lab.studies.analysis import analyse, analyse_records
from attendrop.lab.studies.compare import UntilDecided, compare
from attendrop.lab.studies.design import Design, make_design
from attendrop.lab.studies.records import SameStudy
from helpers.cli_tools import attendrop, save_encoder, sentences, write_csv
from helpers.studies import MadeUpExecutor, noisy, record_of

pytestmark = pytest.mark.xdist_group("compare")

ADDROP = "addrop:p=0.5,q=0.5,layers=all"


def design_of(methods: list[str], **fields: Any) -> Design:
    return make_design({"model": "roberta-base"}, methods, **{"tasks": ("glue/rte",), **fields})


def comparison_of(analysis: Analysis, method: str = "rdrop") -> Comparison:
    """The comparison of a method's score in the first cell that it has."""
    comparison = next(cell for cell in analysis.cells if cell.method == method).outcomes["score"].comparison
    assert comparison is not None
    return comparison


# ---- seeds -----------------------------------------------------------------------------------------------------------


def test_seeds_are_added_until_each_method_is_decided(tmp_path: Path) -> None:
    design = design_of(["rdrop", "addrop", "mixout"])
    executor = MadeUpExecutor(noisy({"rdrop": 0.05, "addrop": 0.004, "mixout": -0.05}))
    analysis = compare(design, tmp_path / "study", executor, max_seeds=40)
    cells = {cell.method: cell.outcomes["score"] for cell in analysis.cells}
    verdicts = {method: of.comparison.verdict for method, of in cells.items() if of.comparison}
    assert verdicts["rdrop"] == "helps"
    assert verdicts["mixout"] == "hurts"
    seeds = {method: len(of.values) for method, of in cells.items()}
    assert 12 <= seeds["rdrop"] < 20  # a large effect is decided early
    assert seeds["rdrop"] < seeds["addrop"] <= seeds["plain"] <= 40  # a small one is not
    assert analysis.sequential == Sequential(max_seeds=40, first_look=12)


@pytest.mark.parametrize(
    ("later", "verdict", "pairs"), [([0.02] * 10, "helps", 20), ([-0.08] * 10, "undecided", 20), ([], "helps", 10)]
)
def test_a_study_until_decided_shows_all_seeds(later: list[float], verdict: str, pairs: int) -> None:
    design = design_of(["rdrop"])
    study = design.configuration(max_seeds=20, first_look=10)
    effects = [0.05 + 0.001 * (seed % 3) for seed in range(10)] + [of + 0.003 * (i % 4) for i, of in enumerate(later)]
    records = []
    for seed, effect in enumerate(effects):
        plain, rdrop = design.runs(design.cells[0], seed)
        records += [record_of(plain, 0.7 + 0.001 * seed), record_of(rdrop, 0.7 + 0.001 * seed + effect)]
    for order in (records, records[::-1]):
        comparison = comparison_of(analyse_records(order, study))
        assert (comparison.verdict, comparison.pairs) == (verdict, pairs)
        assert comparison.difference == pytest.approx(np.mean(effects))
        assert comparison.interval is not None
        if verdict == "helps":
            assert comparison.interval[0] < comparison.difference < comparison.interval[1]
            assert comparison.decided_after == 10
            assert f"it helps, decided after 10 seeds. Over all {pairs} seeds the accuracy" in comparison.sentence
            assert "An estimate at an early stop is too large on average" in comparison.sentence


@pytest.mark.parametrize(("flipped", "verdict"), [(1, "undecided"), (25, "helps")])
def test_one_test_item_that_flips_in_all_seeds_is_no_help(flipped: int, verdict: str) -> None:
    design, gold = design_of(["rdrop"]), [0, 1] * 25
    records = []
    for seed in range(5):
        for spec in design.runs(design.cells[0], seed):
            wrong = 30 - flipped * (spec.method == "rdrop")
            predicted = [1 - label if place < wrong else label for place, label in enumerate(gold)]
            predictions = {"validation": {"gold": gold, "predicted": predicted, "confidence": [0.9] * 50}}
            records.append(record_of(spec, 1 - wrong / 50, predictions=predictions))
    comparison = comparison_of(analyse_records(records, design.configuration()))
    assert comparison.verdict == verdict
    assert comparison.interval is not None
    assert comparison.population is not None
    assert comparison.interval[0] > 0  # over seeds alone, it is always the same gain
    assert "over seeds and test examples" in comparison.sentence


def test_tasks_come_one_after_the_other_and_end_when_all_is_decided() -> None:
    design = design_of(["rdrop"], tasks=("glue/rte", "glue/mrpc"))
    source = UntilDecided(design, SequentialDesign(max_seeds=40, first=5), delta=0.01)
    score, tasks = noisy({"rdrop": 0.05}), []
    while (spec := source.next_run()) is not None:
        tasks.append(spec.task)
        source.add(record_of(spec, score(spec)))
    assert tasks == sorted(tasks, reverse=True)
    assert all(10 <= tasks.count(task) < 40 for task in ("glue/rte", "glue/mrpc"))


def test_a_study_that_is_started_again_with_more_seeds_repeats_nothing(tmp_path: Path) -> None:
    design = design_of(["rdrop"])
    executor = MadeUpExecutor(noisy({}))
    compare(design, tmp_path / "study", executor, seeds=3)
    more = MadeUpExecutor(noisy({}))
    analysis = compare(design, tmp_path / "study", more, seeds=5)
    assert len(executor.ran) == 6
    assert sorted((s.method, s.seed) for s in more.ran) == [(m, s) for m in ("plain", "rdrop") for s in (3, 4)]
    assert analysis == replace(analyse(tmp_path / "study"), created=analysis.created)
    assert analysis.ensembles == []
    assert [note for note in analysis.notes if note.startswith("there is no ensemble of the seeds of plain, rdrop")]
    with pytest.raises(UserError, match="keep is 'dev', and 'last' in the study"):
        compare(design_of(["rdrop"], keep="dev"), tmp_path / "study", executor, seeds=5)


@pytest.mark.parametrize(
    ("fields", "settings", "resample"),
    [
        ({"sizes": ("shots=16",)}, {}, True),
        ({"sizes": ("fraction=0.1", "all")}, {}, True),
        ({}, {"max_train_samples": 300}, True),
        ({"sizes": ("shots=16",), "resample": False}, {}, False),
        ({}, {}, False),
    ],
)
def test_seeds_draw_their_own_examples_where_a_part_is_trained_on(
    fields: dict[str, Any], settings: dict[str, Any], resample: bool
) -> None:
    design = make_design({"model": "roberta-base", **settings}, ["rdrop"], tasks=("glue/rte",), **fields)
    assert design.resample is resample
    assert {run.resample for run in design.all_runs(2)} == {resample}


@pytest.mark.parametrize(
    ("resample", "available", "scope"),
    [
        (True, {"train": 4500}, "each draws 120 of the 4,500 training examples."),
        (False, {"train": 4500}, "All seeds train on the same 120 of the 4,500 training examples: this is about these"),
        (False, {}, "The seeds vary the training, not its examples."),
    ],
)
def test_a_verdict_says_what_the_seeds_vary(resample: bool, available: dict[str, int], scope: str) -> None:
    design = design_of(["rdrop"])
    examples = {"train": 120, "validation": 50}
    records = [
        record_of(run, 0.8 + 0.01 * (seed % 2), resample=resample, available=available, examples=examples)
        for seed in range(6)
        for run in design.runs(design.cells[0], seed)
    ]
    assert scope in comparison_of(analyse_records(records, design.configuration())).sentence


def test_matched_adds_the_baseline_with_the_rate_and_epochs_of_each_method() -> None:
    methods = ["plain", "rdrop", "addrop@learning_rate=5e-5,num_train_epochs=9", "mixout@num_train_epochs=9"]
    design = design_of([*methods, "hiddencut@learning_rate=5e-5,num_train_epochs=9"], matched=True)
    added = set(design.methods) - set(methods)
    assert {"plain@learning_rate=5e-5,num_train_epochs=9", "plain@num_train_epochs=9"} <= added
    assert len(design.methods) == 7
    assert design_of(["rdrop"], matched=True).methods == ("plain", "rdrop")
    with pytest.raises(UserError, match="matched is on, and method 'addrop@preset=paper' takes its learning rate"):
        design_of(["addrop@preset=paper"], matched=True)


@pytest.mark.parametrize("matched", [False, True])
def test_a_verdict_says_where_a_method_is_not_trained_like_the_baseline(matched: bool) -> None:
    method = "rdrop@num_train_epochs=9"
    design = make_design(
        {"model": "roberta-base", "num_train_epochs": 3, "learning_rate": 2e-5}, [method], tasks=("glue/rte",),
        matched=matched,
    )  # fmt: skip
    score = noisy({method: 0.03, "plain@num_train_epochs=9": 0.03}, 0.001)
    records = [record_of(run, score(run)) for seed in range(30) for run in design.runs(design.cells[0], seed)]
    comparison = comparison_of(analyse_records(records, design.configuration()), method)
    assert comparison.verdict == "helps"
    assert "is trained with learning rate 2e-05 and 9 epochs, plain with learning rate 2e-05 and 3 epochs" in (
        comparison.sentence
    )
    against = "Compared with plain@num_train_epochs=9, with matched learning rate and epochs: rdrop"
    assert (against in comparison.sentence) is matched
    assert ("makes no difference that matters" in comparison.sentence) is matched
    assert ("--matched adds" in comparison.sentence) is not matched


# ---- the analysis ----------------------------------------------------------------------------------------------------


def test_failed_runs_are_counted_and_never_dropped() -> None:
    design = design_of(["rdrop"])
    records = []
    for seed in range(8):
        plain, rdrop = design.runs(design.cells[0], seed)
        records += [record_of(plain, 0.7), record_of(rdrop, 0.75 + 0.001 * seed)]
    error = RunError("DivergedError", "training has diverged")
    records[5] = replace(records[5], status="failed", scores={}, error=error)
    analysis = analyse_records(records, design.configuration())
    comparison = comparison_of(analysis)
    assert (comparison.pairs, comparison.failed) == (7, 1)
    assert "1" in comparison.sentence
    assert [failure.seed for failure in analysis.failures] == [2]
    assert analysis.methods[1].failed == 1


@pytest.mark.parametrize("tasks", [2, 6])
def test_a_summary_over_tasks_says_what_follows_for_a_new_one(tasks: int) -> None:
    names = tuple(f"glue/{name}" for name in ("rte", "mrpc", "cola", "sst2", "qnli", "qqp"))[:tasks]
    design = design_of(["rdrop"], tasks=names, sizes=("shots=16", "shots=64"))
    draws = np.random.default_rng(0)
    records = []
    for cell in design.cells:
        for seed in range(6):
            plain, rdrop = design.runs(cell, seed)
            gain = 0.05 + 0.01 * names.index(cell[0]) + draws.normal(0, 0.004)
            records += [record_of(plain, 0.7 + draws.normal(0, 0.01)), record_of(rdrop, 0.7 + gain)]
    analysis = analyse_records(records, design.configuration())
    (summary,) = (of for of in analysis.summary if of.outcome == "score")
    assert summary.tasks == tasks  # the amounts of data are no other tasks
    text, page = render_markdown(analysis), render_page(analysis)
    if tasks < 5:
        assert (summary.new_task, summary.shrunk) == (None, {})
        assert "nothing follows for other tasks, which takes at least 5" in text
        assert "on one new task" not in page
        return
    assert summary.new_task is not None
    assert summary.interval is not None
    assert summary.new_task[0] < summary.interval[0] < summary.interval[1] < summary.new_task[1]
    assert {*summary.shrunk} == {*names}
    for shown in (text, page):
        assert "on one new task" in shown
        assert "Each task, shrunk towards the mean of all" in shown


def test_the_report_shows_both_intervals_and_why_a_verdict_is_withheld() -> None:
    design, gold = design_of(["rdrop"]), [0, 1] * 25
    records = []
    for seed in range(12):
        for spec in design.runs(design.cells[0], seed):
            wrong = 10 - (6 if spec.method == "rdrop" else 0) + seed % 2
            if spec.method == "rdrop" and seed == 0:
                wrong = 26
            predicted = [1 - label if place < wrong else label for place, label in enumerate(gold)]
            predictions = {"validation": {"gold": gold, "predicted": predicted, "confidence": [0.9] * 50}}
            records.append(record_of(spec, 1 - wrong / 50, predictions=predictions))
    analysis = analyse_records(records, replace(design.configuration(), delta={"loss": 0.9}))
    score = comparison_of(analysis)
    loss = next(cell for cell in analysis.cells if cell.method == "rdrop").outcomes["loss"].comparison
    assert loss is not None
    assert (loss.verdict, loss.withheld) == ("undecided", "no difference")
    assert score.population is not None
    for shown in (render_markdown(analysis), render_page(analysis)):
        assert "over seeds alone" in shown
        assert "“no difference” is withheld: 1 of 12 runs collapsed or learned nothing, and 0 of the baseline" in shown


@pytest.mark.parametrize("how", ["failed", "most frequent answer", "far below"])
def test_a_method_that_collapses_does_not_help(how: str) -> None:
    design = design_of(["rdrop"])
    records = []
    for seed in range(10):
        plain, rdrop = design.runs(design.cells[0], seed)
        records += [record_of(plain, 0.7 + 0.01 * (seed % 3)), record_of(rdrop, 0.9 + 0.011 * (seed % 3))]
    for record in records:
        record.scores["validation"]["majority"] = 0.6
    comparison = comparison_of(analyse_records(records, design.configuration()))
    assert comparison.verdict == "helps"
    assert "With 10 seeds none collapsed: up to 26 % of runs may." in comparison.sentence
    assert not comparison.does_not_hurt  # of runs that were not seen
    if how == "failed":
        records[5] = replace(records[5], status="failed", scores={}, error=RunError("DivergedError", "diverged"))
    else:
        records[5].scores["validation"]["accuracy"] = 0.6 if how == "most frequent answer" else 0.61
    comparison = comparison_of(analyse_records(records, design.configuration()))
    assert comparison.verdict == "undecided"
    assert (
        "1 of 10 runs of rdrop and 0 of plain collapsed or learned nothing: up to 39 % of runs may"
        in comparison.sentence
    )


def test_fewer_than_five_seeds_give_figures_but_no_verdict() -> None:
    design = design_of(["rdrop"])
    records = [
        record_of(s, 0.7 + 0.1 * (s.method == "rdrop")) for seed in range(4) for s in design.runs(design.cells[0], seed)
    ]
    comparison = comparison_of(analyse_records(records, design.configuration()))
    assert comparison.verdict == "too few seeds"
    assert comparison.difference == pytest.approx(0.1)


def test_without_a_run_that_beats_the_most_frequent_answer_there_is_no_verdict() -> None:
    design = design_of(["rdrop"])
    records = []
    for seed in range(8):
        plain, rdrop = design.runs(design.cells[0], seed)
        for spec, score in ((plain, 0.50 + 0.001 * seed), (rdrop, 0.60 + 0.0011 * seed)):
            record = record_of(spec, score)
            record.scores["validation"]["majority"] = 0.63
            records.append(record)
    analysis = analyse_records(records, design.configuration())
    comparison = comparison_of(analysis)
    assert comparison.verdict == "undecided"
    assert comparison.sentence.startswith("No run learned anything: none beats the most frequent answer (63.0 % of")
    assert headline(checked_analysis(analysis)) == comparison.sentence
    records[-1].scores["validation"]["accuracy"] = 0.64  # one run that does
    assert comparison_of(analyse_records(records, design.configuration())).verdict == "helps"


def test_models_that_give_one_answer_only_have_learned_nothing() -> None:
    design = design_of(["rdrop"])
    records = []
    for seed in range(8):
        plain, rdrop = design.runs(design.cells[0], seed)
        for spec, score in ((plain, 0.5), (rdrop, 0.5 + 0.001 * (seed % 2))):
            record = record_of(
                spec, score, metric="f1", predictions={"validation": {"gold": [0, 1], "predicted": [1, 1]}}
            )
            record.scores["validation"]["f1"] = score
            records.append(record)
    assert comparison_of(analyse_records(records, design.configuration())).sentence.startswith(
        "No run learned anything"
    )


def test_a_report_says_of_how_many_examples_a_sample_was_drawn() -> None:
    design = design_of(["rdrop"])
    sample = {"examples": {"train": 120, "validation": 50}, "available": {"train": 4500}}
    records = [record_of(run, 0.8, **sample) for run in design.runs(design.cells[0], 0)]
    text = render_markdown(analyse_records(records, design.configuration()))
    assert "## glue/rte, 120 of 4,500 training examples, scored on validation" in text
    assert "all training data" not in text


def test_an_interval_of_a_mean_ends_where_its_metric_does() -> None:
    """Of two seeds an interval is so wide that an axis reached from -50 % to 150 %."""
    design = design_of(["rdrop"])
    curves = [[{"epoch": 1.0, "accuracy": 0.2 + 0.6 * seed, "loss": 0.1 + seed}] for seed in range(2)]
    records = [
        record_of(run, 0.2 + 0.6 * seed, curves=curves[seed])
        for seed in range(2)
        for run in design.runs(design.cells[0], seed)
    ]
    for cell in analyse_records(records, design.configuration()).cells:
        assert cell.outcomes["score"].interval == (0.0, 1.0)
        assert cell.outcomes["loss"].interval is not None
        assert cell.outcomes["loss"].interval[0] == 0.0
        assert cell.curves is not None
        assert (cell.curves.low["accuracy"], cell.curves.high["accuracy"]) == ([0.0], [1.0])


def test_the_runs_of_a_search_are_counted_as_in_the_terminal() -> None:
    design = design_of(["rdrop"])
    records = [record_of(run, 0.8) for run in design.runs(design.cells[0], 0)]
    trials = [record_of(replace(records_spec, fold=0), 0.7, fold=0) for records_spec in design.runs(design.cells[0], 7)]
    text = render_markdown(analyse_records([*records, *trials], design.configuration()))
    assert "Runs: 4: 2 of trials, 2 of the chosen settings" in text


def test_a_grid_of_p_and_q_gives_a_heat_map() -> None:
    grid = [f"addrop:p={p},q={q}" for p in (0.1, 0.3) for q in (0.2, 0.5)]
    design = design_of(grid)
    records = [
        record_of(s, 0.7 + 0.01 * len(s.method)) for seed in range(2) for s in design.runs(design.cells[0], seed)
    ]
    (heatmap,) = analyse_records(records, design.configuration()).heatmaps
    assert (heatmap.xs, heatmap.ys) == ([0.1, 0.3], [0.2, 0.5])
    assert np.array(heatmap.difference).shape == (2, 2)


def test_agreement_and_disagreements_come_from_single_predictions() -> None:
    design = design_of(["rdrop"])
    gold, records = [0, 1, 0, 1], []
    for seed in range(2):
        for spec in design.runs(design.cells[0], seed):
            predicted = gold if spec.method == "plain" else [0, 1, 1, seed]
            predictions = {"validation": {"gold": gold, "predicted": predicted, "confidence": [0.9] * 4}}
            texts = {"texts": ["one", "two", "three", "four"]} if seed == 0 else {}
            records.append(record_of(spec, 0.5, predictions=predictions, **texts))
    analysis = analyse_records(records, design.configuration())
    assert [row.agreement for row in analysis.agreement] == [1.0, 0.75]
    assert analysis.agreement[1].per_example == [1, 1, 0, 0.5]
    assert [(row.text, row.right["rdrop"]) for row in analysis.disagreements] == [("three", 0), ("four", 0.5)]


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    folder = tmp_path_factory.mktemp("compare")
    rows = sentences(48, seed=1)
    save_encoder(folder / "model", [text for text, _ in rows])
    train, dev = write_csv(folder / "train.csv", rows), write_csv(folder / "dev.csv", sentences(24, seed=2))
    files = ["--model", str(folder / "model"), "--train-file", str(train), "--validation-file", str(dev)]
    return [*files, "--num-train-epochs", "4", "--learning-rate", "1e-2", "--use-cpu", "--workers", "0"]


def test_the_command_trains_compares_and_writes_a_report(words: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "study"
    more = [
        "--method",
        ADDROP,
        "--seeds",
        "5",
        "--shots",
        "8",
        "--shots",
        "16",
        "--output-dir",
        str(folder),
    ]
    done = attendrop("compare", *words, *more)
    assert done.code == 0, done.err
    assert "2 methods × 5 seeds × 2 tasks and sizes: 20 runs" in done.out
    assert "train.csv, shots=8" in done.out
    assert "The seeds vary the training and its examples: each draws 16 of the 48 training examples." in done.out
    assert f"the report is {folder / 'report.html'}" in " ".join(done.out.split())
    assert len(list((folder / "runs").glob("*.json"))) == 20
    study = json.loads((folder / "study.json").read_text())
    assert study["methods"] == ["plain", ADDROP]
    assert study["command"].startswith("attendrop compare --model")
    analysis = analyse(folder)
    assert {cell.size for cell in analysis.cells} == {"shots=8", "shots=16"}
    assert analysis.explorer is not None
    assert {row.outcome for row in analysis.summary} == {"score", "loss", "brier", "ece", "scaled_loss", "cost"}
    assert len(list((folder / "predictions").glob("*.npz"))) == 20
    assert [(row.method, row.size, row.seeds) for row in analysis.ensembles[:2]] == [
        ("plain", analysis.cells[0].size, 5), (ADDROP, analysis.cells[0].size, 5)
    ]  # fmt: skip
    assert done.out.count("It costs 5 × at inference.") == 4


def test_a_method_that_always_fails_is_shown_and_the_exit_code_says_so(words: list[str], tmp_path: Path) -> None:
    diverges = "plain@learning_rate=1e30,num_train_epochs=4,logging_steps=1"
    more = ["--method", diverges, "--seeds", "2", "--output-dir", tmp_path / "study"]
    done = attendrop("compare", *words, *more)
    assert done.code == 1
    assert done.out.count("DivergedError") >= 2
    assert "Traceback" not in done.out + done.err
    assert (tmp_path / "study" / "report.html").is_file()


def test_a_method_that_cannot_work_is_refused_before_any_run(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = ["--method", "addrop@num_train_epochs=1", "--output-dir", str(tmp_path / "study")]
    assert run(["compare", *words, *more]) == 2
    shown = capsys.readouterr()
    assert "cross-tuning would have no AD-DROP epoch" in " ".join(shown.err.split())
    assert "done" not in shown.out
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--method", "plain"], "there is one method only"),
        (["--method", "addrop", "--method", "addrop"], "method 'addrop' is listed 2 times"),
        (["--method", "adrop"], "did you mean 'addrop'"),
        (["--method", "addrop", "--seeds", "0"], "seeds is 0; it must be"),
        (["--method", "addrop", "--until-decided", "--max-seeds", "3"], "max_seeds is 3; it must be at least 12"),
        (["--method", "addrop", "--delta", "-1"], "delta of score is -1"),
        (["--method", "addrop", "--keep", "best"], "keep is 'best'"),
        (["--method", "addrop", "--resample"], "it needs --fraction, --shots or --max"),
        (["--method", "addrop", "--fraction", "2"], "fraction is 2"),
        (["--method", "addrop", "--shots", "8", "--shots", "8"], "shots is 8 is given 2 times"),
        (["--method", "addrop", "--baseline", "rdrop"], "baseline is 'rdrop'"),
        (["--method", "addrop", "--engine", "slurm"], "engine is 'slurm'"),
        (["--method", "addrop", "--address", "a:1"], "only --engine ray uses"),
        (
            ["--method", "addrop", "--worker-timeout", "0.5"],
            "worker_timeout is 0.5; it must be 0 (never), or a number from 1 to 1e+06 minutes",
        ),
        (["--method", "addrop", "--shots", "900"], "shots is 900, but the class"),
    ],
)
def test_wrong_input_raises_one_line_error_and_writes_nothing(
    more: list[str], sentence: str, words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "study"
    assert run(["compare", *words, *more, "--output-dir", str(folder)]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert sentence in shown
    assert "Traceback" not in shown
    assert not list(folder.rglob("*.json")) or not list((folder / "runs").glob("*.json"))


# ---- what is scored --------------------------------------------------------------------------------------------------


def test_scores_on_the_rest_and_over_epochs_are_said_wherever_the_verdict_is(tmp_path: Path) -> None:
    design = design_of(["rdrop"], sizes=("shots=8",), score_on="rest", score_epochs=3)
    records = [
        record_of(
            spec, 0.7 + 0.05 * (spec.method == "rdrop") + 0.002 * (spec.seed % 3), score_on="rest", score_epochs=3,
            resample=True, examples={"train": 16, "validation": 2300 + spec.seed}, available={"train": 2500},
            data={"train": f"t{spec.seed}", "validation": f"v{spec.seed}"},
            predictions={"validation": {"gold": [0, 1], "predicted": [1, 0] if spec.method == "plain" else [0, 1]}},
            texts=["a", "b"],
        )
        for n in range(6) for spec in design.runs(design.cells[0], n)
    ]  # fmt: skip
    analysis = analyse_records(records, design.configuration(), tmp_path)
    sentence = comparison_of(analysis).sentence
    assert "that on all 2,300 to 2,305 labelled examples that were not trained on, other ones for each seed" in sentence
    assert sentence.endswith("this is about models near the end of training, not about the last one alone.")
    scored = "the validation examples and all training examples that were not drawn, mean over the last 3 epochs"
    assert analysis.scored == scored
    for shown in (render_markdown(analysis), render_page(analysis), card_section(analysis), latex_table(analysis)):
        assert scored in shown
    assert not analysis.agreement  # the seeds have no examples in common
    assert not analysis.disagreements
    assert analysis.notes[-1] == (
        "there are no ensembles of the seeds on glue/rte, shots=8: each seed is scored on other examples"
    )
    usual = design_of(["rdrop"], sizes=("shots=8",))
    assert "score_on" not in usual.configuration().to_json()
    assert usual.runs(usual.cells[0], 0)[0].id != design.runs(design.cells[0], 0)[0].id
    other = record_of(usual.runs(usual.cells[0], 9)[0], 0.7, resample=True)
    with pytest.raises(UserError, match="has another score_on than that of run"):
        SameStudy([records[0], other])


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"score_on": "rest"}, "score_on is 'rest', but all training examples are trained on"),
        ({"score_on": "rest", "sizes": ("shots=8",), "keep": "dev"}, "score_on is 'rest', and keep is 'dev'"),
        ({"score_on": "test"}, "score_on is 'test'; it must be one of"),
        ({"score_epochs": 0}, "score_epochs is 0; it must be a whole number of at least 1"),
        ({"score_epochs": 3, "keep": "split"}, "score_epochs is 3, and keep is 'split'"),
    ],
)
def test_what_cannot_be_scored_is_refused(fields: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        design_of(["rdrop"], **fields)


def test_models_are_kept_with_their_own_score_only(tmp_path: Path) -> None:
    design = design_of(["rdrop"], score_epochs=3)
    with pytest.raises(UserError, match="keep_models is on, score_on is 'validation' and score_epochs is 3"):
        compare(design, tmp_path / "study", MadeUpExecutor(noisy({})), seeds=2, keep_models=True)
    assert not (tmp_path / "study").exists()
