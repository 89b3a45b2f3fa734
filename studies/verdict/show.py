"""How the page of the verdict study shows methods, numbers and verdicts."""

from __future__ import annotations

import textwrap
from statistics import median

from attendrop.lab.statistics.over_tasks import TaskSummary
from attendrop.lab.statistics.verdict import Comparison

from .judge import over_tasks
from .parts import PLAIN, confirmation_rows
from .plan import frozen

MODELS = {"minilm": "all-MiniLM-L6-v2", "mpnet": "MPNet-base"}
IN_POINTS = ("score", "accuracy", "dev_accuracy", "other_accuracy", "ece", "scaled_ece")
DIGITS = {**dict.fromkeys(IN_POINTS, 1), "reward": 4}  # 3 for others; the rewards of AttendOut are small
OURS = ("addrop", "attendout", "scheduled_dropout", "attention_layerdrop")  # of the two papers of this library


def amount(outcome: str, value: float | None, signed: bool = True) -> str:
    """A number as the page shows it: scores and calibration errors in points."""
    if value is None:
        return ""
    text = f"{100 * value if outcome in IN_POINTS else value:+.{DIGITS.get(outcome, 3)}f}"
    if not float(text):
        return text[1:]  # no sign before 0
    return (text if signed else text.lstrip("+")).replace("-", "−")


def word(verdict: str) -> str:
    return f"**{verdict}**" if verdict == "helps" else verdict


def sign(verdict: str) -> str:
    """The verdict for a table of many: those that say nothing new are a sign."""
    return {"no difference": "=", "undecided": "?"}.get(verdict, word(verdict))


def with_interval(outcome: str, value: float | None, bounds: tuple[float, float]) -> str:
    """A difference and its interval."""
    low, high = (amount(outcome, bound) for bound in bounds)
    return f"{amount(outcome, value)} [{low},\u00a0{high}]"


def interval(outcome: str, figures: Comparison | TaskSummary | None) -> str:
    """Difference and interval; empty without figures."""
    if figures is None or figures.interval is None:
        return ""
    return with_interval(outcome, figures.difference, figures.interval)


def judged(outcome: str, figures: Comparison | TaskSummary | None) -> str:
    """Difference, interval and verdict; empty without figures."""
    return "" if figures is None else f"{interval(outcome, figures)} {word(figures.verdict)}"


def examples(size: str) -> int:
    """The number of training examples."""
    return 2 * int(size.partition("=")[2])


def methods_of(name: str, size: str) -> list[str]:
    """The methods, the one with the lowest log loss first; those without one last."""
    summaries = over_tasks(name, size, "loss")
    order = dict.fromkeys([*frozen(), *(row["method"] for row in confirmation_rows(name, size))])
    known = [method for method in order if method in summaries and summaries[method].difference is not None]
    return sorted(known, key=lambda method: summaries[method].difference or 0.0)


def seconds(name: str, size: str, method: str) -> str:
    """The median time of a run as a multiple of the median time of a plain run."""
    times: dict[str, list[float]] = {}
    for row in confirmation_rows(name, size):
        if row["seconds"]:
            times.setdefault(row["method"], []).append(float(row["seconds"]))
    if not times.get(method) or not times.get(PLAIN):
        return ""
    return f"{median(times[method]) / median(times[PLAIN]):.1f}\u00a0×"


def listed(names: list[str]) -> str:
    """Names in a sentence."""
    if len(names) < 2:
        return "".join(names) or "none"
    return f"{', '.join(names[:-1])} and {names[-1]}"


def named(methods: list[str]) -> str:
    """Methods in a sentence. Some names have a comma, so that each is in italics."""
    return listed([f"*{method}*" for method in methods])


def paragraph(text: str) -> str:
    """The text in lines of the width of the page; those after the first of a list item are indented."""
    indent = "  " if text.startswith("- ") else ""
    filled = textwrap.fill(text, 122, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return f"{filled}\n"
