"""Loads the parts of a task: from the Hub, from a folder of Parquet files, or from the user's own files."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from . import columns
from .catalogue import TASKS, Task, find_task
from .files import Table, read_arrow, read_table
from .hub import causes, quiet, reaching
from .split import few_shots, fraction, split_validation

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["Data", "few_shots", "fraction", "load_files", "load_inputs", "load_task", "split_validation"]


@dataclass
class Data:
    """The parts of a task. Labels are whole numbers that index `task.labels`, or floats for a regression.

    `train` is None only where the data were loaded to evaluate or predict; `validation` where there is none yet. A
    part without labels has no label column. `notes` say what was guessed, split off or left out.
    """

    task: Task
    train: Dataset | None
    validation: Dataset | None
    test: Dataset | None = None
    others: dict[str, Dataset] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def parts(self) -> dict[str, Dataset]:
        """The parts that there are, by name."""
        named = {"train": self.train, "validation": self.validation, "test": self.test, **self.others}
        return {name: part for name, part in named.items() if part is not None}


def _gathered(task: Task, parts: dict[str, Dataset], notes: list[str]) -> Data:
    main = {name: parts.get(name) for name in ("train", "validation", "test")}
    return Data(task, others={k: v for k, v in parts.items() if k not in main}, notes=notes, **main)


def load_task(name: str, data_dir: str | Path | None = None, *, evaluation: bool = False) -> Data:
    """A task of the catalogue, from the Hub or from `data_dir/<task>/<split>.parquet` with the Hub's column names.

    With `evaluation` it need not have a training part, and where only the test part has labels, that is evaluated.
    """
    task = find_task(name)
    notes: list[str] = []
    with quiet():
        raw = _from_hub(task) if data_dir is None else _from_folder(task, Path(data_dir).expanduser(), notes)
        if "train" not in raw and not evaluation:
            why = "is for evaluation only" if "train" not in task.splits else f"has no training part in {data_dir}"
            raise UserError(f"{task.name} {why}; train on another task and use it with --also-eval.")
        if not raw:
            raise UserError(f"{task.name} has none of its parts ({', '.join(task.splits.values())}) in {data_dir}.")
        raw = {part: _with_columns(task, part, dataset) for part, dataset in raw.items()}
        if task.label is not None and not task.labels and task.kind != "regression":
            task = dataclasses.replace(task, labels=_labels_in(task, raw))
        parts = {part: _with_indices(task, part, dataset) for part, dataset in raw.items()}
    if evaluation and "validation" not in parts and task.label in getattr(parts.get("test"), "column_names", ()):
        parts["validation"] = parts["test"]
        notes.append(f"{task.name} has no validation part; its test part is evaluated")
    return _gathered(task, parts, notes)


def _from_hub(task: Task) -> dict[str, Dataset]:
    import datasets

    if task.hub is None:
        raise UserError(
            f"{task.name} is not on the Hub ({task.missing}); give the folder with its files by --data-dir."
        )
    options = {"revision": task.hub_revision} if task.hub_revision else {}
    try:
        with reaching():
            found = datasets.load_dataset(task.hub, task.hub_config, **options)
    except Exception as error:
        if any(isinstance(cause, ConnectionError) or "Offline" in type(cause).__name__ for cause in causes(error)):
            raise UserError(
                f"the data of {task.name} ({task.hub} on the Hub) cannot be reached; check the connection, or give a "
                "folder of Parquet files with --data-dir."
            ) from error
        raise UserError(
            f"the data of {task.name} ({task.hub} on the Hub) cannot be loaded: {_first_line(error)}"
        ) from error
    return {part: found[split] for part, split in task.splits.items() if split in found}


def _first_line(error: Exception) -> str:
    return f"{(str(error).strip() or type(error).__name__).splitlines()[0].rstrip('.')}."


def _from_folder(task: Task, root: Path, notes: list[str]) -> dict[str, Dataset]:
    import pyarrow
    from datasets import Dataset

    if not root.is_dir():
        raise UserError(f"--data-dir is {root}, which is not a folder.")
    folder = next((root / name for name in task.folders if (root / name).is_dir()), None)
    if folder is None:
        raise UserError(f"--data-dir is {root}, which has no folder {' or '.join(task.folders)} for {task.name}.")
    if folder.name.endswith("_sample"):
        notes.append(f"{task.name}: {folder.name} is a sample")
    found = {}
    for part, split in task.splits.items():
        for name in dict.fromkeys((split, part)):
            whole, subset = folder / f"{name}.parquet", folder / f"{name}_subset.parquet"
            shards = sorted(folder.glob(f"{name}-*-of-*.parquet"))
            paths = [whole] if whole.is_file() else shards or ([subset] if subset.is_file() else [])
            if paths:
                found[part] = Dataset(pyarrow.concat_tables([read_arrow(path) for path in paths]))
                if not len(found[part]):
                    raise UserError(f"{paths[0]} has no examples.")
                if paths == [subset]:
                    notes.append(f"{part} of {task.name} is a subset, {len(found[part]):,} examples")
                break
    return found


def _with_columns(task: Task, part: str, dataset: Dataset) -> Dataset:
    """The part with the columns of the task; the Hub keeps the two sides of a translation in one column."""
    if task.kind == "translation" and "translation" in dataset.column_names:
        dataset = dataset.select_columns(["translation"]).flatten()
        dataset = dataset.rename_columns({name: name.removeprefix("translation.") for name in dataset.column_names})
    needed = [*task.text, *([task.label] if task.label and part in ("train", "validation") else [])]
    missing = [name for name in needed if name not in dataset.column_names]
    if missing:
        raise UserError(
            f"{part} of {task.name} has no column {missing[0]!r}; it has {', '.join(dataset.column_names)}."
        )
    return dataset


def _declared(dataset: Dataset, column: str) -> list[str] | None:
    """The label names that the data themselves declare."""
    feature = dataset.features[column]
    names = getattr(getattr(feature, "feature", feature), "names", None)
    return list(names) if names else None


def _labels_in(task: Task, parts: dict[str, Dataset]) -> tuple[str, ...]:
    names: set[str] = set()
    for dataset in parts.values():
        if task.label is not None and task.label in dataset.column_names:
            declared = _declared(dataset, task.label)
            if declared:
                return tuple(declared)
            values = dataset[task.label][:]
            names.update(chain.from_iterable(values) if task.kind == "tokens" else values)
    return columns.sorted_names({str(name) for name in names})


def _with_indices(task: Task, part: str, dataset: Dataset) -> Dataset:
    """The part with labels as indices of `task.labels`, whether they came as names or as the Hub's numbers."""
    if task.label is None or task.label not in dataset.column_names:
        return dataset
    values = dataset[task.label][:]
    if task.kind == "regression":
        hidden = all(value is None or value == -1 for value in values)  # as in the test parts of GLUE
        return dataset.remove_columns(task.label) if hidden else dataset
    flat = list(chain.from_iterable(values)) if task.kind == "tokens" else values
    if all(value is None or value == -1 for value in flat):
        return dataset.remove_columns(task.label)
    declared = _declared(dataset, task.label)
    source = declared if declared and set(declared) == set(task.labels) else task.labels
    if all(isinstance(value, int) and 0 <= value < len(task.labels) for value in flat) and list(source) == list(
        task.labels
    ):
        return dataset
    places: dict[Any, int] = {name: task.labels.index(name) for name in source}
    places.update({number: task.labels.index(name) for number, name in enumerate(source)})
    unknown = next((value for value in flat if value not in places), None)
    if any(value not in places for value in flat):
        raise UserError(f"{part} of {task.name} has the label {unknown!r}; known are {', '.join(task.labels)}.")
    indices = [[places[tag] for tag in value] if task.kind == "tokens" else places[value] for value in values]
    return dataset.remove_columns(task.label).add_column(task.label, indices)


def load_files(
    train: str | Path,
    validation: str | Path | None = None,
    test: str | Path | None = None,
    *,
    text: str | None = None,
    text_pair: str | None = None,
    label: str | None = None,
    kind: str | None = None,
) -> Data:
    """The user's own files: CSV, TSV, JSON Lines, Parquet or CoNLL columns, by their suffix.

    Without a validation file `validation` is None, and `split_validation` makes it. The test file may lack the label.
    """
    table = read_table(train)
    texts, target, notes = columns.find_columns(table, text, text_pair, label, kind)
    kind_found = columns.find_kind(table, texts, target, kind)
    if kind is None:
        notes.append(f"took the task for a {'tagging of words' if kind_found == 'tokens' else kind_found}")
    if kind_found in ("tokens", "translation") and len(texts) > 1:
        raise UserError(f"--text-pair is {texts[1]!r}, but a task of kind {kind_found} has one text.")
    task = Task(name=table.path.name, kind=kind_found, text=texts, label=target, max_length=256)
    if kind_found == "translation":
        task = dataclasses.replace(task, text=(texts[0], target), label=None)
    task = dataclasses.replace(task, labels=_own_labels(task, table))
    task = dataclasses.replace(task, metrics=_own_metrics(task))
    parts = {"train": _own_part(task, table)}
    if validation is not None:
        parts["validation"] = _own_part(task, read_table(validation))
    if test is not None:
        parts["test"] = _own_part(task, read_table(test), labelled=False)
    return _gathered(task, parts, notes)


def load_inputs(path: str | Path, task: Task) -> Data:
    """One file to predict or evaluate on, as `Data.test`, with the columns and labels of the task of a trained model.

    It need not have the label.
    """
    return Data(task, None, None, _own_part(task, read_table(path), labelled=False))


def _own_labels(task: Task, table: Table) -> tuple[str, ...]:
    if task.label is None or task.kind == "regression":
        return ()
    if task.kind == "tokens":
        sentences = columns.checked_sentences(table, task.text[0])
        names = list(chain.from_iterable(columns.tag_names(table, task.label, sentences)))
    else:
        names = columns.class_names(table, task.label)
    columns.check_classes(table, task.label, names)
    return columns.sorted_names(set(names))


def _own_metrics(task: Task) -> tuple[str, ...]:
    if task.kind == "tokens":
        entities = all(name == "O" or name[:2] in ("B-", "I-", "E-", "S-") for name in task.labels)
        return ("entity_f1", "entity_precision", "entity_recall", "token_accuracy") if entities else ("token_accuracy",)
    return {
        "classification": ("accuracy", "macro_f1"),
        "regression": ("pearson", "spearman", "rmse"),
        "translation": ("bleu",),
    }[task.kind]


def _own_part(task: Task, table: Table, labelled: bool = True) -> Dataset:
    """The texts and labels of a file, checked. Without `labelled` the label (or the translation) may be absent."""
    from datasets import Dataset, Features, List, Value

    texts = task.text
    if task.kind == "translation" and not labelled and texts[1] not in table.columns:
        texts = texts[:1]
    for name in (*texts, *([task.label] if task.label and labelled else [])):
        if name not in table.columns:
            raise UserError(f"{table.path} has no column {name!r}; it has {', '.join(table.columns)}.")
    tokens = task.kind == "tokens"
    read = columns.checked_sentences if tokens else columns.checked_texts
    found: dict[str, list[Any]] = {name: read(table, name) for name in texts}
    features = {name: List(Value("string")) if tokens else Value("string") for name in texts}
    if task.label is not None and (labelled or columns.has_labels(table, task.label, task.labels)):
        if task.kind == "regression":
            found[task.label] = columns.checked_numbers(table, task.label)
            features[task.label] = Value("float64")
        else:
            names = (
                columns.tag_names(table, task.label, found[task.text[0]])
                if tokens
                else columns.class_names(table, task.label)
            )
            # The Hub's files hold the places of the names, without the names.
            found[task.label] = columns.to_indices(table, names, task.labels, numbered=task.name in TASKS)
            features[task.label] = List(Value("int64")) if tokens else Value("int64")
    return Dataset.from_dict(found, features=Features(features))
