"""What came out: means with intervals, the paper's numbers and claims beside them, and the file that holds them."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from ..records.schema import Stored
from ..statistics.paired import t_interval
from .entry import Claim, Entry, Number
from .measuring import Measured

AGREE, DIFFER, CANNOT_TELL = "agree", "differ", "cannot tell"
NOT_TRANSCRIBED = "not transcribed"
MARGIN = 0.01  # how far from a number of the paper an interval may reach and still agree with it
OUTCOME_FILE = "outcome.json"


@dataclass
class Cell:
    """The runs of one row, column and protocol.

    Attributes:
        row: The row.
        column: The column.
        protocol: How the scored epoch was chosen.
        x: The place on a line; None in a table.
        values: What the runs of two rows share, such as the seed -> the number of the run.
        step: The step in which the numbers of the column move; 0 if they move in none.
        difference: The mean of the paired differences from the first row; None for the first row.
        interval: The 95 % interval of the mean; None with fewer than two runs, or if all of them are equal.
        difference_interval: The same of the difference.
    """

    row: str
    column: str
    protocol: str
    x: float | None
    values: dict[str, float]
    step: float = 0.0
    difference: float | None = None
    interval: tuple[float, float] | None = None
    difference_interval: tuple[float, float] | None = None

    @property
    def mean(self) -> float:
        """The mean over the runs."""
        return statistics.fmean(self.values.values())

    @property
    def deviation(self) -> float | None:
        """The standard deviation over the runs; None for a single one."""
        return statistics.stdev(self.values.values()) if len(self.values) > 1 else None

    @property
    def distances(self) -> dict[str, float]:
        """How far the runs are from their median, which Brown and Forsythe's test compares."""
        middle = statistics.median(self.values.values())
        return {unit: abs(value - middle) for unit, value in self.values.items()}


@dataclass
class Verdict:
    """A number or a sentence of the paper, and whether the outcome agrees.

    Attributes:
        text: The sentence.
        source: Where it is from.
        ours: Our number with its interval, as text.
        verdict: "agree", "differ" or "cannot tell".
    """

    text: str
    source: str
    ours: str
    verdict: str


@dataclass(kw_only=True)
class Outcome(Stored):
    """`outcome.json`: what came out of an entry.

    Attributes:
        entry: The name of the entry.
        heading: The paper and the number of the table or figure.
        title: What it shows.
        is_reading: Whether its content is our reading.
        setting: The settings, in words.
        model: The model.
        papers_model: The model of the paper that it is; empty if it is another.
        scale: "paper" or "small".
        tasks: The tasks.
        examples: Task -> training and validation examples, as text.
        seeds: Runs of each row.
        changed: The settings that the user changed.
        command: The command.
        runs: The number of runs.
        failed: How many of them have failed, with the first message.
        minutes: Training and evaluation of all runs, in minutes.
        device: The device.
        cells: The numbers.
        verdicts: The paper's numbers and sentences.
    """

    entry: str
    heading: str
    title: str
    is_reading: bool
    setting: str
    model: str
    papers_model: str
    scale: str
    tasks: list[str]
    examples: dict[str, str]
    seeds: int
    changed: dict[str, str] = field(default_factory=dict)
    command: str = ""
    runs: int = 0
    failed: list[str] = field(default_factory=list)
    minutes: float = 0.0
    device: str = ""
    cells: list[Cell] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def protocols(self) -> list[str]:
        """The protocols, in order."""
        return list(dict.fromkeys(cell.protocol for cell in self.cells))

    def find(self, row: str, column: str, protocol: str, x: float | None = None) -> Cell | None:
        """Return a cell; None if no run has it."""
        wanted = (row, column, protocol, x)
        return next((c for c in self.cells if (c.row, c.column, c.protocol, c.x) == wanted), None)


def cells_of(measured: Iterable[Measured], baseline: str) -> list[Cell]:
    """Return the cells of all numbers, in the order of the runs.

    Args:
        measured: The numbers.
        baseline: The row that the others are compared with, unit by unit.
    """
    grouped: dict[tuple[str, str, str, float | None], dict[str, float]] = {}
    steps: dict[str, float] = {}  # column -> step
    for one in measured:
        grouped.setdefault((one.row, one.column, one.protocol, one.x), {})[one.unit] = one.value
        steps[one.column] = max(one.step, steps.get(one.column, 0.0))
    made = {
        key: Cell(*key, values, steps[key[1]], interval=_interval(list(values.values()), steps[key[1]]))
        for key, values in grouped.items()
    }
    for (row, column, protocol, x), cell in made.items():
        # a row that runs over layers has an x where its baseline has none
        base = made.get((baseline, column, protocol, x)) or made.get((baseline, column, protocol, None))
        if base is not None and row != baseline:
            cell.difference, cell.difference_interval = _difference(cell.values, base.values, cell.step)
    return list(made.values())


def _difference(
    values: Mapping[str, float], others: Mapping[str, float], step: float
) -> tuple[float | None, tuple[float, float] | None]:
    """Return the mean of the paired differences and its interval."""
    differences = [value - others[unit] for unit, value in values.items() if unit in others]
    return (statistics.fmean(differences), _interval(differences, step)) if differences else (None, None)


def _interval(values: Sequence[float], step: float) -> tuple[float, float] | None:
    """Return the interval of a mean of values that move in steps."""
    if len(values) < 2 or (step == 0 and len(set(values)) == 1):
        return None
    return t_interval(np.array(values), resolution=step)


def verdicts_of(entry: Entry, cells: Sequence[Cell], papers_model: str, scale: str) -> list[Verdict]:
    """Compare what the paper says with the cells.

    Args:
        entry: The entry.
        cells: The cells.
        papers_model: The model of the paper; empty if it is another one, whose numbers need not be the paper's.
        scale: "paper" or "small", whose runs are too short for a verdict.
    """
    verdicts = [v for number in entry.numbers for v in _of_number(number, cells, papers_model)]
    verdicts += [v for claim in entry.claims for v in _of_claim(claim, cells)]
    return verdicts if scale == "paper" else [replace(verdict, verdict=CANNOT_TELL) for verdict in verdicts]


def _of_number(number: Number, cells: Sequence[Cell], papers_model: str) -> Iterable[Verdict]:
    column = number.column.removeprefix("glue/")
    for cell in cells:
        if (cell.row, cell.column) != (number.row, column):
            continue
        text = f"{number.row}, {column}: {number.value:.4g} ({number.model}; here: {cell.protocol} protocol)"
        comparable = papers_model == number.model and cell.interval is not None
        verdict = _against(cell.interval, number.value) if comparable and cell.interval else CANNOT_TELL
        yield Verdict(text, number.source, _shown(cell.mean, cell.interval), verdict)


def _against(interval: tuple[float, float], value: float) -> str:
    low, high = interval
    if value - MARGIN <= low and high <= value + MARGIN:
        return AGREE
    return DIFFER if high < value - MARGIN or low > value + MARGIN else CANNOT_TELL


def _of_claim(claim: Claim, cells: Sequence[Cell]) -> Iterable[Verdict]:
    rows = [cell for cell in cells if cell.row == claim.row and _is_column(cell.column, claim.column)]
    for column in dict.fromkeys(cell.column for cell in rows):
        for protocol in dict.fromkeys(cell.protocol for cell in rows):
            places = [cell for cell in rows if (cell.column, cell.protocol) == (column, protocol)]
            chosen = {"first": places[:1], "last": places[-1:], "each": places}[claim.at]
            for cell in chosen:
                yield from _of_cell(claim, cell, _other(cell, claim, cells))


def _of_cell(claim: Claim, cell: Cell, other: Cell | None) -> Iterable[Verdict]:
    """Compare a claim with a cell, and with the cell of the row that it names."""
    text = f"{claim.text} ({cell.column}{_where(cell)}, {cell.protocol})"
    if claim.within is not None:
        yield Verdict(text, claim.source, _shown(cell.mean, cell.interval), _in_range(cell, claim.within))
    elif other is not None:
        both = (cell.distances, other.distances) if claim.of_spread else (cell.values, other.values)
        difference, interval = _difference(*both, cell.step)
        if difference is not None:
            shown = ("distance from the median " if claim.of_spread else "") + _shown(difference, interval, signed=True)
            yield Verdict(text, claim.source, shown, _of_sign(interval, claim.sign))


def _other(cell: Cell, claim: Claim, cells: Sequence[Cell]) -> Cell | None:
    """Return the cell that a claim compares with a cell: the same place in another row."""
    wanted = (claim.versus, cell.column, cell.protocol, cell.x)
    return next((other for other in cells if (other.row, other.column, other.protocol, other.x) == wanted), None)


def _is_column(column: str, wanted: str | None) -> bool:
    return wanted is None or column == wanted or column.startswith(f"{wanted}, ")


def _where(cell: Cell) -> str:
    return "" if cell.x is None else f" at {cell.x:g}"


def _in_range(cell: Cell, within: tuple[float, float]) -> str:
    if cell.interval is None:
        return CANNOT_TELL
    (low, high), (least, most) = cell.interval, within
    if least <= low and high <= most:
        return AGREE
    return DIFFER if high < least or low > most else CANNOT_TELL


def _of_sign(interval: tuple[float, float] | None, sign: int) -> str:
    if interval is None:
        return CANNOT_TELL
    low, high = interval if sign > 0 else (-interval[1], -interval[0])
    return AGREE if low > 0 else DIFFER if high < 0 else CANNOT_TELL


def _shown(value: float, interval: tuple[float, float] | None, signed: bool = False) -> str:
    sign = "+" if signed else ""
    text = f"{value:{sign}.4f}"
    return text if interval is None else f"{text} [{interval[0]:{sign}.4f}, {interval[1]:{sign}.4f}]"
