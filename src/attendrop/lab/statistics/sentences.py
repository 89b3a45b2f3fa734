"""The sentences that explain a verdict. They only use the figures that are shown beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .rules import MOST_COLLAPSED

if TYPE_CHECKING:
    from .over_tasks import TaskFigures
    from .paired import Interval
    from .sequential import SequentialDesign
    from .verdict import Figures, Question, Verdict


OVER_ALL_LOOKS = "over all looks"
INFLATED = (
    "An estimate at an early stop is too large on average, up to 1.9 times for small effects in simulated studies."
)


def explain(
    name: str,
    question: Question,
    figures: Figures,
    verdict: Verdict,
    more_seeds: int | None,
    methods: int,
    design: SequentialDesign | None,
    withheld: Verdict | None = None,
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
        withheld: The verdict that the interval alone would give, where too many runs may collapse.
    """
    corrected = _correction(methods, design)
    text = _outcome(name, question, figures, verdict, _interval(question, design), corrected, _seeds(figures))
    if withheld:
        text += f" {_why_withheld(name, question, figures, withheld)}"
    elif verdict == "undecided":
        text += f" {_why_undecided(question, figures, corrected)}{_does_not_hurt(question, figures)}"
    if verdict == "undecided":
        text += f" {_seeds_to_settle(more_seeds, figures)}"
    if not withheld:
        text += _collapse_in_words(name, question, figures, verdict)
    return text + _left_out(figures)


def explain_early_stop(name: str, question: Question, figures: Figures, verdict: Verdict, decided_after: int) -> str:
    """Return the verdict of a study that ran until it was decided, with the figures of all its seeds.

    Args:
        name: Name of the method.
        question: What was asked.
        figures: The figures of all seeds.
        verdict: The verdict of the first look that had one.
        decided_after: The number of pairs at that look.
    """
    what = {"helps": "it helps", "hurts": "it hurts", "no difference": "it makes no difference that matters"}[verdict]
    assert figures.difference is not None
    interval = _ranges(f"{100 * question.confidence:g} % interval {OVER_ALL_LOOKS}", figures)
    text = (
        f"{name}: {what}, decided after {decided_after} seeds. Over all {_seeds(figures)} the {question.outcome} "
        f"differs from that of {question.baseline} by {figures.difference:+.3g} ({interval})."
    )
    if verdict != "no difference":
        text += f" {INFLATED}"
    return text + _left_out(figures)


def _interval(question: Question, design: SequentialDesign | None) -> str:
    return f"{100 * question.confidence:g} % interval" + f" {OVER_ALL_LOOKS}" * (design is not None)


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
    name: str,
    question: Question,
    figures: TaskFigures,
    verdict: Verdict,
    methods: int,
    fewest: int,
    withheld: Verdict | None,
) -> str:
    """Return the verdict over all tasks and its reasons.

    Args:
        name: Name of the method.
        question: The question.
        figures: The figures of the summary.
        verdict: The verdict.
        methods: Number of methods for which p values are corrected.
        fewest: The number of tasks that says something about others.
        withheld: The verdict that the interval alone would give, where too many runs may collapse.
    """
    if verdict == "too few seeds":
        return f"No verdict on {name}: no task has enough seeds." + _tasks_left_out(figures)
    corrected, interval = _correction(methods, None), f"{100 * question.confidence:g} % interval"
    text = _outcome(name, question, figures, verdict, interval, corrected, _count(figures.tasks, "task"))
    if withheld:
        text += f" {_why_withheld(name, question, figures, withheld)}"
    elif verdict == "undecided":
        text += f" {_why_undecided(question, figures, corrected)}"
    if figures.new_task is None:
        tasks = "this task" if figures.tasks == 1 else f"these {figures.tasks} tasks"
        text += f" This is about other seeds on {tasks}: nothing follows for other tasks"
        text += f", which takes at least {fewest}." if figures.tasks < fewest else "."
    else:
        text += f" On one new task, with as many seeds, the {interval} is {_range(figures.new_task)}."
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
    measured = f"({_ranges(interval, figures)}; {_p(figures, corrected)}; {sample})"
    if verdict in ("helps", "hurts"):
        direction = "raises" if difference > 0 else "lowers"
        change = f"{direction} the {question.outcome} by {abs(difference):.3g}"
        return f"{name} {verdict}: compared with {question.baseline}, it {change} {measured}."
    if verdict == "no difference":
        text = (
            f"{name} makes no difference that matters: its {question.outcome} differs from that of {question.baseline} "
            f"by {difference:+.3g}, and the interval is within ±{question.delta:g} {measured}."
        )
        assert figures.widest is not None
        is_not_zero = figures.widest[0] > 0 or figures.widest[1] < 0
        return text + " The difference is not 0, but smaller than what matters." * is_not_zero
    return (
        f"Undecided: the {question.outcome} of {name} differs from that of {question.baseline} by {difference:+.3g} "
        f"{measured}."
    )


def _why_undecided(question: Question, figures: Figures | TaskFigures, corrected: str) -> str:
    assert figures.widest is not None
    low, high = figures.widest
    if low > 0 or high < 0:
        return f"The interval excludes 0, but p is above {question.alpha:.2g} after {corrected}."
    if -question.delta < low and high < question.delta:
        return f"The interval is within ±{question.delta:g}, but not after {corrected}."
    beyond = f" and reaches beyond ±{question.delta:g}" if question.delta else ""
    return f"The interval contains 0{beyond}."


def _does_not_hurt(question: Question, figures: Figures) -> str:
    """Return the sentence that an undecided method is at least not worse by delta, if that is shown."""
    if not question.delta or not figures.does_not_hurt:
        return ""
    worse = "above −" if question.greater_is_better else "below +"
    return f" It does not hurt: the whole interval is {worse}{question.delta:g}."


def _why_withheld(name: str, question: Question, figures: Figures | TaskFigures, withheld: Verdict) -> str:
    """Return why a verdict that the interval would give is not given."""
    assert figures.collapses is not None
    why = "excludes 0" if withheld == "helps" else f"is within ±{question.delta:g}"
    return (
        f'The interval {why}, but {_collapses(name, question, figures)}: "{withheld}" needs at most '
        f"{100 * MOST_COLLAPSED:g} %."
    )


def _collapse_in_words(name: str, question: Question, figures: Figures, verdict: Verdict) -> str:
    """Return how many runs collapsed and, beside a method that helps, how many more may."""
    of = figures.collapses
    if of is None or not (of.method or of.baseline or (verdict == "helps" and of.bound > MOST_COLLAPSED)):
        return ""
    text = _collapses(name, question, figures)
    return f" {text[0].upper()}{text[1:]}."


def _collapses(name: str, question: Question, figures: Figures | TaskFigures) -> str:
    """Return how many runs collapsed, and how many more may."""
    of = figures.collapses
    assert of is not None
    share = f"{100 * max(of.bound, of.bound_of_baseline):.0f} % of runs may"
    if not of.method and not of.baseline:
        noun = "seed" if hasattr(figures, "pairs") else "paired run"
        return f"with {_count(of.of, noun)} none collapsed: up to {share}"
    counts = f"{of.method} of {of.of} runs of {name} and {of.baseline} of {question.baseline}"
    return f"{counts} collapsed or learned nothing: up to {share}"


def _seeds_to_settle(more_seeds: int | None, figures: Figures) -> str:
    if more_seeds is None and figures.population:
        assert figures.items is not None
        more = "more splits (--repeats)" if "selection" in figures.items.source else "more test examples"
        return f"More seeds alone would not settle it: {more} would."
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


def _seeds(figures: Figures) -> str:
    return _count(figures.pairs, "seed")


def _ranges(interval: str, figures: Figures | TaskFigures) -> str:
    """Return the interval over seeds and, where the noise of the test examples is known, that over both."""
    assert figures.interval is not None
    assert figures.widest is not None
    if figures.widest == figures.interval:
        return f"{interval} {_range(figures.interval)}"
    items = getattr(figures, "items", None)
    both = f"over seeds{',' if ' and ' in items.source else ' and'} {items.source}" if items else "over all"
    return f"{interval} over seeds {_range(figures.interval)}, {both} {_range(figures.widest)}"


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
