"""Checks an analysis before anything is made of it, and fills in the parts that it may leave out."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ....errors import UserError

FORMAT = 1
OUTCOMES = ("score", "loss", "ece", "brier", "scaled_loss", "cost")
VERDICTS = ("helps", "hurts", "no difference", "undecided", "too few seeds")

_REQUIRED: dict[str, type] = {"baseline": str, "methods": list, "cells": list}
_OPTIONAL: dict[str, Any] = {
    "title": "",
    "created": "",
    "command": "",
    "kind": "compare",
    "protocol": "honest",
    "delta": {},
    "confidence": 0.95,
    "sequential": None,
    "model": "",
    "metric": "score",
    "device": "",
    "greater_is_better": True,
    "versions": {},
    "summary": [],
    "ensembles": [],
    "runs": [],
    "method_metrics": {},
    "heatmaps": [],
    "tuning": None,
    "agreement": [],
    "disagreements": [],
    "explorer": None,
    "failures": [],
    "notes": [],
}
# The fields that each entry of a list must have.
_ENTRIES = {
    "methods": ("name",),
    "cells": ("method", "task", "size", "part", "outcomes"),
    "summary": ("method", "outcome", "verdict"),
    "ensembles": ("method", "task", "size", "part", "seeds", "outcomes", "gain", "sentence"),
    "runs": ("method", "task", "seed", "status"),
    "heatmaps": ("method", "x", "y", "xs", "ys", "difference"),
    "agreement": ("method", "task", "agreement"),
    "disagreements": ("task", "example", "right"),
    "failures": ("method", "message"),
}


def checked_analysis(analysis: Any) -> dict[str, Any]:
    """Check an analysis, and return a copy with every part present and None instead of numbers that are not finite.

    Args:
        analysis: The analysis of a study. An error names the first part that is missing or wrong.
    """
    if not isinstance(analysis, Mapping):
        raise _broken(f"it is a {type(analysis).__name__}, not a dictionary")
    if analysis.get("format", FORMAT) != FORMAT:
        raise _broken(f"its format is {analysis['format']!r}, and this version of attendrop reads format {FORMAT}")
    for name, kind in _REQUIRED.items():
        if not isinstance(analysis.get(name), kind):
            raise _broken(f"{name!r} is {'missing' if name not in analysis else 'of the wrong type'}")
    values = {name: default if analysis.get(name) is None else analysis[name] for name, default in _OPTIONAL.items()}
    whole: dict[str, Any] = _finite({**analysis, **values})
    for name, default in _OPTIONAL.items():
        if isinstance(default, list | dict) and not isinstance(whole[name], type(default)):
            raise _broken(f"{name!r} is a {type(whole[name]).__name__}, not a {type(default).__name__}")
    _check_entries(whole)
    whole["methods"] = _all_methods(whole)
    _check_cells(whole)
    _check_explorer(whole["explorer"])
    return whole


def _check_entries(analysis: Mapping[str, Any]) -> None:
    for part, fields in _ENTRIES.items():
        for number, entry in enumerate(analysis[part]):
            for field in fields:
                if not isinstance(entry, Mapping) or field not in entry:
                    raise _broken(f"entry {number} of {part!r} has no {field!r}")


def _all_methods(analysis: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The methods, with the baseline and those that were only tuned, of which no run may have been scored yet."""
    tuned = [curve["method"] for curve in (analysis["tuning"] or {}).get("curves", [])]
    known = {method["name"]: method for method in analysis["methods"]}
    names = list(dict.fromkeys([analysis["baseline"], *known, *tuned]))
    return [{**known.get(name, {"name": name}), "label": _label(known.get(name, {}), name, names)} for name in names]


def _label(method: Mapping[str, Any], name: str, names: list[str]) -> str:
    """The label of a method; of `addrop:p=0.3` without a label of its own it is `addrop`, if no other is called so."""
    if method.get("label") not in (None, "", name):
        return str(method["label"])
    short = name.partition(":")[0]
    return short if sum(other.partition(":")[0] == short for other in names) == 1 else name


def _check_cells(analysis: Mapping[str, Any]) -> None:
    names = {method["name"] for method in analysis["methods"]}
    for number, cell in enumerate(analysis["cells"]):
        where = f"entry {number} of 'cells'"
        if cell["method"] not in names:
            raise _broken(f"{where} is of the method {cell['method']!r}, which 'methods' does not list")
        for outcome, result in cell["outcomes"].items():
            comparison = result.get("comparison") if isinstance(result, Mapping) else {}
            if not isinstance(result, Mapping) or not isinstance(result.get("values"), Mapping):
                raise _broken(f"the outcome {outcome!r} of {where} has no 'values'")
            if comparison is not None and comparison.get("verdict") not in VERDICTS:
                raise _broken(f"the outcome {outcome!r} of {where} has the verdict {comparison.get('verdict')!r}")


def _check_explorer(explorer: Any) -> None:
    if explorer is None:
        return
    for number, example in enumerate(explorer.get("examples", [])):
        tokens = len(example["tokens"])
        for layers in (example["layers"], (example.get("pruned") or {}).get("layers", [])):
            maps = [head.get(kind) for layer in layers for head in layer["heads"] for kind in EXPLORER_MAPS]
            if any(rows is None or len(rows) != tokens or any(len(row) != tokens for row in rows) for rows in maps):
                raise _broken(f"a map of example {number} of 'explorer' has not the size of its {tokens} tokens")


EXPLORER_MAPS = ("attention", "attribution", "candidates", "dropped")


def _finite(value: Any) -> Any:
    """A copy in which NaN and infinity, which JSON does not have, are None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _broken(what: str) -> UserError:
    return UserError(f"the analysis of this study cannot be shown: {what}.")
