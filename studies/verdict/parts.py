"""The parts of the study: which there are, their lines, and whether all of them are there."""

from __future__ import annotations

from functools import cache

from .lines import RECORDS, read
from .plan import DEFAULTS, PLAN, TUNE, frozen, runs

PLAIN = "plain"
MEMBERS = 5  # of an ensemble
UPPER_LINE = f"Ensemble of {MEMBERS}"  # judged apart: it is several models
STAGES = tuple(stage for stage in PLAN["stages"] if stage not in (TUNE, DEFAULTS))  # on confirmation tasks
ENSEMBLES = {f"ensemble-{stage}": stage for stage in STAGES}  # part of the study -> the stage whose runs are members
WHOLE, OTHER_DATA = "all", "other-data"  # whole training sets, and a stage that is shown apart, as if it were a size
Rows = list[dict[str, str]]


@cache
def rows_of(part: str, name: str) -> Rows:
    """The lines of a part; none before its first run.

    Args:
        part: A stage of the plan, the ensembles of one, or an experiment of its own.
        name: The name of the model in the files.
    """
    return read(RECORDS / f"{part}-{name}.csv")


@cache
def planned(part: str, name: str) -> frozenset[tuple[str, str, str, int]]:
    """Method, task, size and seed of each line that a part should have.

    Args:
        part: A stage of the plan, or the ensembles of one.
        name: The name of the model in the files.
    """
    if not frozen():
        return frozenset()
    if part in ENSEMBLES:
        ensembles = runs(ENSEMBLES[part], "", "", [PLAIN], name)
        return frozenset((UPPER_LINE, run.task, str(run.size), run.seed) for run in ensembles)
    return frozenset((run.method, run.task, str(run.size), run.seed) for run in runs(part, "", "", name=name))


def is_complete(part: str, name: str) -> bool:
    """Whether all runs of a part have been made. Until then its lines are counted, but nothing is concluded from them.

    Args:
        part: A stage of the plan, or the ensembles of one.
        name: The name of the model in the files.
    """
    made = {(row["method"], row["task"], row["size"], int(row["seed"])) for row in rows_of(part, name)}
    return bool(made) and made >= planned(part, name)


def confirmation_rows(name: str, size: str | None = None) -> Rows:
    """The lines of all complete parts on confirmation tasks, those of the ensembles among them.

    Args:
        name: The name of the model in the files.
        size: The amount of training data, or `OTHER_DATA`; None = all.
    """
    return [row for row in _confirmation_rows(name) if size in (None, row["size"])]


@cache
def _confirmation_rows(name: str) -> Rows:
    return [
        {**row, "size": OTHER_DATA} if part == OTHER_DATA else row
        for part in (*STAGES, *ENSEMBLES)
        if is_complete(part, name)
        for row in rows_of(part, name)
    ]


def sizes(name: str) -> list[str]:
    """The amounts of training data that were measured, small ones first, without whole training sets."""
    numbers = {row["size"] for row in confirmation_rows(name)} - {WHOLE, OTHER_DATA}
    return sorted(numbers, key=lambda size: float(size.partition("=")[2]))
