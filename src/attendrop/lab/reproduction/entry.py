"""An entry of the registry: one table or figure of a paper, as data. Importing this module loads no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

ADDROP, ATTENDOUT, ATTENDOUT_1 = "addrop", "attendout", "attendout-v1"
# Paper -> how it is called, and where it is.
PAPERS: dict[str, tuple[str, str]] = {
    ADDROP: ("AD-DROP", "arXiv 2210.05883"),
    ATTENDOUT: ("AttendOut, version 2", "arXiv 2104.04692v2"),
    ATTENDOUT_1: ("AttendOut, version 1 (self-pruning)", "arXiv 2104.04692v1"),
}
MEASURES = ("score", "deviation", "also", "cost", "curves", "gates", "robustness", "pruning")
DRAWINGS = ("none", "lines", "boxes", "map")
PROTOCOLS = {
    "paper": "epoch chosen on the development set itself",
    "honest": "epoch chosen on a tenth of the training data",
    "last": "last epoch",
}
KEEP = {"paper": "dev", "honest": "split", "last": "last"}  # protocol -> the epoch that is scored


@dataclass(frozen=True)
class Row:
    """A row of a table, or a line of a figure.

    Attributes:
        label: What the table calls it.
        method: The contender of a study. `{paper}` stands for AD-DROP's p, q and layers of the paper for the task,
            `{p}`, `{q}` and `{layers}` for each of them, `{layer}` and `{point}` for what the entry runs over.
    """

    label: str
    method: str = "plain"


@dataclass(frozen=True)
class Number:
    """A number that the paper prints, of a row and a column.

    Attributes:
        row: The label of the row.
        column: The task, or the column as the outcome calls it.
        value: The number, in the unit of the outcome: scores are shares, not percentages.
        source: Where it is from.
        model: The model that it belongs to.
    """

    row: str
    column: str
    value: float
    source: str
    model: str


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper that the outcome can contradict.

    Attributes:
        text: The sentence, shortened.
        source: Where it is from.
        row: The row that it is about.
        versus: The row that it is compared with; None = the value itself is compared with `within`.
        sign: 1 = the row is greater, −1 = smaller.
        within: The range in which the value should be.
        column: The column, or the beginning of its name; None = each column.
        at: Which point of a line: "first", "last" or "each".
        of_spread: Whether the spread of the runs is compared, and not their mean.
    """

    text: str
    source: str
    row: str
    versus: str | None = None
    sign: int = 1
    within: tuple[float, float] | None = None
    column: str | None = None
    at: str = "each"
    of_spread: bool = False


@dataclass(frozen=True)
class Small:
    """What `--scale small` changes: few examples, two short epochs, two seeds.

    Attributes:
        tasks: The tasks, which may stand in for those of the paper; empty = the first one of the entry.
        sizes: The amounts of training data; empty = those of the entry.
        points: The points of a grid.
        examples: Training examples, and as many are evaluated.
        batch: Examples in a batch.
        epochs: Passes over them.
        seeds: Runs of each row.
        also: Other tasks to evaluate on.
    """

    tasks: tuple[str, ...] = ()
    sizes: tuple[str, ...] = ()
    points: tuple[str, ...] = ()
    examples: int = 32
    batch: int = 8
    epochs: int = 2
    seeds: int = 2
    also: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One table or figure.

    Attributes:
        paper: One of `PAPERS`.
        item: "table-1", "figure-4" or "resource-usage".
        title: What it shows, as a heading.
        rows: Its rows or lines; the first one is what the others are compared with.
        tasks: The tasks.
        measure: What is read from the runs: the "score"; its "deviation" over seeds too; the score on "also" other
            tasks; the "cost" of a step; "curves" over the epochs; the "gates" of AttendOut's generator; the
            "robustness" of the trained model; "pruning" by the generator.
        drawing: The kind of figure.
        axis: What the points of a line are: epochs, steps, layers.
        is_reading: Whether the content is our reading: the documents of this project do not say what this number of
            the paper shows.
        setting: What is said about the settings, as sentences.
        models: The models of the paper; the first one is what `--model` would be.
        family: "encoder" or "translation": the models that can be given.
        sizes: Amounts of training data: "all", "fraction=0.1" or "shots=16".
        points: A grid or a list that the rows with `{point}` run over: fields of a method.
        over_layers: Whether the rows with `{layer}` run over the layers of the model.
        also: Task -> other tasks on which its models are evaluated.
        protocols: How the scored epoch is chosen, of `PROTOCOLS`.
        seeds: Runs of each row, unless the user says otherwise. The papers' own numbers are not known.
        numbers: What the paper prints, as far as the project's documents have it.
        claims: What it says.
        small: What `--scale small` changes.
    """

    paper: str
    item: str
    title: str
    rows: tuple[Row, ...]
    tasks: tuple[str, ...]
    measure: str = "score"
    drawing: str = "none"
    axis: str = ""
    is_reading: bool = True
    setting: str = ""
    models: tuple[str, ...] = ("bert-base-uncased",)
    family: str = "encoder"
    sizes: tuple[str, ...] = ("all",)
    points: tuple[str, ...] = ()
    over_layers: bool = False
    also: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    protocols: tuple[str, ...] = ("paper", "honest")
    seeds: int = 5
    numbers: tuple[Number, ...] = ()
    claims: tuple[Claim, ...] = ()
    small: Small = field(default_factory=Small)

    @property
    def name(self) -> str:
        """The name on the command line, such as `addrop/figure-6`."""
        return f"{self.paper}/{self.item}"

    @property
    def heading(self) -> str:
        """The paper, and the number of the table or figure in it."""
        return f"{PAPERS[self.paper][0]}, {self.item.replace('-', ' ').capitalize()}"

    @property
    def baseline(self) -> str:
        """The label of the row that the others are compared with."""
        return self.rows[0].label

    @property
    def keeps_models(self) -> bool:
        """Whether the trained models are needed after training."""
        return self.measure in ("robustness", "pruning")

    def tasks_of(self, scale: str) -> tuple[str, ...]:
        """Return the tasks at a scale."""
        return (self.small.tasks or self.tasks[:1]) if scale == "small" else self.tasks

    def also_of(self, task: str, scale: str) -> tuple[str, ...]:
        """Return the other tasks that the models of a task are evaluated on."""
        return self.small.also if scale == "small" and self.small.also else tuple(self.also.get(task, ()))
