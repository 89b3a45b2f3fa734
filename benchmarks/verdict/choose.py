"""Chooses the setting of each method from the runs on the development tasks, and writes frozen.yaml.

    python -m benchmarks.verdict.choose --name minilm

A setting counts if all its runs have finished. The one with the smallest mean of `choose_by` over tasks and seeds is
chosen; every method has the same number of settings to choose from.
"""

from __future__ import annotations

import argparse
from statistics import mean

import yaml

from .plan import FROZEN, PLAN, TUNE, candidates
from .run import RECORDS, read

HEADER = """\
# Chosen on the development tasks by `python -m benchmarks.verdict.choose`, before the first confirmation run.
# `development` is the mean over tasks and seeds; of plain fine-tuning too, whose setting was chosen in the same way.
"""


def means(rows: list[dict[str, str]]) -> dict[tuple[str, str, float, float], dict[str, float]]:
    """The mean scores of each setting whose runs have all finished."""
    stage = PLAN["stages"][TUNE]
    wanted = len(stage["tasks"]) * len(stage["sizes"]) * stage["seeds"]
    groups: dict[tuple[str, str, float, float], list[dict[str, str]]] = {}
    for row in rows:
        key = (row["method"], row["setting"], float(row["learning_rate"] or 0), float(row["epochs"] or 0))
        groups.setdefault(key, []).append(row)
    return {
        key: {
            "loss": mean(float(row["loss"]) for row in group),
            "score": mean(float(row["accuracy"] or row["mcc"]) for row in group),
            PLAN["choose_by"]: mean(float(row[PLAN["choose_by"]]) for row in group),
        }
        for key, group in groups.items()
        if len(group) == wanted and all(row["status"] == "finished" for row in group)
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="minilm", help="name of the model in the file of the results")
    found = means(read(RECORDS / f"{TUNE}-{parser.parse_args().name}.csv"))
    frozen = {}
    for method in PLAN["methods"]:
        tried = {
            index: found[key]
            for index, setting in enumerate(candidates(method))
            if (key := (method, setting.text, *setting.training.values())) in found
        }
        if len(tried) < PLAN["points"]:
            print(f"{method}: {len(tried)} of {PLAN['points']} settings are complete, so it is left out")
            continue
        best = min(tried, key=lambda index: tried[index][PLAN["choose_by"]])
        setting = candidates(method)[best]
        scores = {name: round(value, 4) for name, value in tried[best].items()}
        frozen[method] = {"method": setting.text, "training": setting.training, "development": scores}
        print(f"{method}: {setting.text or 'plain'} {setting.training} {scores}")
    FROZEN.write_text(HEADER + yaml.safe_dump(frozen, sort_keys=False, width=120), encoding="utf-8")


if __name__ == "__main__":
    main()
