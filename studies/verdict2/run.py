"""Runs a stage of the plan and appends a line for each run to docs/results/verdict2/<stage>-<model>.csv.

    python -m studies.verdict2.run grid --data DATA --model MODEL --workers 8 --minutes 28
    python -m studies.verdict2.run --count

It may be stopped at any time; started again, it leaves out the runs that have a line, and repeats failed ones.
`--count` shows the hash of the plan, and the runs and expected minutes that are left.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from attendrop.lab.records import StudyRecord
from attendrop.lab.studies.spec import RunSpec

from ..verdict.lines import make_parser, read, run_parts
from .plan import CONFIRM, FIELDS, FROZEN, GRID, PLAN, current_hash, of_stage, on_grid, points_of, runs

RESULTS = Path(__file__).parents[2] / "docs" / "results" / "verdict2"
STAGES = (GRID, FIELDS, CONFIRM)
COLUMNS = (
    "id", "plan", "method", "setting", "learning_rate", "epochs", "task", "size", "seed", "status", "metric", "score",
    "tenth_loss", "temperature", "loss", "scaled_loss", "brier", "other", "other_score", "kept_epoch", "seconds",
    "steps", "captured", "error",
)  # fmt: skip
WORKER = "studies.verdict2.worker:TenthWorker"
# The first edition had 1,980 runs of 96 to 384 steps in 25 minutes of an H200, on which many workers shared the GPU.
RUNS_A_MINUTE = {"minilm": 79, "mpnet": 23}


def portable_id(run: RunSpec) -> str:
    """The name of a run, which does not depend on where the model and the data are."""
    places = ("model", "data_dir", "train_file", "validation_file")
    settings = {name: value for name, value in run.settings.items() if name not in places}
    return dataclasses.replace(run, settings=settings).id


def line_of(name: str, record: StudyRecord) -> list[dict[str, Any]]:
    """The line of a record, for `append_lines`."""
    settings, cost = record.settings, record.cost
    validation, tenth = (record.scores.get(part, {}) for part in ("validation", "tenth"))
    metric = record.metric or ""
    other = next((part for part in record.scores if part not in ("validation", "tenth")), "")
    of_other = record.scores.get(other, {})
    return [
        {
            "id": name,
            "plan": record.plan,
            **{column: getattr(record, column) for column in ("method", "task", "size", "seed", "status")},
            "setting": " + ".join(settings.get("method", [])),
            "learning_rate": settings.get("learning_rate", ""),
            "epochs": settings.get("num_train_epochs", ""),
            "metric": metric,
            "score": _rounded(validation.get(metric, "")),
            "tenth_loss": _rounded(tenth.get("loss", "")),
            "temperature": _rounded(tenth.get("temperature", "")),
            **{column: _rounded(validation.get(column, "")) for column in ("loss", "scaled_loss", "brier")},
            "other": other,
            "other_score": _rounded(of_other.get("accuracy", "")),
            "kept_epoch": "" if record.kept is None else record.kept.epoch,
            "seconds": cost.seconds,
            "steps": cost.steps,
            "captured": cost.captured,
            "error": " ".join(record.message.split())[:200],
        }
    ]


def _rounded(value: Any) -> Any:
    return f"{value:.6g}" if isinstance(value, float) else value


def planned_runs(stage: str, model: str) -> int:
    """How many runs a stage has. What is not chosen yet counts as if every contender had a control of its own."""
    plan = of_stage(stage, model)
    cells = len(plan["tasks"]) * len(plan["sizes"]) * plan["seeds"]
    own = [name for name, of in PLAN["contenders"].items() if not of.get("like")]
    if stage == GRID:
        return cells * sum(len(on_grid(name)) for name in own)
    if stage == FIELDS:
        return cells * sum(points_of(name) for name in own)
    ways = len(PLAN["grid"]["learning_rate"]) * len(PLAN["grid"]["num_train_epochs"])
    return cells * (len(PLAN["contenders"]) + ways - 1)


def count(folder: Path) -> str:
    """The hash of the plan, and for each part the runs that are planned and done, and the expected minutes."""
    lines = [f"plan {current_hash()}", f"{'part':18}{'planned':>9}{'done':>8}{'failed':>8}{'minutes left':>14}"]
    for stage, model in [*((stage, "minilm") for stage in STAGES), (CONFIRM, "mpnet")]:
        rows = read(folder / f"{stage}-{model}.csv")
        finished = sum(row["status"] == "finished" for row in rows)
        planned = planned_runs(stage, model)
        left = max(0, planned - finished) / RUNS_A_MINUTE[model]
        lines.append(f"{stage + '-' + model:18}{planned:9,}{finished:8,}{len(rows) - finished:8,}{left:14.0f}")
    return "\n".join(lines)


def main() -> None:
    first = argparse.ArgumentParser(add_help=False)
    first.add_argument("--count", action="store_true")
    first.add_argument("--output", type=Path, default=RESULTS)
    wanted, _ = first.parse_known_args()
    if wanted.count:
        print(count(wanted.output))
        return
    parser = make_parser(__doc__)
    parser.set_defaults(output=RESULTS)
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--method", action="append", help="a contender of the plan; all of them without it")
    options = parser.parse_args()
    own = {
        portable_id(run): [run]
        for setting, run in runs(options.stage, options.data, options.model, options.name)
        if options.method is None or setting.name in options.method
    }
    print(f"plan {current_hash()}, {len(own):,} runs", flush=True)
    if options.stage == CONFIRM:
        print(f"settings of {FROZEN.name}, which is committed before this", flush=True)
    run_parts(COLUMNS, {options.stage: own}, line_of, options, WORKER)


if __name__ == "__main__":
    main()
