"""Load the user's own files: detect the columns and the kind of task, inspect the data, and make splits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from . import columns, values
from .catalogue import TASKS, Task
from .data import Data, make_data
from .diagnostics import examine, examine_header
from .files import ReadOptions, Table, refusals
from .findings import ERROR, NOTE, WARNING, Finding, listed, shortened
from .kinds import KINDS, Reading, Request, current_kind, kind_of
from .modalities import MEDIA_KINDS, Media, file_kinds, find_media, modality_of, read_source
from .origin import ROW, make_origin
from .rows import filled, label_names, row_problems

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass
class Inspection:
    """The result of `inspect_files`.

    Attributes:
        data: The data without bad rows; None if they cannot be read at all.
        findings: The findings, errors first.
        rows: Split -> number of rows that were read, bad rows not counted.
    """

    data: Data | None = None
    findings: list[Finding] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)

    @property
    def errors(self) -> list[str]:
        return [finding.text for finding in self.findings if finding.level == ERROR]


def load_files(
    train: str | Path,
    validation: str | Path | None = None,
    test: str | Path | None = None,
    *,
    options: ReadOptions | None = None,
    **columns: Any,
) -> Data:
    """Load the user's own files, in the format of their suffixes. Raises `UserError` for errors in the data.

    Args:
        train: The training file.
        validation: The validation file; without it `Data.validation` is None (see `split_validation`).
        test: The test file, which need not have labels.
        options: The encoding, the separator, and whether bad rows are left out; see `ReadOptions`.
        **columns: The columns; see `inspect_files`.

    Example:
        ```python
        data = load_files("reviews.csv", text="review", label="stars", kind="regression")
        data = split_validation(data, share=0.1, seed=42)
        ```
    """
    inspection = inspect_files(train, validation, test, options=options, **columns)
    if inspection.errors:
        first, *others = inspection.errors
        more = f" ({len(others)} more: `attendrop check` lists them)" if others else ""
        raise UserError(f"{first}{more}.")
    assert inspection.data is not None
    return inspection.data


def inspect_files(
    train: str | Path,
    validation: str | Path | None = None,
    test: str | Path | None = None,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    kind: str | None = None,
    choices: Sequence[str] = (),
    options: ReadOptions | None = None,
) -> Inspection:
    """Read the user's own files and report all problems and unusual values.

    Args:
        train: The training file, or a folder of images or sounds with one sub-folder for each class.
        validation: The validation file.
        test: The test file, which need not have labels.
        text: The text column, or the column of paths of images or sounds; None = guess it from the columns.
        text_pair: The column of the second text.
        label: The label column, or the target column of a translation; None = guess it.
        kind: `classification`, `regression`, `multilabel`, `token_classification`, `multiple_choice`, `translation` or
            `mlm` (masked language modelling, which needs no labels; a .txt file then has one text on each line),
            `image_classification` or `audio_classification`; None = guess it from the data.
        choices: The columns of the answers of a multiple choice, or the one column with a list of them; empty = guess
            them.
        options: The encoding, the separators, and whether bad rows are left out.
    """
    options = options or ReadOptions()
    request = Request(text, text_pair, label, current_kind(kind), choices, options.label_separator)
    paths = {"train": train, "validation": validation, "test": test}
    inspector = _Inspector(request, options)
    inspector.inspect({name: path for name, path in paths.items() if path is not None})
    return inspector.result()


class _Inspector:
    """Reads files step by step and collects findings, so that one error does not hide the others."""

    def __init__(self, request: Request, options: ReadOptions) -> None:
        self.request, self.options = request, options
        self.findings: list[Finding] = []
        self.tables: dict[str, Table] = {}
        self.data: Data | None = None

    def result(self) -> Inspection:
        order = (ERROR, WARNING, NOTE)
        findings = sorted(self.findings, key=lambda finding: order.index(finding.level))
        if self.data is not None:
            prefixes = {WARNING: "warning: ", NOTE: ""}
            self.data.notes += [
                prefixes[finding.level] + finding.text for finding in findings if finding.level != ERROR
            ]
        return Inspection(self.data, findings, {name: len(table) for name, table in self.tables.items()})

    def inspect(self, paths: dict[str, str | Path]) -> None:
        try:
            _check_kind(self.request.kind)
            self._read(paths)
            if "train" not in self.tables:
                return
            task, notes = plan_task(self.tables["train"], self.request)
            modality = modality_of(task)
            self.tables = {name: modality.located(table, task.text) for name, table in self.tables.items()}
            self.findings += [Finding(NOTE, note) for note in notes]
            if not self._remove_bad_rows(task):
                return
            task = self._with_labels(task)
            self.findings += examine(task, self._usable(task))
            origin = make_origin(task, list(self.tables.values()))
            splits = {
                name: split_from_table(task, table, name != "test", start)
                for (name, table), start in zip(self.tables.items(), origin.starts, strict=True)
            }
            self.data = dataclasses.replace(make_data(task, splits, []), origin=origin)
        except UserError as error:
            self._add_error(error)

    def _add_error(self, error: object) -> None:
        self.findings.append(Finding(ERROR, str(error).rstrip(".")))

    def _read(self, paths: dict[str, str | Path]) -> None:
        for name, path in paths.items():
            try:
                reading = _reading_of(self.request.kind)
                table = reading.table(read_source(path, self.options, reading.has_plain_texts))
                table = columns.with_label_set(table, self.request.label)
                if self.request.kind is None and self.request.label in columns.label_sets(table):
                    self.request = dataclasses.replace(self.request, kind="multilabel")
                table = columns.with_decimal_points(table, self._has_numbers())
            except UserError as error:
                self._add_error(error)
                continue
            self.tables[name] = table
            self.findings += table.findings
            self.findings += examine_header(table)
            if not self.options.drop_bad_rows:
                self.findings += [Finding(ERROR, text) for text in refusals(table.path, table.dropped)]

    def _has_numbers(self) -> bool | None:
        """Return whether the labels are numbers; None if no setting of the user decides it."""
        if self.request.kind is None:
            return None if self.request.label_separator is None else False
        return self.request.kind in KINDS and KINDS[self.request.kind].has_numbers

    def _remove_bad_rows(self, task: Task) -> bool:
        """Exclude bad rows and report them; return whether every file has other rows."""
        for name, table in self.tables.items():
            check_columns(task, table, name != "test")
            problems = row_problems(table, _present(task, table), _labels_count(task, table, name != "test"))
            if not self.options.drop_bad_rows:
                places = {table.place(row): problem for row, problem in problems.items()}
                texts = refusals(table.path, places, can_drop=len(problems) < len(table))
                self.findings += [Finding(ERROR, text) for text in texts]
            cleaned = table.without(problems)
            if not len(cleaned) and self.options.drop_bad_rows:
                raise UserError(f"{table.path} has no row that can be used.")
            self.tables[name], findings = filled(cleaned, task)
            self.findings += findings
            if self.options.drop_bad_rows and (sentence := cleaned.dropped_sentence()):
                self.findings.append(Finding(WARNING, sentence))
        return all(len(table) for table in self.tables.values())

    def _with_labels(self, task: Task) -> Task:
        kind = kind_of(task)
        labels, notes = kind.reading.labels(self.tables["train"], task)
        self.findings += [Finding(NOTE, note) for note in notes]
        return dataclasses.replace(task, labels=labels, metrics=kind.default_metrics(labels))

    def _usable(self, task: Task) -> dict[str, Table]:
        """Return the tables; of a test file without labels, only the texts."""
        hidden = [n for n, t in self.tables.items() if n == "test" and not _labels_count(task, t, False)]
        return {
            name: dataclasses.replace(table, columns={n: v for n, v in table.columns.items() if n != task.label})
            if name in hidden
            else table
            for name, table in self.tables.items()
        }


def _check_kind(kind: str | None) -> None:
    """Raise a `UserError` if the user's files cannot be of this kind."""
    if kind is not None and kind not in file_kinds():
        raise UserError(f"--kind is {kind!r}; for your own files it must be one of {', '.join(file_kinds())}.")


def plan_task(table: Table, request: Request) -> tuple[Task, list[str]]:
    """Return the task of a training file, without its labels, and a note for each guess."""
    media_column = find_media(table, request.text, request.kind)
    reading = _reading_of(request.kind)
    reading.check_request(request)
    if media_column is not None:
        return _plan_media(table, request, *media_column)
    chosen = reading.find_columns(table, request)
    texts, label, notes = chosen
    kind = request.kind
    if kind is None:
        kind = columns.guess_kind(table, texts, str(label), request.label_separator)
        notes.append(f"treating the task as {KINDS[kind].spoken or kind}")
    return KINDS[kind].reading.task(kind, table.path.name, chosen, request), notes


def _reading_of(kind: str | None) -> Reading:
    """Return how files of a kind are read; `Reading` itself for a kind that is guessed, or of images or sounds."""
    return KINDS[kind].reading if kind in KINDS else Reading()


def _plan_media(table: Table, request: Request, media: Media, column: str) -> tuple[Task, list[str]]:
    """Return the task of a table of paths of images or sounds."""
    if request.text_pair is not None:
        raise UserError(f"--text-pair is {request.text_pair!r}, but an example has one {media.noun}.")
    if table.path.is_dir() and len(table.columns) == 1:
        raise UserError(f"{table.path} is a folder without sub-folders; the {media.noun}s of each class need one.")
    wanted = "classification" if request.kind in MEDIA_KINDS else request.kind
    (column,), target, notes = columns.find_columns(table, column, None, request.label)
    kind = wanted or columns.guess_kind(table, (column,), target, request.label_separator)
    if kind not in media.kinds:
        raise UserError(
            f"the task is of kind {kind}, and column {column!r} of {table.path} has the paths of {media.noun}s, for "
            f"which kind must be {' or '.join(media.kinds)}; use --kind."
        )
    notes.append(f"column {column!r} has the paths of {media.noun}s; treating the task as {media.noun} {kind}")
    separator = request.label_separator
    task = Task(
        table.path.name, kind, (column,), target,
        max_length=media.default_length, label_separator=separator, modality=media.name,
    )  # fmt: skip
    return task, notes


def load_inputs(path: str | Path, task: Task, options: ReadOptions | None = None) -> Data:
    """Load one file to predict or to evaluate, as `Data.test`.

    Args:
        path: The file, with the columns of the task. The label column may be absent.
        task: The task of the trained model.
        options: How the file is read.
    """
    return load_rows(path, task, options)[0]


def load_rows(
    path: str | Path, task: Task, options: ReadOptions | None = None, content: bytes | None = None
) -> tuple[Data, Table]:
    """Load one file to predict or to evaluate, and all of its columns.

    Args:
        path: The file, with the columns of the task; or a name for `content`, whose suffix selects the format.
        task: The task of the trained model.
        options: How the file is read.
        content: Content to read instead of the file.

    Returns:
        The data, as `Data.test`, and the table of the same rows with every column of the file.
    """
    has_flag = options is not None  # the command has --drop-bad-rows
    options = options or ReadOptions()
    reading = kind_of(task).reading
    table = reading.table(read_source(path, options, reading.has_plain_texts, content))
    check_columns(task, table, needs_labels=False)
    given, table = table, modality_of(task).located(table, task.text)
    table = columns.with_decimal_points(columns.with_label_set(table, task.label), kind_of(task).has_numbers)
    problems = row_problems(table, _present(task, table), _labels_count(task, table, False))
    table, _ = filled(table.without(problems), _present(task, table))
    if table.dropped and not options.drop_bad_rows:
        raise UserError(f"{refusals(table.path, table.dropped, can_drop=has_flag and len(table) > 0)[0]}.")
    notes = [sentence] if (sentence := table.dropped_sentence()) else []
    origin = make_origin(task, [table])
    data = Data(task, None, None, split_from_table(task, table, needs_labels=False), notes=notes, origin=origin)
    return data, given.without(problems)


def _present(task: Task, table: Table) -> Task:
    """Return the task without the text that the model learns to write if a file has none."""
    kind = kind_of(task)
    if kind.is_generated and kind.target(task) not in table.columns:
        return dataclasses.replace(task, text=kind.inputs(task))
    return task


def _labels_count(task: Task, table: Table, needs_labels: bool) -> bool:
    """Return whether the labels of a file are read: a test file may have none."""
    return task.label is not None and (needs_labels or values.has_labels(table, task.label, task.labels))


def check_columns(task: Task, table: Table, needs_labels: bool) -> None:
    """Raise a `UserError` if a file does not have the columns of the task.

    Without `needs_labels` the label column, or the target of a translation, may be absent.
    """
    texts = task.text if needs_labels else _present(task, table).text
    for name in (*texts, *([task.label] if task.label and needs_labels else [])):
        if name not in table.columns:
            hint = "; if its first line is data, name the columns with --columns" if table.has_header else ""
            known = listed(map(shortened, table.columns), 30)
            raise UserError(f"{table.path} has no column {name!r}; it has {known}{hint}.")


def split_from_table(task: Task, table: Table, needs_labels: bool = True, start: int = 0) -> Dataset:
    """Make a data set of the texts and labels of a file whose rows can all be used, numbered from `start`."""
    from datasets import Dataset, Features, List, Value

    kind = kind_of(task)
    texts = _present(task, table).text
    contents: dict[str, list[Any]] = {
        name: [values.words_of(value) for value in table.columns[name]] if kind.is_per_word else table.columns[name]
        for name in texts
    }
    features = {name: List(Value("string")) if kind.is_per_word else Value("string") for name in texts}
    if task.label is not None and _labels_count(task, table, needs_labels):
        contents[task.label] = _read_labels(task, task.label, table)
        number = Value(kind.reading.label_feature)
        features[task.label] = List(number) if kind.labels_are_lists else number
    contents[ROW], features[ROW] = list(range(start, start + len(table))), Value("int64")
    return Dataset.from_dict(contents, features=Features(features))


def _read_labels(task: Task, column: str, table: Table) -> list[Any]:
    """Return the labels of a file as numbers: floats for a regression, otherwise indices of `task.labels`."""
    if kind_of(task).has_numbers:
        return [values.as_number(value) for value in table.columns[column]]
    # A file in the Hub's format holds the indices of the labels and not their names.
    return values.to_indices(table, label_names(table, task), task.labels, accept_indices=task.name in TASKS)
