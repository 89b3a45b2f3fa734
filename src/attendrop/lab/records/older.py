"""Records of earlier schemas, converted to the present one.

Schema 1 of a study and of its records had `format` in place of `schema`. Schema 1 of `record.json` had no number. It
called settings `config`, counts of examples `rows` and scores `metrics`; `task` was the definition of the task, and the
fields of the cost stood at the top.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

_RENAMED = {"config": "settings", "rows": "examples", "task": "task_definition"}
_OF_COST = {"seconds": "total_seconds", "steps": "steps", "processes": "processes"}


def study_record_from_1(content: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the record of a run of a study.

    Args:
        content: The record with schema 1.
    """
    if content.get("format") != 1:
        raise ValueError(f"its format is {content.get('format')!r}, not 1")
    return dict(content)


def study_configuration_from_1(content: Mapping[str, Any]) -> dict[str, Any]:
    """Convert `study.json`. The seeds of a study of one's own were a list.

    Args:
        content: The configuration with schema 1.
    """
    seeds = content.get("seeds")
    return {**content, "seeds": len(seeds) if isinstance(seeds, list) else seeds}


def folder_record_from_1(content: Mapping[str, Any]) -> dict[str, Any]:
    """Convert `record.json`.

    Args:
        content: The record with schema 1.
    """
    for name in ("config", "task"):
        if not isinstance(content.get(name), Mapping):
            raise ValueError(f"{name!r} is missing")
    scores: dict[str, dict[str, Any]] = {}
    for key, value in content.get("metrics", {}).items():
        part, _, metric = key.rpartition("/")
        scores.setdefault(part, {})[metric] = value
    settings, task = content["config"], content["task"]
    return {
        **{_RENAMED.get(name, name): value for name, value in content.items() if name not in (*_OF_COST, "metrics")},
        "task": settings.get("task") or PurePath(str(settings.get("train_file") or task.get("name"))).name,
        "metric": next(iter(task.get("metrics") or ()), None),
        "scores": scores,
        "cost": {new: content[old] for old, new in _OF_COST.items() if old in content},
    }
