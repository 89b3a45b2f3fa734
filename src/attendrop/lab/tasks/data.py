"""Load the splits of a task from the Hub or from a folder of Parquet files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from .catalogue import Task, find_task
from .files import read_arrow
from .hub import error_chain, no_progress_bars, offline_if_unreachable
from .kinds import kind_of
from .modalities import modality_of
from .origin import Origin, without_rows
from .values import sorted_names

if TYPE_CHECKING:
    from datasets import Dataset


_MAIN = ("train", "validation", "test")


@dataclass
class Data:
    """The splits of a task. Labels are indices of `task.labels`, or floats for a regression.

    Attributes:
        task: The task.
        train: The training split; None only if the data were loaded to evaluate or to predict.
        validation: The validation split; None if there is none yet (see `split_validation`).
        test: The test split. A split without labels has no label column.
        others: All other splits, by name.
        notes: Sentences for the user about guesses, splits and excluded rows.
        origin: Where the examples were in the user's files; None for a task of the catalogue.
        available: Split of which only a sample is used -> the number of examples that it was drawn from.
    """

    task: Task
    train: Dataset | None
    validation: Dataset | None
    test: Dataset | None = None
    others: dict[str, Dataset] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    available: dict[str, int] = field(default_factory=dict)
    origin: Origin | None = None
    _apart: Data | None = field(default=None, init=False, repr=False, compare=False)

    def encoded_apart(self) -> Data:
        """Return the same data with a task whose texts are encoded apart; the same object for each call."""
        if self._apart is None:
            self._apart = dataclasses.replace(self, task=dataclasses.replace(self.task, is_encoded_apart=True))
        return self._apart

    def splits(self) -> dict[str, Dataset]:
        """Return the splits that exist, by name."""
        named = {"train": self.train, "validation": self.validation, "test": self.test, **self.others}
        return {name: split for name, split in named.items() if split is not None}

    def with_splits(self, splits: Mapping[str, Dataset]) -> Data:
        """Return a copy that has these splits, by name."""
        others = {name: split for name, split in splits.items() if name not in _MAIN}
        train, validation, test = map(splits.get, _MAIN)
        return dataclasses.replace(self, train=train, validation=validation, test=test, others=others)


def content_of(split: Dataset, task: Task) -> Dataset:
    """Return a split by its content: without the numbers of its rows, and with checksums of files for their paths.

    Args:
        split: A split of `Data`.
        task: Its task.
    """
    split, modality = without_rows(split), modality_of(task)
    for column in task.text if modality.reads_files else ():
        digests = modality.keys(task, split[column][:])
        split = split.remove_columns(column).add_column(column, digests)
    return split


def make_data(task: Task, splits: dict[str, Dataset], notes: list[str]) -> Data:
    """Return `Data` with these splits."""
    return Data(task, None, None, notes=notes).with_splits(splits)


def load_task(name: str, data_dir: str | Path | None = None, *, evaluation: bool = False) -> Data:
    """Load a task of the catalogue.

    Args:
        name: The name of the task, such as `glue/rte`.
        data_dir: A folder with `<task>/<split>.parquet` files that have the column names of the Hub; None = the Hub.
        evaluation: Load for evaluation only. A training split is then not needed, and if only the test split has
            labels, it becomes the validation split.

    Example:
        ```python
        data = load_task("glue/rte")
        print(len(data.train), data.task.labels)
        ```
    """
    task = find_task(name)
    notes: list[str] = []
    with no_progress_bars():
        raw = _from_hub(task) if data_dir is None else _from_folder(task, Path(data_dir).expanduser(), notes)
        if "train" not in raw and not evaluation:
            reason = "is for evaluation only" if "train" not in task.splits else f"has no training split in {data_dir}"
            raise UserError(f"{task.name} {reason}; train on another task and use it with --also-eval.")
        if not raw:
            raise UserError(f"{task.name} has none of its splits ({', '.join(task.splits.values())}) in {data_dir}.")
        raw = {split: _with_task_columns(task, split, dataset) for split, dataset in raw.items()}
        if task.label is not None and not task.labels and not kind_of(task).has_numbers:
            task = dataclasses.replace(task, labels=_labels_in(task, raw))
        splits = {split: _with_label_indices(task, split, dataset) for split, dataset in raw.items()}
    if evaluation and "validation" not in splits and task.label in getattr(splits.get("test"), "column_names", ()):
        splits["validation"] = splits["test"]
        notes.append(f"{task.name} has no validation split; its test split is evaluated")
    return make_data(task, splits, notes)


def _from_hub(task: Task) -> dict[str, Dataset]:
    import datasets

    if task.hub is None:
        raise UserError(
            f"{task.name} is not on the Hub ({task.missing}); name the folder with its files with --data-dir."
        )
    options = {"revision": task.hub_revision} if task.hub_revision else {}
    try:
        with offline_if_unreachable():
            loaded = datasets.load_dataset(task.hub, task.hub_config, **options)
    except Exception as error:
        source = f"the data of {task.name} ({task.hub} on the Hub)"
        if any(isinstance(cause, ConnectionError) or "Offline" in type(cause).__name__ for cause in error_chain(error)):
            raise UserError(
                f"{source} cannot be reached; check the connection, or name a folder of Parquet files with --data-dir."
            ) from error
        raise UserError(f"{source} cannot be loaded: {_first_line(error)}") from error
    return {split: loaded[hub_split] for split, hub_split in task.splits.items() if hub_split in loaded}


def _first_line(error: Exception) -> str:
    return f"{(str(error).strip() or type(error).__name__).splitlines()[0].rstrip('.')}."


def _from_folder(task: Task, root: Path, notes: list[str]) -> dict[str, Dataset]:
    import pyarrow
    from datasets import Dataset

    if not root.is_dir():
        raise UserError(f"--data-dir is {root}, which is not a folder.")
    if (folder := _folder_of(task, root)) is None:
        raise UserError(f"--data-dir is {root}, which has no folder {' or '.join(task.folders)} for {task.name}.")
    if folder.name.endswith("_sample"):
        notes.append(f"{task.name}: {folder.name} is a sample")
    splits = {}
    for split, paths in _files_of_splits(task, folder).items():
        splits[split] = Dataset(pyarrow.concat_tables([read_arrow(path) for path in paths]))
        if not len(splits[split]):
            raise UserError(f"{paths[0]} has no examples.")
        if paths[0].stem.endswith("_subset"):
            notes.append(f"{split} of {task.name} is a subset, {len(splits[split]):,} examples")
    return splits


def files_of_task(name: str, root: Path) -> list[Path]:
    """Return the files from which `load_task` reads a task.

    Args:
        name: The name of the task.
        root: A folder of Parquet files.
    """
    task = find_task(name)
    folder = _folder_of(task, root)
    return [] if folder is None else [path for paths in _files_of_splits(task, folder).values() for path in paths]


def _folder_of(task: Task, root: Path) -> Path | None:
    return next((root / name for name in task.folders if (root / name).is_dir()), None)


def _files_of_splits(task: Task, folder: Path) -> dict[str, list[Path]]:
    files = {
        split: _parquet_files(folder, hub_split) or _parquet_files(folder, split)
        for split, hub_split in task.splits.items()
    }
    return {split: paths for split, paths in files.items() if paths}


def _parquet_files(folder: Path, name: str) -> list[Path]:
    """Return the files of a split: one file, or its shards, or a subset."""
    whole, subset = folder / f"{name}.parquet", folder / f"{name}_subset.parquet"
    if whole.is_file():
        return [whole]
    return sorted(folder.glob(f"{name}-*-of-*.parquet")) or ([subset] if subset.is_file() else [])


def _with_task_columns(task: Task, split: str, dataset: Dataset) -> Dataset:
    """Check that the columns of the task exist."""
    dataset = kind_of(task).from_hub(dataset)
    needed = [*task.text, *([task.label] if task.label and split in ("train", "validation") else [])]
    missing = [name for name in needed if name not in dataset.column_names]
    if missing:
        raise UserError(
            f"{split} of {task.name} has no column {missing[0]!r}; it has {', '.join(dataset.column_names)}."
        )
    return dataset


def _declared_labels(dataset: Dataset, column: str) -> list[str]:
    """Return the label names that the data set declares for a column; empty if it declares none."""
    feature = dataset.features[column]
    return list(getattr(getattr(feature, "feature", feature), "names", None) or [])


def _labels_in(task: Task, splits: dict[str, Dataset]) -> tuple[str, ...]:
    names: set[str] = set()
    for dataset in splits.values():
        if task.label is not None and task.label in dataset.column_names:
            declared = _declared_labels(dataset, task.label)
            if declared:
                return tuple(declared)
            names.update(map(str, _flat(task, dataset[task.label][:])))
    return sorted_names(names)


def _flat(task: Task, values: list[Any]) -> list[Any]:
    """Return all labels: the label of each example, or the tags of all its words."""
    return list(chain.from_iterable(values)) if kind_of(task).labels_are_lists else values


def _with_label_indices(task: Task, split: str, dataset: Dataset) -> Dataset:
    """Convert labels, which may be names or the numbers of the Hub, to indices of `task.labels`.

    The label column is removed if all labels are hidden, as in the test splits of GLUE.
    """
    if task.label is None or task.label not in dataset.column_names:
        return dataset
    values = dataset[task.label][:]
    flat = _flat(task, values)
    if all(value is None or value == -1 for value in flat):
        return dataset.remove_columns(task.label)
    if kind_of(task).has_numbers:
        return dataset
    declared = _declared_labels(dataset, task.label)
    order = tuple(declared) if set(declared) == set(task.labels) else task.labels
    if order == task.labels and all(isinstance(value, int) and 0 <= value < len(order) for value in flat):
        return dataset
    index = _index_of(task.labels, order)
    for value in flat:
        if value not in index:
            raise UserError(f"{split} of {task.name} has the label {value!r}; known are {', '.join(task.labels)}.")
    are_lists = kind_of(task).labels_are_lists
    indices = [[index[name] for name in value] if are_lists else index[value] for value in values]
    return dataset.remove_columns(task.label).add_column(task.label, indices)


def _index_of(labels: Sequence[str], order: Sequence[str]) -> dict[Any, int]:
    """Return the index in `labels` of each name, and of each number of a data set with labels in `order`."""
    index: dict[Any, int] = {name: labels.index(name) for name in order}
    index.update({number: labels.index(name) for number, name in enumerate(order)})
    return index


def as_corpus(data: Data) -> Data:
    """Return the texts of a task for masked language modelling: each different text once, without labels.

    Args:
        data: The data of a task. Words are joined by spaces; of a translation, the source is used.
    """
    from datasets import Dataset

    task = data.task
    names = kind_of(task).corpus(task)

    def texts(split: Dataset) -> list[str]:
        values = chain.from_iterable(split[name][:] for name in names)
        joined = (" ".join(value) if isinstance(value, list) else value for value in values)
        return list(dict.fromkeys(text for text in joined if text and text.strip()))

    corpus = dataclasses.replace(
        task, kind="mlm", text=("text",), label=None, labels=(), metrics=("perplexity",), submission={}, synonyms={}
    )
    splits = {name: Dataset.from_dict({"text": texts(split)}) for name, split in data.splits().items()}
    return make_data(corpus, splits, data.notes)
