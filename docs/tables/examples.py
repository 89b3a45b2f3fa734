"""What came out of the examples with real weights, from the CSV file that their `--output` writes."""

from __future__ import annotations

import statistics
from typing import NamedTuple

TITLES = ["script", "data", "method", "score", "plain", "regularised", "difference (smallest to largest)", "seeds"]
_SETTING = ("example", "data", "train", "test", "epochs", "score")


class Result(NamedTuple):
    """One score of one run."""

    value: float
    seconds: float


def lines(rows: list[dict[str, str]]) -> list[list[str]]:
    """A line of the table for each example and score: means over the seeds, and the difference of the same seed.

    Args:
        rows: of the CSV file; each seed has a plain run and one with the method. A seed of which a run is missing does
            not count.
    """
    by_setting: dict[tuple[str, ...], dict[str, dict[str, Result]]] = {}
    for row in rows:
        by_method = by_setting.setdefault(tuple(row[name] for name in _SETTING), {})
        by_method.setdefault(row["method"], {})[row["seed"]] = Result(float(row["value"]), float(row["seconds"]))
    return [_line(setting, by_method) for setting, by_method in by_setting.items()]


def _line(setting: tuple[str, ...], by_method: dict[str, dict[str, Result]]) -> list[str]:
    example, data, train, test, epochs, score = setting
    (method,) = by_method.keys() - {"plain"}
    seeds = [seed for seed in by_method["plain"] if seed in by_method[method]]
    plain, regularised = ([by_method[name][seed] for seed in seeds] for name in ("plain", method))
    differences = [b.value - a.value for a, b in zip(plain, regularised, strict=True)]
    what = f"{data}: {train} examples, {epochs} epoch{'s' if epochs != '1' else ''}; at most {test} test examples"
    return [
        f"{example}.py",
        what,
        f"`{method}`",
        score,
        *(f"{statistics.mean(r.value for r in of):.4f}" for of in (plain, regularised)),
        f"{statistics.mean(differences):+.4f} ({min(differences):+.4f} to {max(differences):+.4f})",
        str(len(differences)),
        " / ".join(f"{statistics.mean(r.seconds for r in of):.0f}" for of in (plain, regularised)),
    ]
