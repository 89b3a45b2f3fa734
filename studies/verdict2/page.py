"""The tables of the second edition, from the lines: what is there, and what is open.

    python -m studies.verdict2.page [--output FOLDER]

Until every part is measured, the first table says what is missing, and no rule is called final.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from attendrop.lab.statistics.over_tasks import TaskSummary
from docs.tables.markdown import table

from ..verdict.lines import read
from .judge import BEST, MATCHED, Lines, ruling, word
from .plan import CONFIRM, PLAIN, PLAN, chosen, current_hash, frozen
from .run import RESULTS, STAGES, planned_runs

PARTS = (*((stage, "minilm") for stage in STAGES), (CONFIRM, "mpnet"))


def state(folder: Path) -> str:
    """Runs, failures and GPU time of every part, and what is open."""
    rows = []
    for stage, model in PARTS:
        lines = [row for row in read(folder / f"{stage}-{model}.csv") if row["plan"] == current_hash()]
        failed = sum(row["status"] != "finished" for row in lines)
        seconds = sum(float(row["seconds"] or 0) for row in lines)
        left = max(0, planned_runs(stage, model) - len(lines))
        rows.append(
            [
                f"{stage}, {model}",
                f"{len(lines):,}",
                f"{failed:,}",
                f"{seconds / 60:.0f}",
                f"{left:,}" if left else "none",
            ]
        )
    return table(["part", "runs", "failed", "minutes of training, added up", "open"], rows)


def still_open() -> str:
    """The contenders that no stage runs."""
    return table(["open", "what it is"], [[name, what] for name, what in PLAN["open"].items()])


def contenders(folder: Path, model: str, size: str) -> str:
    """Every contender against both plains, over all confirmation tasks that are there."""
    lines = Lines(folder, model)
    summaries = {plain: lines.over_tasks(size, "score", plain) for plain in (BEST, MATCHED)}
    losses = lines.over_tasks(size, "tenth_loss", MATCHED)
    rows = []
    for name in chosen():
        if name == PLAIN:
            continue
        ratio, effect = lines.time_ratio(name, size), lines.smallest_effect(name, size)
        rows.append(
            [
                name, f"`{chosen()[name].text}`",
                points(summaries[BEST].get(name)), points(summaries[MATCHED].get(name)),
                loss(losses.get(name)), "" if effect is None else f"{100 * effect:.1f}",
                "" if ratio is None else f"{ratio:.2f}", word(lines, name, size),
            ]
        )  # fmt: skip
    head = [
        "contender",
        "setting",
        "score, best plain",
        "score, matched",
        "log loss, matched",
        "detectable",
        "time",
        "word",
    ]
    return table(head, rows)


def points(summary: TaskSummary | None) -> str:
    """A difference in points, with the interval for a new task."""
    if summary is None or summary.difference is None or summary.interval is None:
        return "not measured"
    low, high = summary.interval
    return f"{100 * summary.difference:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def loss(summary: TaskSummary | None) -> str:
    """A difference of the log loss, with the interval for a new task."""
    if summary is None or summary.difference is None or summary.interval is None:
        return "not measured"
    low, high = summary.interval
    return f"{summary.difference:+.3f} [{low:+.3f}, {high:+.3f}]"


def rules(folder: Path) -> str:
    """What the rules of the plan select, and whether that is final."""
    result = ruling(folder)
    moonshot, defaults = ", ".join(result.moonshot) or "none", ", ".join(result.defaults) or "stay as they are"
    rows = [["`--preset recommended`", result.preset], ["new defaults", defaults], ["moonshot", moonshot]]
    head = (
        "By the rules of the plan, all parts measured:"
        if result.is_final
        else "So far, and **not final**, because parts are open:"
    )
    return f"{head}\n\n{table(['rule', 'selects'], rows)}"


def page(folder: Path) -> str:
    """The whole page in Markdown."""
    parts = [
        f"Plan `{current_hash()}` (`studies/verdict2/plan.yaml`).",
        "## What is there",
        state(folder),
        still_open(),
    ]
    if frozen().get("stage") != "fields":
        return "\n\n".join([*parts, "The settings are not frozen yet, so that nothing was confirmed."]) + "\n"
    measured = [(model, size) for model in PLAN["models"] for size in Lines(folder, model).sizes()]
    for model, size in measured:
        parts += [f"## {model}, {size.removeprefix('n=')} training examples", contenders(folder, model, size)]
    parts += ["## By the rules", rules(folder)] if measured else ["No confirmation run was made yet."]
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    print(page(parser.parse_args().output))


if __name__ == "__main__":
    main()
