"""The search of `attendrop tune`: budgets, splits, pruning, restarts, and what is done with the development set."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attendrop.errors import UserError
from attendrop.lab.records import TuningResult
from attendrop.lab.report.page.words import PAPER_LABEL
from attendrop.lab.statistics.paired import Pairs
from attendrop.lab.statistics.rules import estimate_of
from attendrop.lab.statistics.selection import noise_of_selection
from attendrop.lab.studies.analysis import analyse_records
from attendrop.lab.studies.spec import RunSpec
from attendrop.lab.studies.trials import open_storage
from attendrop.lab.studies.tune import Tuner
from attendrop.lab.studies.tune_design import TuneConfig, make_tune_config
from attendrop.lab.studies.tune_result import summarize
from attendrop.utils.secrets import without_password
from helpers.executors import FunctionExecutor

SHARED: dict[str, Any] = {"model": "m", "task": "glue/rte", "method": ["addrop"]}


def config(**options: Any) -> TuneConfig:
    settings = {**SHARED, **options.pop("settings", {})}
    return make_tune_config(settings, **{"trials": 6, "repeats": 2, "final_seeds": 2, **options})


def field_of(spec: RunSpec, name: str) -> float:
    """A field of the run's method."""
    return float(spec.settings["method"][0].partition(f"{name}=")[2].partition(",")[0])


def good_p(spec: RunSpec) -> float:
    """A score that is best at p = 0.5, the same on every split."""
    return 0.5 if spec.method.startswith("plain") else 0.9 - abs(field_of(spec, "p") - 0.5)


def search(
    config: TuneConfig, folder: Path, executor: FunctionExecutor, stop_after: int | None = None, **options: Any
) -> Tuner:
    """Runs a search, or its first runs."""
    tuner = Tuner(config, open_storage(folder, options.pop("storage", None)), str(folder), **options)
    for record in itertools.islice(executor.results(tuner.next_spec, tuner.on_progress), stop_after):
        tuner.on_record(record)
    return tuner


def test_development_set_is_used_at_the_end_only_and_every_method_has_the_same_budget(tmp_path: Path) -> None:
    settings = config(settings={"method": ["addrop", "rdrop"]}, trials=5, repeats=3)
    executor = FunctionExecutor(lambda spec: 0.5 + 0.01 * (spec.fold or 0), workers=4)
    search(settings, tmp_path, executor)
    folds = [spec.fold for spec in executor.specs]
    first_final = folds.index(None)
    assert all(fold is None for fold in folds[first_final:])
    trials = executor.specs[:first_final]
    assert Counter((spec.method, spec.fold) for spec in trials) == {
        (method, fold): 5 for method in ("plain", "addrop", "rdrop") for fold in range(3)
    }
    assert {spec.keep for spec in executor.specs} == {"last"}
    assert len({spec.settings["learning_rate"] for spec in trials if spec.method == "plain"}) == 5
    # Every trial has the same seeds on the same splits, and final runs have seeds of their own.
    assert {(spec.fold, spec.seed) for spec in trials} == {(0, 42), (1, 43), (2, 44)}
    assert {spec.seed for spec in executor.specs[first_final:]} == {1042, 1043}


def test_score_is_the_mean_over_the_splits_and_the_best_setting_is_chosen(tmp_path: Path) -> None:
    executor = FunctionExecutor(lambda spec: good_p(spec) + 0.1 * (spec.fold or 0))
    tuner = search(config(), tmp_path, executor)
    result = summarize(tuner)
    tried = {trial.number: trial for trial in result.trials if trial.method == "addrop"}
    best = min(tried.values(), key=lambda trial: abs(trial.point["addrop.p"] - 0.5))
    assert result.chosen["addrop"].trial == best.number
    assert best.scores[1] == pytest.approx(best.scores[0] + 0.1)
    assert best.score == pytest.approx(sum(best.scores) / 2)
    final = [spec for spec in executor.specs if spec.fold is None and spec.method == "addrop"]
    assert [spec.settings["method"] for spec in final] == [best.settings["method"]] * 2
    scores = sorted(trial.score for trial in tried.values())
    assert result.dev["addrop"]["median"].score == scores[2]  # the lower one of the two in the middle
    assert result.dev["addrop"]["chosen"].mean == pytest.approx(good_p(final[0]))
    (curve,) = (curve for curve in result.curves if curve.method == "addrop")
    assert curve.k == [1, 2, 3, 4, 5, 6]
    assert curve.expected_best[0] == tried[0].score  # of this one search
    assert curve.expected_best[-1] == pytest.approx(max(scores))
    assert best.versions == {"attendrop": "0"}
    own = [spec for spec in executor.specs if spec.method == "addrop" and spec.trial == best.number]
    assert best.runs == [spec.id for spec in own]


def test_of_equal_scores_the_trial_with_the_smallest_loss_is_chosen(tmp_path: Path) -> None:
    def loss(spec: RunSpec) -> float:
        return 0.7 if spec.method.startswith("plain") else 1 - field_of(spec, "p")

    tuner = search(config(), tmp_path, FunctionExecutor(lambda spec: 0.8, loss=loss))
    trials = tuner.searches["addrop"].all()
    best = max(trials, key=lambda trial: trial.params["addrop.p"])
    assert best.number != 0
    assert tuner.best("addrop").number == best.number
    losses = summarize(tuner).trials[-1].losses
    assert losses == pytest.approx([1 - trials[-1].params["addrop.p"]] * 2)


def test_without_losses_a_lot_decides_between_equal_scores_and_not_the_order(tmp_path: Path) -> None:
    chosen = []
    for seed in range(8):
        folder = tmp_path / str(seed)
        folder.mkdir()
        tuner = search(config(settings={"seed": seed}, repeats=1), folder, FunctionExecutor(lambda spec: 0.8))
        chosen.append(tuner.best("addrop").number)
        assert (
            chosen[-1]
            == search(config(settings={"seed": seed}, repeats=1), folder, FunctionExecutor(good_p))
            .best("addrop")
            .number
        )  # the same again
    assert len(set(chosen)) > 2


def test_a_tuning_curve_is_what_its_sampler_allows(tmp_path: Path) -> None:
    curves = {}
    for sampler in ("random", "qmc", "grid", "tpe"):
        (folder := tmp_path / sampler).mkdir()
        options: dict[str, Any] = {"trials": 30 if sampler == "tpe" else 6, "sampler": sampler}
        spaces = ["p=0.1..0.9:0.4", "q=0.1,0.5", "layers=all", "learning_rate=1e-5"]
        executor = FunctionExecutor(good_p, epochs=4)
        tuner = search(config(spaces=spaces if sampler == "grid" else (), **options), folder, executor)
        result = summarize(tuner)
        (curves[sampler],) = (curve for curve in result.curves if curve.method == "addrop")
        trials = [trial for trial in result.trials if trial.method == "addrop"]
        assert len(curves[sampler].k) == len(trials)
        if sampler in ("qmc", "tpe"):
            scores = [trial.score if trial.state == "finished" else 0.0 for trial in trials]
            assert curves[sampler].expected_best == pytest.approx(list(itertools.accumulate(scores, max)))
    assert {name: of.kind for name, of in curves.items()} == {
        "random": "random", "qmc": "search", "grid": "grid", "tpe": "search",
    }  # fmt: skip
    assert curves["random"].low
    assert not any(curves[name].low for name in ("qmc", "grid", "tpe"))


def test_a_failed_trial_counts_as_one_that_learned_nothing(tmp_path: Path) -> None:
    def score(spec: RunSpec) -> float | str:
        return "the loss is not finite" if spec.method == "addrop" and field_of(spec, "p") > 0.6 else good_p(spec)

    executor = FunctionExecutor(score, majority=0.3)
    result = summarize(search(config(sampler="random", trials=12), tmp_path, executor))
    (curve,) = (curve for curve in result.curves if curve.method == "addrop")
    trials = [trial for trial in result.trials if trial.method == "addrop"]
    scores = [0.3 if trial.score is None else trial.score for trial in trials]
    assert 0 < sum(trial.state == "failed" for trial in trials) < 12
    assert curve.expected_best[0] == pytest.approx(sum(scores) / 12)


def test_the_interval_of_a_search_has_the_noise_of_its_selection(tmp_path: Path) -> None:
    def score(spec: RunSpec) -> float:
        gain = 0.03 + 0.02 * field_of(spec, "p") if spec.method.startswith("addrop") else 0.0
        return round(0.7 + gain + 0.01 * random.Random(spec.id).random(), 6)

    by_repeats = {}
    for repeats in (1, 3):
        (folder := tmp_path / str(repeats)).mkdir()
        executor = FunctionExecutor(score)
        tuner = search(config(repeats=repeats, final_seeds=8), folder, executor)
        records = [executor.record_of(spec) for spec in executor.specs]
        analysis = analyse_records(records, tuner.config.configuration(), None, summarize(tuner))
        result = next(cell.outcomes["score"] for cell in analysis.cells if cell.method == "addrop")
        by_repeats[repeats] = result.comparison
        notes = " ".join(analysis.notes)
        assert ("nothing is known about what another search would have chosen" in notes) is (repeats == 1)
    one, three = by_repeats[1], by_repeats[3]
    assert one is not None
    assert three is not None
    assert one.population is None
    assert three.population is not None
    assert three.interval is not None
    assert three.population[0] < three.interval[0] < three.interval[1] < three.population[1]
    assert "over seeds and the selection of settings" in three.sentence


@pytest.mark.parametrize(("between", "least"), [(0.0, 0.93), (0.5, 0.9), (2.0, 0.93)])
def test_intervals_with_the_noise_of_selection_cover_what_tuning_is_worth(between: float, least: float) -> None:
    generator, covered = np.random.default_rng(0), []
    for _ in range(300):
        worth = generator.normal(0, between, 20)
        scores = worth[:, None] + generator.normal(size=(20, 3))
        of_search = worth[(worth + generator.normal(0, 3**-0.5, (300, 20))).argmax(1)].mean()
        final = worth[scores.mean(1).argmax()] + generator.normal(0, 0.5, 5)
        low, high = estimate_of(Pairs(final, 0, 0, 0.0), noise_of_selection(scores.tolist())).interval(0.05)
        covered.append(low <= of_search <= high)
    assert np.mean(covered) >= least


@pytest.mark.parametrize("sampler", [pytest.param("random", marks=pytest.mark.slow), "qmc", "tpe"])
def test_same_seed_tries_the_same_settings(sampler: str, tmp_path: Path) -> None:
    tried = []
    for number, seed in enumerate((1, 1, 2)):
        folder = tmp_path / str(number)
        folder.mkdir()
        executor = FunctionExecutor(good_p)
        search(config(sampler=sampler, trials=13, repeats=1, settings={"seed": seed}), folder, executor)
        tried.append([[*spec.settings["method"], spec.settings["learning_rate"]] for spec in executor.specs])
    assert tried[0] == tried[1]
    assert tried[0] != tried[2]


def test_tpe_learns_from_the_scores(tmp_path: Path) -> None:
    executor = FunctionExecutor(good_p)
    tuner = search(config(sampler="tpe", trials=40, repeats=1, final_seeds=1), tmp_path, executor)
    distance = [abs(trial.params["addrop.p"] - 0.5) for trial in tuner.searches["addrop"].all()]
    assert len(distance) == 40
    assert sum(distance[-15:]) / 15 < sum(distance[:10]) / 10


def test_bad_trial_is_stopped_early(tmp_path: Path) -> None:
    executor = FunctionExecutor(good_p, epochs=4)
    tuner = search(config(sampler="tpe", trials=30, repeats=3), tmp_path, executor)
    trials = [trial for trial in summarize(tuner).trials if trial.method == "addrop"]
    pruned = [trial for trial in trials if trial.state == "pruned"]
    finished = [trial for trial in trials if trial.state == "finished"]
    assert pruned
    assert all(trial.number >= 5 for trial in pruned)  # the first trials are what others are compared with
    distance = {trial.number: abs(trial.point["addrop.p"] - 0.5) for trial in trials}
    assert min(distance[trial.number] for trial in pruned) > min(distance[trial.number] for trial in finished)
    numbers = {trial.number for trial in pruned}
    runs = Counter(spec.trial for spec in executor.specs if spec.method == "addrop" and spec.fold is not None)
    assert {runs[number] for number in numbers} == {1}  # only their first split was used
    assert {runs[trial.number] for trial in finished} == {3}
    assert tuner.best("addrop").number not in numbers


@pytest.mark.parametrize(("sampler", "workers"), [("qmc", 1), ("grid", 3), ("tpe", 2)])
def test_killed_search_resumes_with_the_same_trials(sampler: str, workers: int, tmp_path: Path) -> None:
    spaces = ["p=0.1..0.9:0.2", "q=0.1,0.5", "layers=all", "learning_rate=1e-5"]
    settings = config(sampler=sampler, trials=12, spaces=spaces)
    whole = FunctionExecutor(good_p, workers)
    (tmp_path / "whole").mkdir()
    expected = summarize(search(settings, tmp_path / "whole", whole))
    parts = tmp_path / "parts"
    parts.mkdir()
    records: dict[str, Any] = {}
    started: list[RunSpec] = []
    for stop_after in (1, 4, 7, 2, 11, None):
        executor = FunctionExecutor(good_p, workers)
        tuner = Tuner(settings, open_storage(parts, None), "me", records)
        for record in itertools.islice(executor.results(tuner.next_spec, tuner.on_progress), stop_after):
            records[record.id] = record  # the driver writes it first
            tuner.on_record(record)
        started += executor.specs
    result = summarize(tuner)
    assert {len(search.all()) for search in tuner.searches.values()} == {12}
    if sampler != "tpe":  # whose choice depends on what was finished when it was asked
        assert result.trials == expected.trials
        assert result.dev == expected.dev
        assert {spec.id for spec in started} == {spec.id for spec in whole.specs}
    again = Counter(spec.id for spec in started)
    assert sum(again.values()) - len(again) <= 5 * workers  # only runs that were under way are repeated


def test_killed_in_the_middle_of_a_line_the_journal_is_repaired(tmp_path: Path) -> None:
    search(config(), tmp_path, FunctionExecutor(good_p), stop_after=5)
    journal = tmp_path / "trials.journal"
    with journal.open("ab") as file:
        file.write(b'{"op_code": 4, "wor')
    (tmp_path / "trials.journal.lock").symlink_to(journal)
    tuner = search(config(), tmp_path, FunctionExecutor(good_p))
    assert {trial.state for trial in summarize(tuner).trials} == {"finished"}


def test_settings_that_come_twice_are_trained_once(tmp_path: Path) -> None:
    settings = config(spaces=["p=0.5", "q=0.3", "layers=all", "learning_rate=1e-5,2e-5"], sampler="random", repeats=1)
    executor = FunctionExecutor(good_p, workers=3)
    tuner = search(settings, tmp_path, executor)
    trials = [spec for spec in executor.specs if spec.fold is not None]
    assert len(trials) == len({spec.id for spec in trials}) == 4
    assert {len(search.finished()) for search in tuner.searches.values()} == {6}


def test_method_with_nothing_to_search_is_trained_once_and_has_a_score(tmp_path: Path) -> None:
    executor = FunctionExecutor(good_p)
    result = summarize(search(config(settings={"method": [], "learning_rate": 1e-5}), tmp_path, executor))
    assert [spec.fold for spec in executor.specs] == [0, 1, None, None]
    assert result.chosen["plain"].score == 0.5
    assert len(result.trials) == 6


def test_failed_trials_are_counted_and_kept_with_their_reason(tmp_path: Path) -> None:
    executor = FunctionExecutor(
        lambda spec: "the loss is not finite" if spec.method == "addrop" and spec.fold else 0.5, 3
    )
    result = summarize(search(config(), tmp_path, executor))
    failed = [trial for trial in result.trials if trial.state == "failed"]
    assert [trial.method for trial in failed] == ["addrop"] * 6
    assert {trial.error for trial in failed} == {"the loss is not finite"}
    assert result.chosen.keys() == {"plain"}


def test_smaller_score_is_better_for_a_loss(tmp_path: Path) -> None:
    executor = FunctionExecutor(good_p, greater_is_better=False)
    result = summarize(search(config(), tmp_path, executor))
    scores = [trial.score for trial in result.trials if trial.method == "addrop"]
    assert result.chosen["addrop"].score == min(scores) > 0


def test_two_drivers_share_one_storage(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'trials.db'}"
    settings = config(trials=7, repeats=1)
    first, second = FunctionExecutor(good_p), FunctionExecutor(good_p)
    one = Tuner(settings, open_storage(tmp_path, url), "first", is_shared=True)
    two = Tuner(settings, open_storage(tmp_path, url), "second", is_shared=True)
    results = first.results(one.next_spec, one.on_progress)
    slow = next(results)  # its trial is still running for the others
    for record in second.results(two.next_spec, two.on_progress):
        two.on_record(record)
    assert two.running_elsewhere == 1
    assert not two.settings  # whoever ends last does the final runs
    assert len(second.specs) == 2 * 7 - 1
    for record in itertools.chain([slow], results):
        one.on_record(record)
    trials = [(spec.method, spec.trial) for spec in first.specs + second.specs if spec.trial is not None]
    assert Counter(trials) == {(method, number): 1 for method in ("plain", "addrop") for number in range(7)}
    assert {len(setting.scores) for setting in one.settings} == {2}
    later = search(settings, tmp_path, FunctionExecutor(good_p), storage=url, is_shared=True)
    assert [setting.trial.number for setting in later.settings] == [setting.trial.number for setting in one.settings]


def test_paper_protocol_selects_on_the_development_set_and_says_so(tmp_path: Path) -> None:
    settings = make_tune_config(SHARED, protocol="paper", final_seeds=2)
    executor = FunctionExecutor(good_p, workers=2)
    result = summarize(search(settings, tmp_path, executor))
    trials = [spec for spec in executor.specs if spec.trial is not None]
    assert {(spec.keep, spec.fold) for spec in trials} == {("dev", None)}
    assert Counter(spec.method for spec in trials) == {"plain (search)": 81, "addrop (search)": 81}
    # Three learning rates are repeated with 27 seeds: plain may choose among as many runs.
    plain = {(spec.settings["learning_rate"], spec.seed) for spec in trials if spec.method == "plain (search)"}
    assert len(plain) == 81
    assert result.protocol == "paper"
    assert result.label == PAPER_LABEL == "paper protocol: selected on the development set"
    assert result.chosen["addrop"].point["addrop.p"] == 0.5
    (heatmap,) = result.heatmaps
    assert (heatmap.method, heatmap.x, heatmap.y, heatmap.baseline) == ("addrop", "p", "q", 0.5)
    assert heatmap.difference[8] == pytest.approx([0.4 - abs(p - 0.5) for p in heatmap.xs])


def test_flags_yaml_and_keywords_give_the_same_runs_and_tokens_are_left_out() -> None:
    keywords = make_tune_config({**SHARED, "num_train_epochs": 3, "seed": 1})
    flags = make_tune_config({**SHARED, "num-train-epochs": "3", "seed": "1", "hub_token": "secret", "bf16": None})
    assert keywords == flags
    point = {"learning_rate": 1e-5}
    assert [s.id for s in keywords.trial_specs("plain", point, 0)] == [
        s.id for s in flags.trial_specs("plain", point, 0)
    ]
    assert "secret" not in str(flags)
    assert keywords.study_name("plain") == flags.study_name("plain") != keywords.study_name("addrop")


BAD: list[tuple[dict[str, Any], str]] = [
    ({"trials": 0}, "trials is 0; it must be a whole number of at least 1"),
    ({"repeats": 0}, "repeats is 0; it must be a whole number of at least 1"),
    ({"final_seeds": 0}, "final_seeds is 0"),
    ({"sampler": "cmaes"}, "sampler is 'cmaes'; it must be one of 'auto', 'grid', 'random', 'qmc', 'tpe'"),
    ({"protocol": "papers"}, "protocol is 'papers'; it must be one of 'honest', 'paper'"),
    ({"sampler": "grid", "trials": 20}, "trials is 20, and the grid has 250 points"),
    ({"settings": {"method": ["addrop", "addrop"]}}, "method 'addrop' is listed 2 times"),
    ({"settings": {"method": ["adrop"]}}, "did you mean 'addrop'?"),
    ({"settings": {"preset": "paper"}}, "preset is 'paper'; it is for `attendrop train`"),
    ({"settings": {"model": ""}}, "no model is given"),
    ({"settings": {"seed": "one"}}, "seed is 'one'; it must be a whole number"),
    ({"settings": {"learnin_rate": 1}}, "did you mean 'learning_rate'?"),
]


@pytest.mark.parametrize(("options", "message"), BAD)
def test_wrong_option_is_named_in_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as caught:
        config(**options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "url",
    ["postgresql://u:secret@localhost:1/x", "sqlite:////no/such/folder/x.db", "redis://localhost:1/0", "nonsense://x"],
)
def test_storage_that_cannot_be_reached_is_named_in_one_sentence(url: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        open_storage(tmp_path, url)
    message = str(caught.value)
    assert message.startswith(f"storage is {without_password(url)!r}, which cannot be used (")
    assert "secret" not in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("sampler", "greater_is_better"), [("qmc", True), pytest.param("tpe", False, marks=pytest.mark.slow)]
)
def test_a_search_that_is_killed_after_any_of_its_writes_starts_again(
    sampler: str, greater_is_better: bool, tmp_path: Path
) -> None:
    spaces = ["p=0.1,0.5", "q=0.1", "layers=all", "learning_rate=1e-5"]
    settings = config(sampler=sampler, trials=2, repeats=1, final_seeds=1, spaces=spaces)

    def searched(folder: Path, finished: dict[str, Any]) -> tuple[TuningResult, list[list[str]]]:
        """Return the result of a search, and the journal when each record was written."""
        executor, journals = FunctionExecutor(good_p, greater_is_better=greater_is_better), []
        tuner = Tuner(settings, open_storage(folder, None), "me", finished)
        for record in executor.results(tuner.next_spec, tuner.on_progress):
            finished[record.id] = record  # the driver writes it first
            journals.append((folder / "trials.journal").read_text().splitlines(keepends=True))
            tuner.on_record(record)
        return summarize(tuner), journals

    records: dict[str, Any] = {}
    expected, journals = searched(tmp_path, records)
    lines = (tmp_path / "trials.journal").read_text().splitlines(keepends=True)
    for count in [*range(3, 12), *range(12, len(lines), 12)]:  # the first trial of each method, and some of the others
        folder = tmp_path / str(count)
        folder.mkdir()
        (folder / "trials.journal").write_text("".join(lines[:count]))
        written = sum(len(journal) <= count for journal in journals)
        result, _ = searched(folder, dict(list(records.items())[:written]))
        assert result.chosen == expected.chosen, count
        assert result.greater_is_better is greater_is_better
