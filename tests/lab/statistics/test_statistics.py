"""Statistics of paired runs: against scipy, slow literal versions and known values, and by simulated studies."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from scipy import stats

from attendrop.lab.statistics import calibration
from attendrop.lab.statistics.over_tasks import hierarchical_bootstrap, summarize_tasks
from attendrop.lab.statistics.paired import (
    bca_interval,
    equivalence_power_of,
    equivalence_test,
    find_resolution,
    holm,
    make_pairs,
    minimum_detectable_effect,
    power_of,
    probability_of_improvement,
    seeds_for_equivalence,
    seeds_to_detect,
    sign_flip_test,
    t_interval,
    t_test,
)
from attendrop.lab.statistics.rules import Collapses, bound_confidence, collapse_bound, estimate_of, items_of
from attendrop.lab.statistics.sequential import SequentialDesign
from attendrop.lab.statistics.tuning_curves import expected_best, tuning_curve
from attendrop.lab.statistics.verdict import Comparison, Question, judge, judge_family
from attendrop.lab.tasks import METRICS
from scripts import simulate_calibration
from scripts.simulate_statistics import POINT, Simulation, bounds, collapses_of, crossed, moments_of

DESIGN = SequentialDesign(max_seeds=40)
QUESTION = Question(delta=0.01, outcome="accuracy", baseline="plain")


def draw(n: int, mean: float = 0.0, deviation: float = 0.01, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(mean, deviation, n)


def exactly(n: int, mean: float, deviation: float) -> dict[int, float]:
    """Values with exactly this mean and standard deviation, of no particular step."""
    values = draw(n)
    values = (values - values.mean()) / values.std(ddof=1)
    return dict(enumerate((mean + deviation * values).tolist()))


def zeros(n: int) -> dict[int, float]:
    return dict.fromkeys(range(n), 0.0)


def judge_differences(values: dict[int, float], **arguments: Any) -> Comparison:
    return judge(values, zeros(len(values)), **{"delta": 0.01, "resolution": 0.0} | arguments)


# ---- pairs ----------------------------------------------------------------------------------------------------


def test_pairs_leave_out_and_count_failed_and_single_runs() -> None:
    values = {1: 0.5, 2: None, 3: math.nan, 4: math.inf, 5: 0.75, 7: 0.5}
    baseline = {5: 0.25, 1: 0.25, 2: 0.5, 3: 0.5, 4: 0.5, 6: 0.5}
    pairs = make_pairs(values, baseline)
    assert pairs.differences.tolist() == [0.5, 0.25]
    assert (len(pairs), pairs.failed, pairs.unpaired) == (2, 3, 2)
    assert len(make_pairs({}, {})) == 0


def test_resolution_is_the_common_step_of_the_values() -> None:
    assert find_resolution(np.array([200, 203, 203, 207]) / 277) == 0.0  # 3 and 4 have no common step that is seen
    assert find_resolution(np.array([200, 201, 203, 207]) / 277) == pytest.approx(1 / 277)
    assert find_resolution(draw(10)) == 0.0
    assert find_resolution(np.array([0.7, 0.7])) == 0.0
    assert find_resolution(np.zeros(0)) == 0.0


def test_equal_discrete_differences_keep_a_positive_deviation() -> None:
    """A true difference of 0.3 steps is often 0 in five seeds of five; without the step it would pass for none."""
    differences = np.zeros(5)
    assert t_interval(differences) == (0.0, 0.0)
    low, high = t_interval(differences, resolution=0.02)
    assert high == -low == pytest.approx(stats.t.ppf(0.975, 4) * 0.01 / math.sqrt(5))
    assert judge(zeros(30), zeros(30), delta=0.001).verdict == "no difference"
    assert judge(zeros(30), zeros(30), delta=0.001, resolution=0.02).verdict == "undecided"


# ---- intervals and tests --------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 5, 10, 30])
def test_t_interval_and_tests_are_those_of_scipy(n: int) -> None:
    differences = draw(n, 0.004)
    expected = stats.ttest_1samp(differences, 0.0)
    assert t_test(differences) == pytest.approx(expected.pvalue)
    assert t_interval(differences, 0.9) == pytest.approx(tuple(expected.confidence_interval(0.9)))
    one_sided = [
        stats.ttest_1samp(differences, -0.01, alternative="greater").pvalue,
        stats.ttest_1samp(differences, 0.01, alternative="less").pvalue,
    ]
    assert equivalence_test(differences, 0.01) == pytest.approx(max(one_sided))


def test_differences_without_deviation() -> None:
    same, nothing = np.full(6, 0.25), np.zeros(6)
    assert (t_test(same), t_test(nothing)) == (0.0, 1.0)
    assert t_test(same, against=0.25) == 1.0
    assert (equivalence_test(nothing, 0.1), equivalence_test(same, 0.1), equivalence_test(same, 0.25)) == (0, 1, 0.5)
    assert bca_interval(same) == (0.25, 0.25)


def literal_sign_flip(differences: list[float]) -> float:
    total = abs(sum(differences)) - 1e-9
    choices = list(itertools.product((-1, 1), repeat=len(differences)))
    hits = [abs(sum(s * d for s, d in zip(signs, differences, strict=True))) >= total for signs in choices]
    return sum(hits) / len(choices)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("in_steps", [False, True])
def test_sign_flip_test_enumerates_all_signs(seed: int, in_steps: bool) -> None:
    for n in (1, 2, 5, 9):
        differences = draw(n, 0.5, 1.0, seed)
        differences = np.round(differences * 2) / 10 if in_steps else differences  # many equal sums, and zeros
        assert sign_flip_test(differences) == pytest.approx(literal_sign_flip(differences.tolist()))


def test_sign_flip_test_at_its_limits() -> None:
    assert sign_flip_test(np.ones(5)) == 2 / 2**5
    assert sign_flip_test(np.zeros(5)) == 1.0
    assert sign_flip_test(np.array([1.0, -1.0])) == 1.0
    assert sign_flip_test(np.ones(40)) == 2 / 2**40
    expected = stats.permutation_test(
        (draw(12, 0.3, 1.0),), np.mean, permutation_type="samples", n_resamples=5000
    ).pvalue  # 2^12 choices: exact
    assert sign_flip_test(draw(12, 0.3, 1.0)) == pytest.approx(expected)


def test_sign_flip_test_with_many_pairs_draws_signs() -> None:
    differences = draw(60, 0.3, 1.0)
    drawn = sign_flip_test(differences)
    assert drawn == sign_flip_test(differences)  # a fixed seed
    assert drawn == pytest.approx(t_test(differences), abs=0.01)
    assert sign_flip_test(np.ones(60)) == 1 / 100_001  # never 0


def test_holm_on_its_textbook_example() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([0.02]) == [0.02]
    assert holm([]) == []


def test_bca_interval_is_that_of_scipy() -> None:
    values = draw(100, 1.0, 1.0)
    expected = stats.bootstrap((values,), np.mean, n_resamples=2000, rng=np.random.default_rng(0)).confidence_interval
    assert bca_interval(values) == pytest.approx((expected.low, expected.high))


def test_probability_of_improvement_has_the_interval_of_wilson() -> None:
    share, interval = probability_of_improvement(np.array([1.0, 2.0, -1.0, 3.0, 1.0]))
    expected = stats.binomtest(4, 5).proportion_ci(method="wilson")
    assert share == 0.8
    assert interval == pytest.approx((expected.low, expected.high))
    assert probability_of_improvement(np.array([1.0, 0.0]))[0] == 0.75
    assert probability_of_improvement(np.ones(5))[1][1] == pytest.approx(1.0)


# ---- power ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("effect", "pairs", "alpha"), [(0.5, 10, 0.05), (1.5, 5, 0.01), (0.1, 200, 0.05), (0, 8, 0.05)]
)
def test_power_is_that_of_the_noncentral_t_distribution(effect: float, pairs: int, alpha: float) -> None:
    limit, shift = stats.t.ppf(1 - alpha / 2, pairs - 1), effect * math.sqrt(pairs)
    expected = stats.nct.sf(limit, pairs - 1, shift) + stats.nct.cdf(-limit, pairs - 1, shift)
    assert power_of(2 * effect, 2.0, pairs, alpha) == pytest.approx(expected, abs=1e-6)


def test_effect_and_seeds_have_the_power_that_was_asked_for() -> None:
    effect = minimum_detectable_effect(0.02, 10)
    assert power_of(effect, 0.02, 10) == pytest.approx(0.8)
    # The usual figure of textbooks: 34 pairs find half a standard deviation.
    assert seeds_to_detect(0.01, 0.02) == 34
    assert power_of(0.01, 0.02, 33) < 0.8 < power_of(0.01, 0.02, 34)
    needed = seeds_for_equivalence(0.01, 0.02)
    assert needed is not None
    assert equivalence_power_of(0.01, 0.02, needed - 1) < 0.8 <= equivalence_power_of(0.01, 0.02, needed)


def test_effects_and_seeds_in_extreme_cases() -> None:
    assert minimum_detectable_effect(0.0, 5) == 0.0
    assert 0 < minimum_detectable_effect(1.0, 2) < 100
    assert seeds_to_detect(0.0, 1.0) is None
    assert seeds_to_detect(1e-6, 1.0) is None
    assert seeds_to_detect(1.0, 0.0) == 2
    assert seeds_to_detect(1000.0, 1.0) == 2
    assert seeds_for_equivalence(0.0, 1.0) is None


def test_equivalence_power_by_simulation() -> None:
    samples = np.random.default_rng(0).normal(size=(20_000, 20))
    reach = stats.t.ppf(0.975, 19) * samples.std(-1, ddof=1) / math.sqrt(20)
    measured = float(np.mean(np.abs(samples.mean(-1)) + reach < 0.8))
    assert equivalence_power_of(0.8, 1.0, 20) == pytest.approx(measured, abs=0.015)


# ---- verdicts -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mean", "deviation", "verdict"),
    [
        (0.02, 0.01, "helps"),
        (-0.02, 0.01, "hurts"),
        (0.001, 0.005, "no difference"),
        (0.004, 0.002, "no difference"),  # above 0, but below delta
        (0.005, 0.03, "undecided"),
    ],
)
def test_verdicts_follow_from_the_interval(mean: float, deviation: float, verdict: str) -> None:
    judged = judge_differences(exactly(30, mean, deviation))
    assert judged.verdict == verdict
    assert judged.difference == pytest.approx(mean)
    mirrored = judge_differences(exactly(30, mean, deviation), greater_is_better=False)
    opposite = {"helps": "hurts", "hurts": "helps"}
    assert mirrored.verdict == opposite.get(verdict, verdict)
    assert mirrored.interval == judged.interval


@pytest.mark.parametrize("seed", range(40))
def test_verdict_interval_p_and_sentence_agree(seed: int) -> None:
    generator = np.random.default_rng(seed)
    differences = generator.normal(generator.normal(0, 0.01), 0.01, generator.integers(5, 50))
    judged = judge(dict(enumerate(differences)), zeros(len(differences)), delta=0.01)
    assert judged.interval is not None
    assert judged.p is not None
    low, high = judged.interval
    assert (judged.p <= 0.05) == (low > 0 or high < 0)
    is_within = low > -0.01 and high < 0.01
    assert (judged.verdict == "no difference") == (is_within and len(differences) >= 29)
    assert (judged.verdict in ("helps", "hurts")) == (judged.p <= 0.05 and not is_within)
    assert (judged.seeds_needed is not None) == (judged.verdict == "undecided")
    words = {"no difference": "makes no difference that matters", "undecided": "Undecided: "}
    assert words.get(judged.verdict, f"{judged.verdict}: ") in judged.sentence
    assert f"{len(differences)} seeds" in judged.sentence
    json.dumps(judged.to_dict(), allow_nan=False)


@pytest.mark.parametrize("n", range(5))
def test_fewer_than_five_seeds_give_figures_and_no_verdict(n: int) -> None:
    judged = judge_differences(exactly(n, 0.1, 0.001) if n > 1 else dict.fromkeys(range(n), 0.1), baseline_name="plain")
    assert judged.verdict == "too few seeds"
    assert judged.seeds_needed == 5 - n
    assert (judged.difference is None) == (n < 1)
    assert (judged.interval is None) == (judged.p is None) == (n < 2)
    assert "and at least 5 are needed" in judged.sentence
    assert ("in 1 of 8 studies" in judged.sentence) == (n == 4)
    json.dumps(judged.to_dict(), allow_nan=False)


def test_failed_runs_are_counted_and_mentioned() -> None:
    values: dict[Any, float | None] = {**exactly(6, 0.02, 0.005), 6: None, 7: math.nan}
    judged = judge(values, zeros(9), delta=0.01)
    assert (judged.verdict, judged.pairs, judged.failed, judged.unpaired) == ("undecided", 6, 2, 1)
    assert "The interval excludes 0, but 2 of 8 runs of the method and 0 of the baseline collapsed" in judged.sentence
    both = judge(values, {**zeros(9), 6: None, 7: None}, delta=0.01)
    assert (both.verdict, both.failed) == ("helps", 2)
    assert "2 seeds are left out because a run failed." in judged.sentence
    assert "1 seed is left out because only one of the two has run." in judged.sentence


def test_constant_differences() -> None:
    nothing = judge(zeros(30), zeros(30), delta=0.01)
    assert (nothing.verdict, nothing.interval, nothing.p) == ("no difference", (0.0, 0.0), 1.0)
    always = judge(dict.fromkeys(range(5), 0.75), dict.fromkeys(range(5), 0.5), delta=0.01)
    assert (always.verdict, always.difference) == ("helps", 0.25)
    json.dumps(always.to_dict(), allow_nan=False)


def test_holm_over_methods_can_turn_a_verdict() -> None:
    weak = exactly(10, 0.0075, 0.01)
    alone = judge_family({"weak": weak}, zeros(10), QUESTION, 0.0)["weak"]
    others = {f"other {i}": exactly(10, 0.002, 0.02) for i in range(3)}
    among = judge_family({"weak": weak, **others}, zeros(10), QUESTION, 0.0)["weak"]
    assert (alone.verdict, among.verdict) == ("helps", "undecided")
    assert among.p == alone.p
    assert among.interval == alone.interval
    assert among.p_adjusted == pytest.approx(4 * alone.p)
    assert "The interval excludes 0, but p is above 0.05 after correction for 4 methods." in among.sentence
    # A method without enough seeds is not tested, and costs the others nothing.
    with_few = judge_family({"weak": weak, "few": exactly(3, 1, 1)}, zeros(10), QUESTION, 0.0)
    assert with_few["weak"].p_adjusted == alone.p
    assert with_few["few"].verdict == "too few seeds"


def test_seeds_needed_settle_the_verdict() -> None:
    """With as many seeds and the same mean and deviation, the verdict is there."""
    for mean in (0.012, 0.001):
        judged = judge_differences(exactly(6, mean, 0.02))
        assert judged.verdict == "undecided"
        assert judged.seeds_needed is not None
        assert f"About {judged.seeds_needed} more seeds would settle it." in judged.sentence
        assert judge_differences(exactly(6 + judged.seeds_needed, mean, 0.02)).verdict != "undecided"


def test_sentences_word_by_word() -> None:
    judged = judge_family({"addrop": exactly(10, 0.02, 0.01)}, zeros(10), QUESTION, 0.0)["addrop"]
    assert judged.sentence == (
        "addrop helps: compared with plain, it raises the accuracy by 0.02 (95 % interval +0.0128 to +0.0272; "
        "p < 0.001; 10 seeds). With 10 seeds none collapsed: up to 26 % of runs may."
    )
    judged = judge_family({"addrop": exactly(5, 0.005, 0.01)}, zeros(5), QUESTION, 0.0)["addrop"]
    assert judged.sentence == (
        "Undecided: the accuracy of addrop differs from that of plain by +0.005 (95 % interval -0.00742 to +0.0174; "
        "p = 0.33; 5 seeds). The interval contains 0 and reaches beyond ±0.01. About 24 more seeds would settle it."
    )


@pytest.mark.parametrize(("field", "value"), [("delta", -1.0), ("delta", math.nan), ("confidence", 1.0)])
def test_invalid_questions_are_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field} is {value}; it must be"):
        Question(**{"delta": 0.01, field: value})


# ---- while seeds are being added ------------------------------------------------------------------------------


def test_levels_spend_the_error_rate_and_no_more() -> None:
    """The chain of angles against a simulation of the t tests themselves."""
    counts = np.arange(12, 41)
    levels = np.array([DESIGN.level(int(n)) for n in counts])
    assert levels[0] == pytest.approx(0.05 * (12 / 40) ** 5)
    assert np.all((levels > 0) & (levels < 0.05))
    values = np.random.default_rng(0).normal(size=(40_000, 40))
    means = np.cumsum(values, 1)[:, 11:] / counts
    variances = (np.cumsum(values**2, 1)[:, 11:] - counts * means**2) / (counts - 1)
    alarms = np.abs(means) / np.sqrt(variances / counts) >= stats.t.ppf(1 - levels / 2, counts - 1)
    spent = np.maximum.accumulate(alarms, axis=1).mean(0)
    assert spent[-1] == pytest.approx(0.05, abs=0.004)  # 3.7 standard errors
    assert spent[18] == pytest.approx(0.05 * 0.75**5, abs=0.002)  # after 30 of 40 seeds


def test_repeated_p_is_the_inverse_of_the_level() -> None:
    for n, alpha in itertools.product((12, 17, 40), (0.05, 0.0125, 0.3, 1e-4)):
        assert DESIGN.repeated_p(DESIGN.level(n, alpha), n) == pytest.approx(alpha)
    assert DESIGN.repeated_p(1.0, 20) == 1.0
    assert DESIGN.repeated_p(0.0, 20) == 0.0
    assert DESIGN.repeated_p(1e-12, 20) < 1e-8


def test_invalid_designs_and_looks_are_refused() -> None:
    with pytest.raises(ValueError, match="max_seeds is 3; it must be at least 12"):
        SequentialDesign(max_seeds=3)
    with pytest.raises(ValueError, match="exponent is 0; it must be above 0"):
        SequentialDesign(exponent=0)
    with pytest.raises(ValueError, match="a look after 41 seeds is outside of the plan, 12 to 40"):
        DESIGN.level(41)


@pytest.mark.parametrize("n", [12, 20, 40])
def test_verdicts_of_looks_follow_from_the_repeated_interval(n: int) -> None:
    families = [{"a": exactly(n, mean, 0.01), "b": exactly(n, 0, 0.01)} for mean in np.linspace(-0.03, 0.03, 13)]
    for family in families:
        judged = judge_family(family, zeros(n), QUESTION, 0.0, DESIGN)["a"]
        assert judged.interval is not None
        low, high = judged.interval
        fixed = judge_family(family, zeros(n), QUESTION, 0.0)["a"].interval
        assert fixed is not None
        assert low < fixed[0] < fixed[1] < high
        differences = np.array(list(family["a"].values()))
        by_t = t_interval(differences, 1 - DESIGN.level(n, 0.05 / 2))
        assert low - 1e-12 <= by_t[0] < by_t[1] <= high + 1e-12  # wider on the side of the skew
        assert low == pytest.approx(by_t[0]) or high == pytest.approx(by_t[1])
        assert judged.p_adjusted >= min(1.0, 2 * DESIGN.repeated_p(t_test(differences), n)) - 1e-9
        is_within = low > -0.01 and high < 0.01
        expected = (
            "no difference" if is_within and n >= 29 else "helps" if low > 0 else "hurts" if high < 0 else "undecided"
        )
        assert judged.verdict == expected
        assert "after correction for 2 methods and repeated looks" in judged.sentence
        json.dumps(judged.to_dict(), allow_nan=False)


# ---- over tasks -----------------------------------------------------------------------------------------------


def test_summary_over_tasks() -> None:
    generator = np.random.default_rng(0)

    def tasks(count: int, mean: float, deviation: float) -> dict[str, Any]:
        return {f"task {i}": generator.normal(mean, deviation, 8) for i in range(count)}

    summaries = summarize_tasks(
        {
            "good": tasks(6, 0.03, 0.01),
            "same": tasks(6, 0.0, 0.005),
            "bad": {**tasks(2, -0.03, 0.01), "few": np.ones(3)},
            "few": {"few": np.ones(3)},
        },
        QUESTION,
    )
    assert [of.verdict for of in summaries.values()] == ["helps", "no difference", "hurts", "too few seeds"]
    assert [of.tasks for of in summaries.values()] == [6, 6, 2, 0]
    assert "nothing follows for other tasks, which takes at least 5." in summaries["bad"].sentence
    assert summaries["bad"].new_task is None
    assert "1 task is left out because of too few seeds." in summaries["bad"].sentence
    assert "On one new task, with as many seeds, the 95 % interval is +0.0" in summaries["good"].sentence
    assert "correction for 3 methods" in summaries["good"].sentence
    json.dumps([of.to_dict() for of in summaries.values()], allow_nan=False)


def test_summary_of_one_task_is_the_t_interval_of_its_seeds() -> None:
    differences = draw(9, 0.005)
    summary = summarize_tasks({"a": {"only": differences}}, QUESTION)["a"]
    assert summary.interval == pytest.approx(t_interval(differences))
    assert summary.p == pytest.approx(t_test(differences))


def test_summary_of_these_tasks_has_the_noise_of_their_seeds_alone() -> None:
    generator = np.random.default_rng(0)
    levels = (0.03, 0.04, 0.02, 0.06, 0.4)
    tasks = {name: level + generator.normal(0, 0.01, 20) for name, level in zip("uvxyz", levels, strict=True)}
    other, these = (summarize_tasks({"a": tasks}, QUESTION, only_these=only)["a"] for only in (False, True))
    assert (other.verdict, these.verdict) == ("undecided", "helps")
    assert these.interval is not None
    error = math.sqrt(sum(of.var(ddof=1) / 20 for of in tasks.values())) / 5
    assert these.interval[1] - these.interval[0] == pytest.approx(2 * 2.0 * error, rel=0.01)
    assert "about other seeds on these 5 tasks: nothing follows for other tasks." in these.sentence


def test_summary_of_constant_differences() -> None:
    summaries = summarize_tasks(
        {"a": dict.fromkeys("uvxyz", np.zeros(5)), "b": dict.fromkeys("xy", np.ones(5))}, QUESTION
    )
    assert [of.verdict for of in summaries.values()] == ["no difference", "helps"]


def test_hierarchical_bootstrap_has_the_deviation_of_the_mean_over_tasks() -> None:
    generator = np.random.default_rng(0)
    tasks = list(generator.normal(generator.normal(0, 2, (6, 1)), 1, (6, 10)))
    means = np.array([of.mean() for of in tasks])
    assert hierarchical_bootstrap(tasks, 20_000).std() == pytest.approx(means.std(ddof=1) / math.sqrt(6), rel=0.03)


def test_hierarchical_bootstrap_of_tasks_with_the_same_mean_has_the_deviation_of_the_seeds() -> None:
    values = np.array(list(exactly(5, 0.0, 1.0).values()))
    assert hierarchical_bootstrap([values] * 4, 20_000).std() == pytest.approx(1 / math.sqrt(5 * 4), rel=0.03)


def test_intervals_over_tasks_cover() -> None:
    """Exactly as stated if tasks differ, and more often if they do not."""
    generator, studies = np.random.default_rng(0), 500
    for between, most in ((2.0, 0.98), (0.0, 1.0)):
        effects = generator.normal(0, between, (studies, 5, 1))
        samples = generator.normal(effects, 1, (studies, 5, 6))
        intervals = [summarize_tasks({"a": dict(enumerate(of))}, QUESTION, draws=300)["a"].interval for of in samples]
        covered = np.mean([of is not None and of[0] <= 0 <= of[1] for of in intervals])
        assert 0.92 <= covered <= most


@pytest.mark.parametrize("between", [0.0, 0.3, 1.0, 3.0])
def test_intervals_of_a_new_task_and_of_shrunk_tasks_cover(between: float) -> None:
    generator, of_new, of_tasks = np.random.default_rng(3), [], []
    for _ in range(300):
        effects = generator.normal(0, between, 9)
        values = generator.normal(effects[:, None], 1, (9, 6))
        summary = summarize_tasks({"a": dict(zip("abcdefghi", values[:8], strict=False))}, QUESTION, draws=200)["a"]
        assert summary.new_task is not None
        of_new.append(summary.new_task[0] <= values[8].mean() <= summary.new_task[1])
        intervals = summary.shrunk.values()
        of_tasks += [low <= true <= high for (_, low, high), true in zip(intervals, effects, strict=False)]
    assert np.mean(of_new) >= 0.93
    assert np.mean(of_tasks) >= 0.93


def test_estimates_of_tasks_are_shrunk_as_their_noise_explains() -> None:
    values = {name: place + np.array([*exactly(8, 0.0, 1.0).values()]) for place, name in enumerate("abcdef")}
    shrunk = summarize_tasks({"a": values}, QUESTION)["a"].shrunk
    pull = 3 / 5 * (1 / 8) / (1 / 8 + (3.5 - 1 / 8))  # Morris: (k - 3)/(k - 1) of the noise's share
    assert [of[0] for of in shrunk.values()] == pytest.approx([2.5 + (1 - pull) * (k - 2.5) for k in range(6)])


def test_the_noise_of_test_examples_and_collapses_count_over_tasks_too() -> None:
    tasks = {name: np.full(8, 0.02) for name in "ab"}
    plain, noisy = (
        summarize_tasks({"m": tasks}, QUESTION, item_errors={"m": of})["m"] for of in ({}, dict.fromkeys("ab", 0.03))
    )
    assert (plain.verdict, noisy.verdict) == ("helps", "undecided")
    same = {name: np.zeros(8) for name in "ab"}
    few, many = (summarize_tasks({"m": same}, QUESTION, collapses={"m": Collapses(of, 0, 0)})["m"] for of in (16, 40))
    assert (few.verdict, many.verdict) == ("undecided", "no difference")
    assert 'with 16 paired runs none collapsed: up to 17 % of runs may: "no difference" needs at most' in few.sentence


# ---- tuning curves --------------------------------------------------------------------------------------------


def test_expected_best_is_the_mean_over_all_choices_of_trials() -> None:
    scores = draw(7, 0.5, 0.1)
    literal = [np.mean([max(of) for of in itertools.combinations(scores, k)]) for k in range(1, 8)]
    assert expected_best(scores).tolist() == pytest.approx(literal)
    assert expected_best(np.linspace(0, 1, 500))[-1] == pytest.approx(1.0)


def test_tuning_curve_of_losses_is_that_of_scores_upside_down() -> None:
    scores = draw(8, 0.5, 0.1)
    curve = tuning_curve(scores)
    mirrored = tuning_curve(1 - scores, greater_is_better=False)
    assert mirrored.expected_best == pytest.approx([1 - value for value in curve.expected_best])
    assert mirrored.low == pytest.approx([1 - value for value in curve.high])
    assert list(curve.to_dict()) == ["k", "expected_best", "low", "high"]


def test_tuning_band_contains_the_true_curve() -> None:
    generator, n = np.random.default_rng(0), 20
    truth = np.maximum.accumulate(generator.beta(8, 2, (40_000, n)), axis=1).mean(0)
    curves = [tuning_curve(generator.beta(8, 2, n)) for _ in range(300)]
    inside = [np.all((np.array(of.low) <= truth) & (truth <= np.array(of.high))) for of in curves]
    assert np.mean(inside) >= 0.93
    for curve in curves[:20]:
        assert np.all(np.diff(curve.expected_best) >= 0)
        assert np.all(np.array(curve.low) <= curve.expected_best)
        assert np.all(np.array(curve.expected_best) <= curve.high)
    assert np.mean([of.expected_best for of in curves], axis=0) == pytest.approx(truth, abs=0.01)  # unbiased


def test_invalid_scores_of_a_tuning_curve_are_refused() -> None:
    for scores in ([], [0.5, math.nan]):
        with pytest.raises(ValueError, match="must be at least one finite number"):
            tuning_curve(scores)
    with pytest.raises(ValueError, match=r"support is \(0.0, 1.0\); it must contain all scores, 0.5 to 2"):
        tuning_curve([0.5, 2.0])
    assert tuning_curve([0.5]).expected_best == [0.5]


# ---- calibration ----------------------------------------------------------------------------------------------

PROBABILITIES = np.array([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.3, 0.3, 0.4], [0.9, 0.05, 0.05]])
LABELS = np.array([0, 2, 2, 0])


def test_losses_by_hand() -> None:
    assert calibration.log_loss(PROBABILITIES, LABELS) == pytest.approx(-np.log([0.7, 0.1, 0.4, 0.9]).mean())
    squares = [0.09 + 0.04 + 0.01, 0.01 + 0.64 + 0.81, 0.09 + 0.09 + 0.36, 0.01 + 0.0025 + 0.0025]
    assert calibration.brier_score(PROBABILITIES, LABELS) == pytest.approx(sum(squares) / 4)
    assert math.isfinite(calibration.log_loss(np.array([[1.0, 0.0]]), np.array([1])))


def test_calibration_error_by_hand() -> None:
    """Two bins by width: [0.4], wide of 0.6 from right; [0.7, 0.8, 0.9], of which two are right."""
    error = (1 * abs(1 - 0.4) + 3 * abs(2 / 3 - 0.8)) / 4
    assert calibration.calibration_error(PROBABILITIES, LABELS, bins=2) == pytest.approx(error)
    table = calibration.reliability(PROBABILITIES, LABELS, bins=2)
    assert (table.examples, table.low, table.high) == ([1, 3], [0.0, 0.5], [0.5, 1.0])
    # Two bins of two examples: [0.4, 0.7], both right; [0.8, 0.9], one right.
    error = (2 * abs(1 - 0.55) + 2 * abs(0.5 - 0.85)) / 4
    assert calibration.calibration_error(PROBABILITIES, LABELS, 2, equal_mass=True) == pytest.approx(error)
    certain = calibration.reliability(np.array([[0.0, 1.0]]), np.array([1]))
    assert (certain.examples, certain.high) == ([1], [1.0])


def test_calibrated_probabilities_have_a_small_error() -> None:
    generator = np.random.default_rng(0)
    probabilities = generator.dirichlet(np.ones(3), 20_000)
    labels = (generator.random((20_000, 1)) > probabilities.cumsum(1)).sum(1)
    assert calibration.calibration_error(probabilities, labels) < 0.015
    assert calibration.calibration_error(probabilities, labels, equal_mass=True) < 0.015
    assert abs(calibration.debiased_calibration_error(probabilities, labels)) < 0.01


def test_temperature_corrects_overconfident_logits() -> None:
    generator = np.random.default_rng(0)
    logits = generator.normal(0, 2, (20_000, 3))
    labels = (generator.random((20_000, 1)) > calibration.softmax(logits).cumsum(1)).sum(1)
    temperature = calibration.fit_temperature(3 * logits, labels)
    assert temperature == pytest.approx(3, rel=0.05)
    before, after = calibration.softmax(3 * logits), calibration.softmax(3 * logits, temperature)
    assert calibration.log_loss(after, labels) < calibration.log_loss(before, labels)
    assert np.isfinite(calibration.softmax(np.array([[1e4, -1e4]]))).all()


def test_scaled_probabilities_use_the_temperature_of_the_other_folds() -> None:
    generator = np.random.default_rng(1)
    logits, labels = generator.normal(0, 3, (52, 3)), generator.integers(0, 3, 52)
    scaled = calibration.scaled_probabilities(logits, labels)
    for first in range(5):
        others = np.arange(52) % 5 != first
        temperature = calibration.fit_temperature(logits[others], labels[others])
        assert np.allclose(scaled[first::5], calibration.softmax(logits[first::5], temperature))
    assert np.allclose(calibration.scaled_probabilities(logits[:1], labels[:1]), calibration.softmax(logits[:1]))


def test_temperature_stays_moderate_where_every_prediction_is_right() -> None:
    logits, labels = np.tile([[3.0, 0.0], [0.0, 3.0]], (50, 1)), np.tile([0, 1], 50)
    assert 0.3 < calibration.fit_temperature(logits, labels) < 1
    labels[0] = 1  # one error, in the fold whose temperature is fitted to examples without errors
    scaled = calibration.scaled_probabilities(logits, labels)
    assert calibration.log_loss(scaled, labels) < 2 * calibration.log_loss(calibration.softmax(logits), labels)


@pytest.mark.parametrize("accuracy", [0.92, 0.96])
def test_scaling_does_not_double_the_loss_of_few_examples(accuracy: float) -> None:
    row = simulate_calibration.simulate(accuracy, 1.0, 100, 60)
    assert row.doubled == 0  # 5 and 23 % of evaluations before
    assert row.scaled_loss < 1.1 * row.loss


@pytest.mark.parametrize(("accuracy", "factor"), [(0.77, 1.0), (0.86, 1.0), (0.86, 3.0), (0.92, 3.0)])
def test_debiased_calibration_error_is_right_on_average(accuracy: float, factor: float) -> None:
    row = simulate_calibration.simulate(accuracy, factor, 277, 60)
    assert row.debiased == pytest.approx(row.true_error, abs=1.2)
    assert row.error - row.true_error > (2.5 if factor == 1 else 0)


def test_interval_of_a_score_over_examples() -> None:
    correct = (np.random.default_rng(0).random(200) < 0.7).astype(float)
    assert calibration.score_interval(np.mean, correct, seed=1) == bca_interval(correct, 0.95, 1000, 1)
    probabilities, labels = np.tile(PROBABILITIES, (25, 1)), np.tile(LABELS, 25)
    low, high = calibration.score_interval(calibration.brier_score, probabilities, labels, resamples=200)
    assert low < calibration.brier_score(probabilities, labels) < high
    # nearly constant over the samples: the mean of the few others may not move the interval away from the score
    low, high = calibration.score_interval(lambda rows: 0.5 if rows.any() else 1.0, np.arange(8) % 2)
    assert low <= 0.5 <= high


def test_interval_of_a_macro_f1_lies_around_the_score() -> None:
    """Bootstrap samples lack rare classes, so that the score of nearly all of them is lower."""
    draws = np.random.default_rng(0)
    gold = np.concatenate([np.arange(60), draws.integers(0, 60, 60)])
    predicted = np.where(draws.random(120) < 0.6, gold, draws.integers(0, 60, 120))
    metric = METRICS["macro_f1"]
    value, (function, columns) = metric(predicted, gold), metric.statistic(predicted, gold)
    samples = [function(*(column[rows] for column in columns)) for rows in draws.integers(0, 120, (200, 120))]
    assert np.mean(samples) < value - 0.02
    low, high = calibration.score_interval(function, *columns, limits=metric.limits)
    assert (value - low) / (high - low) == pytest.approx(0.5, abs=0.1)
    assert calibration.score_interval(function, *columns, limits=(0.0, value))[1] == value


# ---- simulated studies ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["normal", "heavy-tailed (t3)", "heteroscedastic", "ties on 277", "ties on 50"])
def test_error_rates_power_and_coverage_are_as_stated(name: str) -> None:
    """The whole table is made by tests/scripts/simulate_statistics.py; a margin is four standard errors."""
    simulation = Simulation(studies=1000, seed=1)
    for seeds in (5, 10, 20):
        for alarms in (simulation.false_alarms(name, 1, seeds), simulation.false_alarms(name, 4, seeds)):
            assert alarms.measured <= 0.05 + 4 * alarms.error
        coverage = simulation.coverage(name, seeds)
        assert coverage.measured >= 0.935 - 3 * coverage.error
        wrong = simulation.equivalence(name, seeds)
        assert wrong.measured <= 0.025 + 4 * wrong.error
    power, before = (simulation.power(name, 10, rules) for rules in ("second", "first"))
    assert power.measured >= before.measured - (0.03 if name in ("normal", "ties on 277", "ties on 50") else 0.06)


@pytest.mark.parametrize("name", ["exponential", "lognormal"])
def test_the_skew_correction_halves_false_alarms(name: str) -> None:
    simulation = Simulation(studies=2000, seed=1)
    before, after = (simulation.false_alarms(name, 1, 20, rules) for rules in ("first", "second"))
    assert before.measured > 0.065
    assert after.measured <= 0.055 + 2 * after.error
    for methods in (1, 4):
        before, after = (simulation.until_decided(name, methods, rules=rules) for rules in ("first", "second"))
        assert before.measured > 0.1
        assert after.measured <= 0.055 + 2 * after.error


def test_the_simulated_correction_is_that_of_the_package() -> None:
    runs, shape = Simulation(studies=40, seed=1).draw("exponential", 1, 20)
    for study in runs:
        pairs = make_pairs(dict(enumerate(study[1])), dict(enumerate(study[0])), 0.0)
        for always in (False, True):
            expected = estimate_of(pairs, always=always).over_seeds(0.01)
            simulated = bounds(moments_of(study[1] - study[0], shape.step), 0.01, "second", always)
            assert [float(of) for of in simulated] == pytest.approx(expected)


def test_a_method_that_alone_collapses_does_not_pass_for_no_difference() -> None:
    simulation = Simulation(studies=1000, seed=1)
    for seeds in (5, 8, 10, 20):
        before, after = (simulation.equivalence("one collapses", seeds, rules) for rules in ("first", "second"))
        assert before.measured == pytest.approx(0.9**seeds, abs=0.05)  # no seed shows it
        assert after.measured <= 0.05
    assert simulation.until_decided("one collapses", 1, delta=POINT).measured <= 0.07
    counts = collapses_of(simulation.draw("normal", 1, 10)[0], 0.0)
    assert np.mean(counts[0] > 0) < 0.02  # hardly ever a run that has not collapsed


def test_error_rates_hold_until_decided() -> None:
    simulation = Simulation(studies=2000, seed=1)
    for name, methods in (("normal", 1), ("normal", 4), ("ties on 50", 1)):
        alarms = simulation.until_decided(name, methods)
        assert alarms.measured <= 0.05 + 4 * alarms.error
    estimate = simulation.until_decided("normal", 1, effect=0.5)
    assert estimate.measured >= estimate.stated - 4 * estimate.error
    assert estimate.mean_seeds < 32
    wrong = simulation.until_decided("normal", 1, effect=0.5, delta=0.5)
    assert wrong.measured <= 0.025 + 4 * wrong.error


def test_intervals_over_seeds_and_items_hold_for_other_test_sets() -> None:
    simulation = Simulation(studies=300, seed=1)
    before, after = (simulation.population(277, 10, rules) for rules in ("first", "second"))
    assert before.measured > 0.1
    assert after.measured <= 0.05 + 4 * after.error


def test_the_noise_of_items_is_that_of_the_analysis_of_variance() -> None:
    """Components of variance, by simulation: the item part of the variance of the mean over seeds and items."""
    generator, items = np.random.default_rng(0), 200
    of_items = generator.normal(0, 2, (400, 1, items))
    noise = [items_of(of) for of in of_items + generator.normal(0, 3, (400, 6, items))]
    assert np.mean([of.error**2 for of in noise if of]) == pytest.approx(4 / items, rel=0.05)
    assert items_of(np.zeros((1, 50))) is None
    flipped = np.zeros((5, 50))
    flipped[:, 7] = 1
    one = items_of(flipped)
    assert one is not None
    assert one.error == pytest.approx(0.02)
    assert crossed(generator, 50, 5).shape == (5, 50)


@pytest.mark.parametrize(("collapsed", "runs", "bound"), [(0, 5, 0.451), (0, 8, 0.312), (0, 29, 0.098), (1, 10, 0.394)])
def test_the_bound_on_collapses_is_that_of_clopper_and_pearson(collapsed: int, runs: int, bound: float) -> None:
    expected = stats.binomtest(collapsed, runs, alternative="less").proportion_ci(0.95).high
    assert collapse_bound(collapsed, runs) == pytest.approx(expected)
    assert collapse_bound(collapsed, runs) == pytest.approx(bound, abs=5e-4)


@pytest.mark.parametrize("most", [40, 60, 80, 150])
def test_the_bound_on_collapses_holds_at_all_looks_together(most: int) -> None:
    collapsed = np.cumsum(np.random.default_rng(0).random((4000, most)) < 0.1, axis=1)
    confidence = bound_confidence(most)
    allowed = [collapse_bound(k, n, confidence) <= 0.1 for n in range(1, most + 1) for k in range(n + 1)]
    starts = np.cumsum([0, *range(2, most + 1)])
    passes = np.array(allowed)[starts + collapsed]
    assert passes[:, 11:].any(1).mean() <= 0.055


def test_the_skew_correction_is_hall_s_and_widens_one_side() -> None:
    differences = np.array([0.0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3, 0.4, 0.5, 4.0])
    estimate = estimate_of(make_pairs(dict(enumerate(differences)), zeros(10), 0.0))
    gamma = 1.5 * stats.skew(differences) / math.sqrt(10)
    assert estimate.skew == pytest.approx(gamma)
    low, high = estimate.over_seeds(0.05)
    by_t = t_interval(differences)
    assert low == pytest.approx(by_t[0])
    assert high > by_t[1]
    t = (estimate.mean - high) / estimate.error
    assert t + gamma * t**2 / 3 + gamma**2 * t**3 / 27 + gamma / 6 == pytest.approx(-stats.t.ppf(0.975, 9))
    assert estimate.p() == pytest.approx(t_test(differences), rel=1e-6)  # the other side is that of t


def test_importing_the_package_does_not_import_scipy() -> None:
    code = "import sys, attendrop, attendrop.lab.statistics; print('scipy' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "False"
