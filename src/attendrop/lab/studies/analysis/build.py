"""Put the analysis of a study together."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ...statistics.sequential import SequentialDesign
from ...statistics.verdict import Question
from .curves import curves_of, method_metrics_of
from .examples import agreement_of, disagreements_of
from .outcomes import DELTAS, OUTCOME_NAMES, Group, Record, compare, group_records, outcomes_of


def analyse(folder: str | Path) -> dict[str, Any]:
    """Analyse the study in a folder.

    Args:
        folder: The folder of `attendrop compare` or `attendrop tune`.
    """
    from ..configuration import read_configuration
    from ..records import read_records

    study = read_configuration(folder)
    analysis = analyse_records(list(read_records(folder).values()), study, folder)
    tuning = Path(folder, "tuning.json")
    if tuning.is_file():
        analysis["tuning"] = json.loads(tuning.read_text(encoding="utf-8"))
    return analysis


def analyse_records(
    records: Sequence[Record], study: Mapping[str, Any], folder: str | Path | None = None
) -> dict[str, Any]:
    """Compare the methods of a study and collect what its report shows.

    Args:
        records: The records of its runs.
        study: Its configuration: `methods` (the first is the baseline), and optionally `delta`, `confidence`, `keep`,
            `command`, `kind`, `title`, `max_seeds`.
        folder: The folder of the study, which has the predictions for ensembles; None = there are no ensembles.
    """
    order = {name: place for place, name in enumerate(study["methods"])}
    scored = sorted(
        (record for record in records if record["fold"] is None),
        key=lambda r: (r["task"], r["size"], r["seed"], order.get(r["method"], len(order)), r["id"]),
    )
    methods = [m for m in study["methods"] if any(record["method"] == m for record in scored)]
    baseline = study["methods"][0]
    deltas, confidence = {**DELTAS, **(study.get("delta") or {})}, study.get("confidence", 0.95)
    looks = None if study.get("max_seeds") is None else SequentialDesign(max_seeds=study["max_seeds"])
    groups = group_records([record for record in scored if record["method"] in methods], methods)
    cells = [cell for group in groups if group.finished for cell in _cells(group, baseline, deltas, confidence, looks)]
    ensembles, without = _ensembles(groups, folder, deltas["score"], confidence)
    example: Record = next((r for r in scored if r["status"] == "finished"), {})
    is_paper = study.get("protocol") == "paper" or study.get("keep") == "dev"
    return {
        "format": 1,
        "title": study.get("title") or _title(study, example),
        "created": max((record["ended"] for record in records if record.get("ended")), default=None),
        "command": study.get("command", ""),
        "kind": study.get("kind", "compare"),
        "protocol": "paper" if is_paper else "honest",
        "baseline": baseline,
        "delta": deltas,
        "confidence": confidence,
        "sequential": None if looks is None else {"max_seeds": looks.max_seeds, "first_look": looks.first},
        "model": Path(str(example.get("model", {}).get("name") or "")).name or None,
        "metric": example.get("metric"),
        "greater_is_better": example.get("greater_is_better"),
        "versions": example.get("versions", {}),
        "device": example.get("device"),
        "methods": [_method(name, scored, baseline) for name in methods],
        "cells": cells,
        "ensembles": ensembles,
        "summary": _summary(cells, baseline, confidence, deltas, bool(example.get("greater_is_better"))),
        "runs": [_run(record) for record in scored],
        "method_metrics": {
            name: metrics
            for name in methods
            if (metrics := method_metrics_of([r for r in scored if r["method"] == name], confidence))
        },
        "heatmaps": heatmaps(cells, methods),
        "tuning": None,
        "agreement": [
            found for group in groups for method in methods if (found := agreement_of(group, method)) is not None
        ],
        "disagreements": [row for group in groups if group.finished for row in disagreements_of(group)],
        "explorer": next((record["explorer"] for record in scored if record.get("explorer")), None),
        "failures": [_failure(record) for record in scored if record["status"] == "failed"],
        "notes": [*_notes(scored), *without],
    }


def _cells(
    group: Group, baseline: str, deltas: Mapping[str, float], confidence: float, looks: SequentialDesign | None
) -> list[dict[str, Any]]:
    cells = []
    for part in group.parts:
        compared = {}
        for outcome in outcomes_of(group, part):
            compared[outcome] = compare(group, part, outcome, baseline, deltas[outcome], confidence, looks)
        example = next(record for record in group.finished if part in record["scores"])
        for method in group.runs:
            cells.append(
                {
                    "method": method,
                    "task": group.task,
                    "size": group.size,
                    "part": part,
                    "examples": example["examples"].get("train"),
                    "majority": example["scores"][part].get("majority"),
                    "outcomes": {outcome: methods[method] for outcome, methods in compared.items()},
                    "curves": curves_of(group, method, confidence) if part == "validation" else None,
                }
            )
    return cells


def _ensembles(
    groups: Sequence[Group], folder: str | Path | None, delta: float, confidence: float
) -> tuple[list[dict[str, Any]], list[str]]:
    """The ensembles of all groups, and sentences about those that cannot be made."""
    from ...evaluation.outputs import read_outputs
    from .ensembles import ensembles_of

    if folder is None:
        return [], []
    found = [ensembles_of(group, lambda run: read_outputs(folder, run), delta, confidence) for group in groups]
    return [row for rows, _ in found for row in rows], [note for _, notes in found for note in notes]


def _summary(
    cells: Sequence[Mapping[str, Any]],
    baseline: str,
    confidence: float,
    deltas: Mapping[str, float],
    greater_is_better: bool,
) -> list[dict[str, Any]]:
    """Over all tasks and amounts of data: one row for each method and outcome. Needs more than one of them."""
    from ...statistics.over_tasks import summarize_tasks

    validation = {(c["method"], c["task"], c["size"]): c["outcomes"] for c in cells if c["part"] == "validation"}
    places = list(dict.fromkeys((task, size) for _, task, size in validation))
    if len(places) < 2:
        return []
    rows = []
    for outcome, delta in deltas.items():
        differences: dict[str, dict[str, Any]] = {}
        for (method, task, size), outcomes in validation.items():
            other = validation[baseline, task, size]
            if method != baseline and outcome in outcomes:
                found = _differences(outcomes[outcome], other[outcome])
                differences.setdefault(method, {})[f"{task} {size}"] = found
        question = Question(
            delta=delta,
            greater_is_better=outcome == "score" and greater_is_better,
            confidence=confidence,
            outcome=OUTCOME_NAMES.get(outcome, outcome),
            baseline=baseline,
        )
        for method, summary in summarize_tasks(differences, question).items():
            rows.append({"method": method, "outcome": outcome, **summary.to_dict()})
    return rows


def _differences(one: Mapping[str, Any], other: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    values, baseline = one["values"], other["values"]
    seeds = [s for s in values if values[s] is not None and baseline.get(s) is not None]
    return np.array([values[seed] - baseline[seed] for seed in seeds], float)


def heatmaps(cells: Sequence[Mapping[str, Any]], methods: Sequence[str]) -> list[dict[str, Any]]:
    """Differences of the score over a grid of p and q, where a study has one.

    Args:
        cells: The cells of the analysis.
        methods: The methods of the study.
    """
    grid: dict[str, dict[tuple[float, float], str]] = {}
    for name in methods:
        found = re.fullmatch(r"(\w+):p=([\d.]+),q=([\d.]+)(.*)", name)
        if found:
            grid.setdefault(found[1] + found[4], {})[float(found[2]), float(found[3])] = name
    maps = []
    for method, points in grid.items():
        xs, ys = sorted({x for x, _ in points}), sorted({y for _, y in points})
        if len(xs) < 2 or len(ys) < 2:
            continue
        for task, size in dict.fromkeys((cell["task"], cell["size"]) for cell in cells):
            score = {
                cell["method"]: cell["outcomes"]["score"]
                for cell in cells
                if (cell["task"], cell["size"], cell["part"]) == (task, size, "validation")
            }
            rows = [[_difference(score.get(points.get((x, y), ""))) for x in xs] for y in ys]
            maps.append(
                {
                    "method": method,
                    "task": task,
                    "size": size,
                    "x": "p",
                    "y": "q",
                    "xs": xs,
                    "ys": ys,
                    "difference": rows,
                }
            )
    return maps


def _difference(outcome: Mapping[str, Any] | None) -> float | None:
    comparison = outcome["comparison"] if outcome else None
    return None if comparison is None else comparison["difference"]


def _title(study: Mapping[str, Any], example: Record) -> str:
    tasks = study.get("tasks") or [example.get("task", "")]
    model = Path(str(example.get("model", {}).get("name", ""))).name
    return f"{', '.join(tasks)} with {model}" if model else ", ".join(tasks)


def _method(name: str, records: Sequence[Record], baseline: str) -> dict[str, Any]:
    mine = [record for record in records if record["method"] == name]
    return {
        "name": name,
        "label": name,
        "is_baseline": name == baseline,
        "runs": len(mine),
        "failed": sum(record["status"] == "failed" for record in mine),
        "settings": next((record["settings"] for record in mine if record.get("settings")), {}),
        "regularizers": next((record["regularizers"] for record in mine if record.get("regularizers")), []),
    }


def _run(record: Record) -> dict[str, Any]:
    names = ("id", "method", "task", "size", "seed", "status")
    error = record.get("error")
    return {
        **{name: record[name] for name in names},
        "seconds": record.get("cost", {}).get("seconds"),
        "kept_epoch": record.get("kept", {}).get("epoch"),
        "scores": record.get("scores", {}),
        "error": error["message"] if error else None,
    }


def _notes(records: Sequence[Record]) -> list[str]:
    """The notes of all runs. Those that differ in the number of the seed alone are one."""
    notes = (note for record in records for note in record.get("notes", ()))
    return list(dict.fromkeys(re.sub(r",? seed \d+$", "", note) for note in notes))


def _failure(record: Record) -> dict[str, Any]:
    error = record.get("error") or {}
    message = f"{error.get('type', 'Error')}: {error.get('message', '')}"
    return {
        "method": record["method"],
        "task": record["task"],
        "size": record["size"],
        "seed": record["seed"],
        "message": message,
    }
