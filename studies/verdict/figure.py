"""Draws the differences of all methods from plain fine-tuning with their intervals, as SVG text."""

from __future__ import annotations

from html import escape

from attendrop.lab.statistics.over_tasks import TaskSummary

from .judge import over_tasks, question
from .outcomes import NAMES
from .recommend import MODEL, primary_size
from .show import MODELS, amount, examples, methods_of

PANELS = ("loss", "score")
COLOURS = {"helps": "#1a7f37", "hurts": "#c0392b", "no difference": "#1f6feb", "undecided": "#6e7781"}
LEFT, WIDTH, GAP, ROW, TOP, BOTTOM = 270, 330, 40, 20, 60, 60  # pixels


def draw() -> str:
    """The figure; without methods before the study was made."""
    size = primary_size()
    methods = methods_of(MODEL, size)
    height = TOP + ROW * len(methods) + BOTTOM
    width = LEFT + len(PANELS) * (WIDTH + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12">\n<rect width="{width}" height="{height}" fill="white"/>',
        _text(12, 20, f"Difference from plain fine-tuning, {MODELS[MODEL]}, {examples(size):,} training examples", 14),
    ]
    parts += [_text(LEFT - 10, _y(place) + 4, method, anchor="end") for place, method in enumerate(methods)]
    for number, outcome in enumerate(PANELS):
        parts += _panel(outcome, LEFT + number * (WIDTH + GAP), methods, over_tasks(MODEL, size, outcome))
    for number, (verdict, colour) in enumerate(COLOURS.items()):
        x = LEFT + 130 * number
        parts.append(f'<circle cx="{x}" cy="{height - 16}" r="4" fill="{colour}"/>')
        parts.append(_text(x + 10, height - 12, verdict))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _y(place: int) -> float:
    return TOP + ROW * (place + 0.5)


def _panel(outcome: str, left: float, methods: list[str], summaries: dict[str, TaskSummary]) -> list[str]:
    """One outcome: the band of differences that do not matter, and a line for each method."""
    delta = question(outcome).delta
    bounds = [bound for method in methods if (of := summaries.get(method)) and of.interval for bound in of.interval]
    low, high = min([*bounds, -2 * delta]), max([*bounds, 2 * delta])
    bottom = TOP + ROW * len(methods)

    def x(value: float) -> float:
        return round(left + WIDTH * (value - low) / (high - low), 1)

    better = "more is better" if question(outcome).greater_is_better else "less is better"
    parts = [
        f'<rect x="{x(-delta)}" y="{TOP}" width="{x(delta) - x(-delta):.1f}" height="{bottom - TOP}" fill="#eef1f4"/>',
        f'<line x1="{x(0)}" x2="{x(0)}" y1="{TOP}" y2="{bottom}" stroke="#57606a"/>',
        _text(left, TOP - 12, f"{NAMES[outcome]}{' in points' if outcome == 'score' else ''} ({better})"),
        *(_text(x(v), bottom + 16, amount(outcome, v), anchor="middle") for v in (low, 0.0, high)),
    ]
    for place, method in enumerate(methods):
        of = summaries.get(method)
        if of is None or of.interval is None or of.difference is None:
            continue
        colour, y = COLOURS.get(of.verdict, "#6e7781"), _y(place)
        title = f"{method}: {amount(outcome, of.difference)}, {of.verdict}"
        parts.append(
            f'<g stroke="{colour}" fill="{colour}"><title>{escape(title)}</title>'
            f'<line x1="{x(of.interval[0])}" x2="{x(of.interval[1])}" y1="{y}" y2="{y}" stroke-width="2"/>'
            f'<circle cx="{x(of.difference)}" cy="{y}" r="3.5"/></g>'
        )
    return parts


def _text(x: float, y: float, text: str, size: int = 12, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" text-anchor="{anchor}" fill="#24292f">{escape(text)}</text>'
