"""The page: one self-contained HTML document with inline styles, scripts and data."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from functools import cache
from html import escape
from importlib.resources import files

from ...tasks.outcomes import SCORE
from ..analysis import Analysis, checked_analysis
from .pack import page_data
from .verdicts import verdict_blocks
from .words import PAPER_LABEL, facts, headline, labels_of, other_outcomes, protocol_label

MARK = '<meta name="generator" content="attendrop report">'

_SCRIPTS = (
    "vendor/d3.min.js",
    "vendor/plot.umd.min.js",
    "assets/core.js",
    "assets/frame.js",
    "assets/figures.js",
    "assets/measures.js",
    "assets/explorer.js",
    "assets/main.js",
)


@cache
def _asset(path: str) -> str:
    text = files(__package__).joinpath(path).read_text(encoding="utf-8")
    if "</script" in text.lower() or "</style" in text.lower():
        raise AssertionError(f"{path} would end its own element")
    return text


def render_page(analysis: Analysis) -> str:
    """Return the report as one self-contained HTML page.

    Args:
        analysis: The analysis of a study.
    """
    analysis = checked_analysis(analysis)
    title = analysis.title or "Comparison of methods"
    scripts = [_asset(path) for path in _SCRIPTS]
    return f"""<!doctype html>
<html lang="en" data-theme="system" data-protocol="{escape(analysis.protocol)}">
<head>
<meta charset="utf-8">
{MARK}
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<link rel="icon" href="data:,">
<style>{_asset("assets/page.css")}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the results</a>
<header class="bar"><span class="brand">attendrop <span>report</span></span>
<nav id="nav" aria-label="Sections"></nav>
<button type="button" id="theme" class="quiet" hidden>Theme: system</button></header>
<main id="main">
{_hero(analysis, title)}
<section id="verdicts" class="wide" aria-labelledby="verdicts-title">
<h2 id="verdicts-title">Verdicts</h2>
<div id="filters" class="filters" role="group" aria-label="What the tables and figures below show"></div>
{verdict_blocks(analysis)}
</section>
<noscript><p class="empty">The figures below need JavaScript; the verdicts above do not.</p></noscript>
<div id="figures"></div>
{_failures(analysis)}
{_origin(analysis)}
</main>
<div id="announce" class="unseen" role="status" aria-live="polite"></div>
<script type="application/json" id="analysis">{page_data(analysis)}</script>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def _policy(scripts: Iterable[str]) -> str:
    """Allow only scripts with these hashes, and fetch nothing."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data: blob:; script-src {allowed}"


def _hero(analysis: Analysis, title: str) -> str:
    kind = "Tuning" if analysis.kind == "tune" else "Comparison"
    items = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts(analysis))
    others = other_outcomes(analysis)
    score = SCORE.title(analysis.metric).capitalize()
    answer = f"{score}: {headline(analysis)}" if others else headline(analysis)
    more = f'<p class="more">{escape(others)}</p>' if others else ""
    return (
        f'<section class="hero" aria-labelledby="title"><p class="over">{kind}</p><h1 id="title">{escape(title)}</h1>'
        f'<p class="lead" id="lead">{escape(answer)}</p>{more}{_protocol(analysis)}{_plan(analysis)}'
        f'<dl class="facts">{items}</dl></section>'
    )


def _protocol(analysis: Analysis) -> str:
    if analysis.protocol != "paper":
        return ""
    return (
        f'<p class="protocol"><strong>{PAPER_LABEL}.</strong> The same examples chose the settings or the epoch and '
        "gave the scores, so that the scores are optimistic.</p>"
    )


def _plan(analysis: Analysis) -> str:
    if not analysis.plan:
        return ""
    first, *deviations = analysis.plan
    items = "".join(f"<li>{escape(sentence)}</li>" for sentence in deviations)
    return f'<p class="protocol">{escape(first)}</p>{f"<ul>{items}</ul>" if items else ""}'


def _failures(analysis: Analysis) -> str:
    if not analysis.failures:
        return ""
    labels = labels_of(analysis)
    rows = "".join(
        f"<tr><td>{escape(labels.get(failure.method, failure.method))}</td>"
        f"<td>{escape(failure.task)}</td><td>{escape('' if failure.seed is None else str(failure.seed))}</td>"
        f"<td>{escape(failure.message)}</td></tr>"
        for failure in analysis.failures
    )
    count = len(analysis.failures)
    return (
        f'<section id="failures" data-nav="Failures"><h2>{count} failed {"run" if count == 1 else "runs"}</h2>'
        '<p class="about">A run that failed has no score. Comparisons use the seeds that both methods finished.</p>'
        '<div class="scroll" tabindex="0" role="region" aria-label="Failed runs"><table class="data"><thead><tr>'
        '<th scope="col">Method</th><th scope="col">Task</th><th scope="col">Seed</th>'
        f'<th scope="col">What happened</th></tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


def _origin(analysis: Analysis) -> str:
    items = [("Protocol", protocol_label(analysis)), ("Created", analysis.created), ("device", analysis.device)]
    items += [(str(name), str(version)) for name, version in analysis.versions.items()]
    shown = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(str(value))}</dd></div>" for name, value in items if value
    )
    command = f'<pre tabindex="0" aria-label="The command"><code>{escape(analysis.command)}</code></pre>'
    methods = "".join(f"<li><code>{escape(method.name)}</code></li>" for method in analysis.methods)
    notes = "".join(f"<li>{escape(str(note))}</li>" for note in analysis.notes)
    return (
        '<section id="origin" data-nav="Origin"><h2>How this was made</h2>'
        f'{command if analysis.command else ""}<ul class="plain">{methods}</ul>'
        f'{f"<ul class=plain>{notes}</ul>" if notes else ""}<dl class="facts small">{shown}</dl>'
        f"{_settings(analysis)}</section>"
    )


def _settings(analysis: Analysis) -> str:
    """Return the settings that all methods share."""
    each = [method.settings for method in analysis.methods if method.settings]
    if not each:
        return ""
    shared = [(name, value) for name, value in each[0].items() if all(of.get(name) == value for of in each)]
    items = "".join(f"<div><dt>{escape(str(n))}</dt><dd>{escape(str(v))}</dd></div>" for n, v in shared)
    return f'<details><summary>Settings of all runs</summary><dl class="facts small">{items}</dl></details>'
