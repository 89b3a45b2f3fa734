"""Chooses rate, epochs and fields of every contender by the development lines alone, and writes frozen.yaml.

    python -m studies.verdict2.choose grid       # rate and epochs, with default fields
    python -m studies.verdict2.choose fields     # then the fields; commit the file before the first confirmation run

The setting with the best mean score over the development tasks wins; of equal ones the one with fewer epochs, then with
the lower rate. A setting with a run missing or failed is not chosen.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterable
from pathlib import Path

import yaml

from attendrop.lab.studies.search_space import with_fields

from ..verdict.lines import read
from .plan import FIELDS, FROZEN, GRID, PLAN, Setting, current_hash, frozen, likes, methods_of, of_stage, settings_of
from .run import RESULTS

Rows = list[dict[str, str]]


def mean_scores(rows: Iterable[dict[str, str]], stage: str) -> dict[Setting, float]:
    """The mean score of each setting over all tasks and seeds of a stage; those that are incomplete are left out."""
    plan, scores = of_stage(stage, "minilm"), dict[Setting, list[float]]()
    for row in rows:
        if row["status"] == "finished" and row["plan"] == current_hash():
            methods = tuple(row["setting"].split(" + ")) if row["setting"] else ()
            methods = methods_of(row["method"]) if row["method"] == "frozen" else methods
            setting = Setting(row["method"], methods, float(row["learning_rate"]), int(float(row["epochs"])))
            scores.setdefault(setting, []).append(float(row["score"]))
    needed = len(plan["tasks"]) * len(plan["sizes"]) * plan["seeds"]
    return {setting: statistics.fmean(of) for setting, of in scores.items() if len(of) == needed}


def choose(folder: Path, stage: str) -> dict[str, object]:
    """The content of frozen.yaml after a stage."""
    known = mean_scores(read(folder / f"{GRID}-minilm.csv"), GRID)
    candidates = settings_of(GRID)
    if stage == FIELDS:
        known |= mean_scores(read(folder / f"{FIELDS}-minilm.csv"), FIELDS)
        before = {name: (of["learning_rate"], of["num_train_epochs"]) for name, of in frozen()["settings"].items()}
        candidates = [s for s in candidates if (s.rate, s.epochs) == before.get(s.name)] + settings_of(FIELDS)
    best: dict[str, Setting] = {}
    for setting in sorted(candidates, key=lambda s: (s.epochs, s.rate)):
        if setting in known and (setting.name not in best or known[setting] > known[best[setting.name]]):
            best[setting.name] = setting
    if missing := [name for name in PLAN["contenders"] if name not in best and not likes(name)]:
        raise SystemExit(f"no setting of {missing[0]!r} has all its runs; run the stage {stage!r} to its end.")
    settings = {}
    for name in PLAN["contenders"]:
        first = best[likes(name)[0]] if likes(name) else best[name]
        score = None if likes(name) else round(known[first], 6)
        settings[name] = {
            "methods": list(_combined(name, best)), "learning_rate": first.rate, "num_train_epochs": first.epochs,
            "development_score": score,
        }  # fmt: skip
    return {"plan": current_hash(), "stage": stage, "settings": settings}


def _combined(name: str, best: dict[str, Setting]) -> tuple[str, ...]:
    """The methods of a contender, with the fields that were chosen for those that it is like."""
    of = likes(name)
    if not of:
        return best[name].methods
    own = methods_of(name)
    if len(of) > 1:
        return tuple(best[one].methods[0] for one in of)
    _, _, fields = best[of[0]].methods[0].partition(":")
    given = {part.partition("=")[0] for part in own[0].partition(":")[2].split(",")}
    point = dict(part.split("=", 1) for part in fields.split(",") if part and part.split("=")[0] not in given)
    return (with_fields(own[0], point),) if point else own


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=(GRID, FIELDS))
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the results")
    options = parser.parse_args()
    content = choose(options.output, options.stage)
    FROZEN.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
    print(f"{FROZEN.name} written after {options.stage}, plan {content['plan']}; commit it")


if __name__ == "__main__":
    main()
