"""The sentences that explain a verdict. They use the figures that are shown beside them, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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
    """The verdict and its reasons.

    Args:
        name: Name of the method.
        question: What was asked.
        figures: The figures of the comparison.
        verdict: The verdict.
        more_seeds: About how many more seeds would tell.
        methods: Number of methods for which p values are corrected.
        design: The plan of looks, if there is one.
    """
    assert figures.difference is not None
    assert figures.interval is not None
    label = f"{100 * question.confidence:g} % interval" + (" over all looks" if design else "")
    measured = f"{label} {_range(figures.interval)}; {_p(figures, methods, design)}; {_seeds(figures.pairs)}"
    difference = f"{question.outcome} by {abs(figures.difference):.3g} ({measured})"
    if verdict in ("helps", "hurts"):
        direction = "raises" if figures.difference > 0 else "lowers"
        text = f"{name} {verdict}: compared with {question.baseline}, it {direction} the {difference}."
    elif verdict == "no difference":
        text = (
            f"{name} makes no difference that matters: its {question.outcome} differs from that of {question.baseline} "
            f"by {figures.difference:+.3g}, and the interval is within ±{question.delta:g} ({measured})."
        )
        if figures.interval[0] > 0 or figures.interval[1] < 0:
            text += " The difference is not 0, but smaller than what matters."
    else:
        text = (
            f"Undecided: the {question.outcome} of {name} differs from that of {question.baseline} by "
            f"{figures.difference:+.3g} ({measured}). {_why_undecided(question, figures, methods, design)} "
            f"{_what_would_tell(more_seeds)}"
        )
    return text + _left_out(figures)


def explain_too_few(name: str, question: Question, figures: Figures, fewest: int) -> str:
    """Why there is no verdict.

    Args:
        name: Name of the method.
        question: What was asked.
        figures: The figures of the comparison.
        fewest: The number of seeds from which on there is a verdict.
    """
    n = figures.pairs
    text = (
        f"No verdict on {name}: both it and {question.baseline} gave a value in {_seeds(n)}, and at least {fewest} are "
        "needed."
    )
    if n > 1:
        text += f" With {n} seeds, a method without effect looks better in all or worse in all in 1 of {2 ** (n - 1)} "
        text += "studies."
    return text + _left_out(figures)


def _why_undecided(question: Question, figures: Figures, methods: int, design: SequentialDesign | None) -> str:
    assert figures.interval is not None
    assert figures.p_adjusted is not None
    low, high = figures.interval
    corrected = _correction(methods, design)
    if figures.p_adjusted <= question.alpha:
        return f"The t test finds a difference, the sign-flip test does not (p = {figures.p_sign_flip:.2g})."
    if low > 0 or high < 0:
        return f"The interval leaves 0 out, but p is above {question.alpha:.2g} after {corrected}."
    if -question.delta < low and high < question.delta:
        return f"The interval is within ±{question.delta:g}, but no longer so after {corrected}."
    beyond = f" and reaches beyond ±{question.delta:g}" if question.delta else ""
    return f"The interval contains 0{beyond}."


def _what_would_tell(more_seeds: int | None) -> str:
    if more_seeds is None:
        return "No practicable number of seeds would tell."
    return f"About {more_seeds} more seed{'s' * (more_seeds > 1)} would tell."


def _p(figures: Figures, methods: int, design: SequentialDesign | None) -> str:
    assert figures.p is not None
    assert figures.p_adjusted is not None
    text = _p_value(figures.p)
    corrected = _correction(methods, design)
    return f"{text}, {_p_value(figures.p_adjusted)} after {corrected}" if corrected else text


def _correction(methods: int, design: SequentialDesign | None) -> str:
    parts = [f"{methods} methods"] * (methods > 1) + ["repeated looks"] * (design is not None)
    return f"correction for {' and '.join(parts)}" if parts else ""


def _p_value(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.2g}"


def _range(interval: Interval) -> str:
    return f"{interval[0]:+.3g} to {interval[1]:+.3g}"


def _seeds(count: int) -> str:
    return f"{count} seed{'s' * (count != 1)}"


def _left_out(figures: Figures) -> str:
    text = ""
    if figures.failed:
        verb = "is" if figures.failed == 1 else "are"
        text += f" {_seeds(figures.failed).capitalize()} {verb} left out because a run failed."
    if figures.unpaired:
        verb = "has" if figures.unpaired == 1 else "have"
        text += f" {_seeds(figures.unpaired).capitalize()} {verb} run with one of the two only."
    return text
