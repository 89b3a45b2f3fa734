"""The sentences that explain a verdict. They only use the figures that are shown beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .over_tasks import TaskFigures
    from .paired import Interval
    from .sequential import SequentialDesign
    from .verdict import Figures, Question, Verdict


def explain(
    name: str,
    question: Question,
    figures: Figures,
    verdict: Verdict,
    more_seeds: int | None,
    methods: int,
    design: SequentialDesign | None,
) -> str:
    """Return the verdict and its reasons.

    Args:
        name: Name of the method.
        question: The question.
        figures: The figures of the comparison, of at least two pairs.
        verdict: The verdict.
        more_seeds: The approximate number of further seeds that would settle it.
        methods: Number of methods for which p values are corrected.
        design: The plan of looks, if there is one.
    """
    corrected = _correction(methods, design)
    interval = f"{100 * question.confidence:g} % interval" + (" over all looks" if design else "")
    text = _outcome(name, question, figures, verdict, interval, corrected, _count(figures.pairs, "seed"))
    if verdict == "undecided":
        text += f" {_why_undecided(question, figures, corrected)} {_seeds_to_settle(more_seeds)}"
    return text + _left_out(figures)


def explain_too_few(name: str, question: Question, figures: Figures, fewest: int) -> str:
    """Return why there is no verdict.

    Args:
        name: Name of the method.
        question: The question.
        figures: The figures of the comparison.
        fewest: The smallest number of seeds that gives a verdict.
    """
    n, both = figures.pairs, f"both it and {question.baseline}"
    text = f"No verdict on {name}: {both} gave a value in {_count(n, 'seed')}, and at least {fewest} are needed."
    if 1 < n < 8:
        text += f" With {n} seeds, a method without effect looks better in all or worse in all in 1 of {2 ** (n - 1)} "
        text += "studies."
    return text + _left_out(figures)


def explain_over_tasks(
    name: str, question: Question, figures: TaskFigures, verdict: Verdict, methods: int, is_about_these: bool
) -> str:
    """Return the verdict over all tasks and its reasons.

    Args:
        name: Name of the method.
        question: The question.
        figures: The figures of the summary.
        verdict: The verdict.
        methods: Number of methods for which p values are corrected.
        is_about_these: Whether it only generalises to other seeds on these tasks.
    """
    if verdict == "too few seeds":
        return f"No verdict on {name}: no task has enough seeds." + _tasks_left_out(figures)
    corrected, interval = _correction(methods, None), f"{100 * question.confidence:g} % interval"
    text = _outcome(name, question, figures, verdict, interval, corrected, _count(figures.tasks, "task"))
    if verdict == "undecided":
        text += f" {_why_undecided(question, figures, corrected)}"
    if is_about_these:
        tasks = "this task" if figures.tasks == 1 else f"these {figures.tasks} tasks"
        text += f" This is about other seeds on {tasks}, not about other tasks."
    return text + _tasks_left_out(figures)


def _outcome(
    name: str,
    question: Question,
    figures: Figures | TaskFigures,
    verdict: Verdict,
    interval: str,
    corrected: str,
    sample: str,
) -> str:
    """Return the verdict with its figures."""
    assert figures.difference is not None
    assert figures.interval is not None
    difference = figures.difference
    measured = f"({interval} {_range(figures.interval)}; {_p(figures, corrected)}; {sample})"
    if verdict in ("helps", "hurts"):
        direction = "raises" if difference > 0 else "lowers"
        change = f"{direction} the {question.outcome} by {abs(difference):.3g}"
        return f"{name} {verdict}: compared with {question.baseline}, it {change} {measured}."
    if verdict == "no difference":
        text = (
            f"{name} makes no difference that matters: its {question.outcome} differs from that of {question.baseline} "
            f"by {difference:+.3g}, and the interval is within ±{question.delta:g} {measured}."
        )
        is_not_zero = figures.interval[0] > 0 or figures.interval[1] < 0
        return text + " The difference is not 0, but smaller than what matters." * is_not_zero
    return (
        f"Undecided: the {question.outcome} of {name} differs from that of {question.baseline} by {difference:+.3g} "
        f"{measured}."
    )


def _why_undecided(question: Question, figures: Figures | TaskFigures, corrected: str) -> str:
    assert figures.interval is not None
    low, high = figures.interval
    if low > 0 or high < 0:
        return f"The interval excludes 0, but p is above {question.alpha:.2g} after {corrected}."
    if -question.delta < low and high < question.delta:
        return f"The interval is within ±{question.delta:g}, but not after {corrected}."
    beyond = f" and reaches beyond ±{question.delta:g}" if question.delta else ""
    return f"The interval contains 0{beyond}."


def _seeds_to_settle(more_seeds: int | None) -> str:
    if more_seeds is None:
        return "No realistic number of seeds would settle it."
    return f"About {more_seeds} more seed{'s' * (more_seeds > 1)} would settle it."


def _p(figures: Figures | TaskFigures, corrected: str) -> str:
    assert figures.p is not None
    assert figures.p_adjusted is not None
    text = _p_value(figures.p)
    return f"{text}, {_p_value(figures.p_adjusted)} after {corrected}" if corrected else text


def _p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def _correction(methods: int, design: SequentialDesign | None) -> str:
    parts = [f"{methods} methods"] * (methods > 1) + ["repeated looks"] * (design is not None)
    return f"correction for {' and '.join(parts)}" if parts else ""


def _range(interval: Interval) -> str:
    return f"{interval[0]:+.3g} to {interval[1]:+.3g}"


def _count(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _left_out(figures: Figures) -> str:
    text = ""
    if figures.failed:
        text += f" {_count(figures.failed, 'seed')} {_be(figures.failed)} left out because a run failed."
    if figures.unpaired:
        text += (
            f" {_count(figures.unpaired, 'seed')} {_be(figures.unpaired)} left out because only one of the two has run."
        )
    return text


def _tasks_left_out(figures: TaskFigures) -> str:
    if not figures.left_out:
        return ""
    return f" {_count(figures.left_out, 'task')} {_be(figures.left_out)} left out because of too few seeds."


def _be(count: int) -> str:
    return "is" if count == 1 else "are"
