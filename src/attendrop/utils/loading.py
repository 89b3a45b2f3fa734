"""The report of transformers on the weights that it has loaded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_PROBLEMS = {
    "missing_keys": "not in its weights",
    "mismatched_keys": "of another size in its weights",
    "unexpected_keys": "in its weights and not in the model",
}
_SHOWN = 4


def wrong_weights(report: Mapping[str, Any]) -> str | None:
    """Return how the weights of a folder differ from those of its configuration, as a clause; None if they fit.

    Args:
        report: what `from_pretrained` returns with `output_loading_info`.
    """
    clauses = []
    for kind, problem in _PROBLEMS.items():
        names = sorted(key if isinstance(key, str) else key[0] for key in report[kind])
        if names:
            more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
            verb = "are" if len(names) > 1 else "is"
            clauses.append(f"{', '.join(names[:_SHOWN])}{more} {verb} {problem}")
    return ", and ".join(clauses) or None
