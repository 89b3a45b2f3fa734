"""The data of the page: the analysis as JSON, with the words of outcomes, and the explorer's maps in a compact form.

A map of the explorer would take about 16 characters for each pair of tokens as JSON. Here it takes three: attention is
stored in steps of 1/255, attribution in steps of 1/127 of the largest in its map, and what is a candidate or dropped in
two bits. `explorer.js` reads this.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ...tasks.outcomes import Outcome, compared_outcomes, curve_titles
from ..analysis import Analysis
from .words import PAPER_LABEL

# The page must stay below 3 MB; the libraries take 0.5 MB, and the other parts of a study of 200 runs less than 0.5 MB.
EXPLORER_LIMIT = 1_800_000
PER_EXAMPLE_LIMIT = 2000


def page_data(analysis: Analysis) -> str:
    """Return the analysis as JSON that can stand inside a script element: it contains no `<`.

    Args:
        analysis: A checked analysis.
    """
    explorer = analysis.explorer
    data = replace(analysis, explorer=None).to_dict()
    data["explorer"] = packed_explorer(explorer) if explorer and explorer.get("examples") else None
    for entry in data["agreement"]:
        entry["per_example"] = entry["per_example"][:PER_EXAMPLE_LIMIT]
    data["paper_label"] = PAPER_LABEL if analysis.protocol == "paper" else None
    data["outcomes"] = {outcome.name: _outcome_facts(outcome, analysis.metric) for outcome in compared_outcomes()}
    curves = dict.fromkeys(name for cell in analysis.cells if cell.curves for name in cell.curves.mean)
    data["curve_titles"] = curve_titles(curves, analysis.metric)
    text = json.dumps(_rounded(data), ensure_ascii=False, separators=(",", ":"), default=str)
    # A text may contain `</script>` or `<!--`; U+2028 and U+2029 end a line for old parsers.
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")


def _outcome_facts(outcome: Outcome, metric: str) -> dict[str, Any]:
    """Return what the scripts of the page know about an outcome."""
    return {
        "label": outcome.title(metric),
        "phrase": outcome.name_in_sentences(metric),
        "is_score": outcome.is_score,
        "is_relative": outcome.is_relative,
    }


def packed_explorer(explorer: Mapping[str, Any]) -> dict[str, Any]:
    """Return the examples of the explorer in compact form, as many as fit into the page.

    Args:
        explorer: The part `explorer` of an analysis.
    """
    packed: list[dict[str, Any]] = []
    size = 0
    for example in explorer["examples"]:
        entry = _packed_example(example)
        size += len(json.dumps(entry))
        if packed and size > EXPLORER_LIMIT:
            break
        packed.append(entry)
    left_out = len(explorer["examples"]) - len(packed)
    return {**{name: value for name, value in explorer.items() if name != "examples"}, "examples": packed,
            "left_out": left_out}  # fmt: skip


def _packed_example(example: Mapping[str, Any]) -> dict[str, Any]:
    pruned = example.get("pruned")
    known = {name: value for name, value in example.items() if name not in ("layers", "pruned")}
    known["maps"] = _packed_layers(example["layers"])
    known["pruned"] = (
        {"predicted": pruned.get("predicted"), "maps": _packed_layers(pruned["layers"])} if pruned else None
    )
    return known


def _packed_layers(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    attention, attribution, flags, scales = bytearray(), bytearray(), bytearray(), []
    for head in (head for layer in layers for head in layer["heads"]):
        values = _flat(head["attribution"])
        scale = max((abs(value) for value in values), default=0.0) or 1.0
        scales.append(float(f"{scale:.3g}"))
        attention += bytes(round(255 * min(max(value, 0.0), 1.0)) for value in _flat(head["attention"]))
        attribution += bytes(128 + round(127 * value / scale) for value in values)
        bits = [int(c) + 2 * int(d) for c, d in zip(_flat(head["candidates"]), _flat(head["dropped"]), strict=True)]
        bits += [0] * (-len(bits) % 4)
        flags += bytes(sum(bits[i + k] << 2 * k for k in range(4)) for i in range(0, len(bits), 4))
    return {
        "layers": [layer["layer"] for layer in layers],
        "heads": [len(layer["heads"]) for layer in layers],
        "scales": scales,
        "attention": base64.b64encode(attention).decode(),
        "attribution": base64.b64encode(attribution).decode(),
        "flags": base64.b64encode(flags).decode(),
    }


def _flat(rows: Sequence[Sequence[Any]]) -> list[float]:
    return [value or 0.0 for row in rows for value in row]


def _rounded(value: Any) -> Any:
    """Six significant digits: more would not be seen, and would double the size of the page."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    return value
