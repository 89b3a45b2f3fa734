"""Chooses the setting of each method from the runs on the development tasks, and writes frozen.yaml.

    python -m studies.verdict.choose --name minilm

Of the settings of a method whose runs have all finished, the one with the smallest mean of `choose_by` over tasks and
seeds is chosen; every method has the same number of settings to choose from. Two kinds of settings are added that are
not searched:

fixed           settings of a paper, defaults, controls, and variants of a chosen setting. Those with a method of their
                own are trained as plain fine-tuning was chosen to be
combinations    the methods with the smallest `choose_by` that can act together, each with its chosen setting, trained
                as the better of them was chosen to be
"""

from __future__ import annotations

import argparse
from statistics import mean
from typing import Any

import yaml

from attendrop.core.checks import check_regularizers
from attendrop.lab.studies.search_space import with_fields
from attendrop.methods import parse_method

from .parts import PLAIN, rows_of
from .plan import FROZEN, PLAN, TUNE, by_development, candidates

HEADER = """\
# Chosen on the development tasks by `python -m studies.verdict.choose`, before the first confirmation run.
# `development` is the mean over tasks and seeds; of plain fine-tuning too, whose setting was chosen in the same way.
# Settings without it were not searched.
"""
TOGETHER = " + "  # between the methods of a combination
BEST = "best"  # in a combination: the best method that can act together with those before it

Key = tuple[str, str, float, float]
Means = dict[Key, dict[str, float] | None]
Frozen = dict[str, dict[str, Any]]  # name -> method, training and development


def means(rows: list[dict[str, str]]) -> Means:
    """The mean scores of each setting whose runs have all been made; None if one of them failed."""
    stage = PLAN["stages"][TUNE]
    wanted = len(stage["tasks"]) * len(stage["sizes"]) * stage["seeds"]
    groups: dict[Key, list[dict[str, str]]] = {}
    for row in rows:
        key = (row["method"], row["setting"], float(row["learning_rate"] or 0), float(row["epochs"] or 0))
        groups.setdefault(key, []).append(row)
    return {key: _mean_scores(group) for key, group in groups.items() if len(group) == wanted}


def _mean_scores(group: list[dict[str, str]]) -> dict[str, float] | None:
    if any(row["status"] != "finished" for row in group):
        return None
    return {
        "loss": mean(float(row["loss"]) for row in group),
        "score": mean(float(row["accuracy"] or row["mcc"]) for row in group),
        PLAN["choose_by"]: mean(float(row[PLAN["choose_by"]]) for row in group),
    }


def best_setting(scores_of: Means, method: str, choose_by: str) -> dict[str, Any] | None:
    """The setting of a method with the smallest value on the development tasks; None if runs are missing or failed.

    Args:
        scores_of: The mean scores of each setting.
        method: Name of the method in the plan.
        choose_by: Which score is to be small.
    """
    settings = {(method, s.text, *s.training.values()): s for s in candidates(method)}
    made = [key for key in settings if key in scores_of]
    finished = {key: scores for key in made if (scores := scores_of[key]) is not None}
    if len(made) < len(settings) or not finished:
        print(f"{method}: {len(made)} of {len(settings)} settings are complete, so it is left out")
        return None
    best = min(finished, key=lambda key: finished[key][choose_by])
    scores = {name: round(value, 4) for name, value in finished[best].items()}
    return {"method": settings[best].text, "training": settings[best].training, "development": scores}


def tuned(scores_of: Means) -> Frozen:
    """The best setting of each method. A method is left out if runs of it are missing, or all its settings failed."""
    settings = {method: best_setting(scores_of, method, PLAN["choose_by"]) for method in PLAN["methods"]}
    return {method: setting for method, setting in settings.items() if setting is not None}


def fixed(frozen: Frozen, scores_of: Means) -> Frozen:
    """The settings that are not searched: of a paper, defaults, controls, and variants of a chosen setting."""
    added: Frozen = {}
    for name, given in PLAN.get("fixed", {}).items():
        fields = dict(given)
        start, choose_by = fields.pop("like", PLAIN), fields.pop("choose_by", None)
        chosen = frozen.get(start) if choose_by is None else best_setting(scores_of, start, choose_by)
        if chosen is not None:
            text = fields.pop("method", chosen["method"])
            text = with_fields(text, fields) if fields else text
            added[name] = {"method": text, "training": dict(chosen["training"])}
    return added


def combinations(frozen: Frozen) -> Frozen:
    """The methods of each combination together; a combination that nothing can complete is left out."""
    order = [name for name in by_development(frozen) if name != PLAIN]
    combined = {}
    for name, wanted in PLAN.get("combinations", {}).items():
        members: list[str] = []
        for member in wanted:
            options = order if member == BEST else [member]
            members += [of for of in options if of in frozen and _can_act_together([*members, of], frozen)][:1]
        if len(members) == len(wanted):
            better = min(members, key=order.index)
            combined[name] = {
                "method": TOGETHER.join(frozen[member]["method"] for member in members),
                "training": dict(frozen[better]["training"]),
                "members": members,
            }
    return combined


def _can_act_together(members: list[str], frozen: Frozen) -> bool:
    try:
        check_regularizers([parse_method(frozen[member]["method"]) for member in members])
    except ValueError:
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="minilm", help="name of the model in the file of the results")
    scores_of = means(rows_of(TUNE, parser.parse_args().name))
    chosen = tuned(scores_of)
    frozen = {**chosen, **fixed(chosen, scores_of), **combinations(chosen)}
    for name, setting in frozen.items():
        print(f"{name}: {setting['method'] or 'plain'} {setting['training']} {setting.get('development', '')}")
    FROZEN.write_text(HEADER + yaml.safe_dump(frozen, sort_keys=False, width=120), encoding="utf-8")


if __name__ == "__main__":
    main()
