"""Load the splits of a task from the Hub, from a folder of Parquet files, or from the user's own files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from . import columns
from .catalogue import TASKS, Task, find_task
from .files import Table, read_arrow, read_table
from .hub import error_chain, no_progress_bars, offline_if_unreachable
from .split import few_shots, fraction, split_validation

if TYPE_CHECKING:
    from datasets import Dataset

__all__ = ["Data", "as_corpus", "few_shots", "fraction", "load_files", "load_inputs", "load_task", "split_validation"]


@dataclass
class Data:
    """The splits of a task. Labels are indices of `task.labels`, or floats for a regression.

    Attributes:
        task: The task.
        train: The training split; None only if the data were loaded to evaluate or to predict.
        validation: The validation split; None if there is none yet (see `split_validation`).
        test: The test split. A split without labels has no label column.
        others: All other splits, by name.
        notes: What was guessed, split off or left out, as sentences for the user.
    """

    task: Task
    train: Dataset | None
    validation: Dataset | None
    test: Dataset | None = None
    others: dict[str, Dataset] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def splits(self) -> dict[str, Dataset]:
        """Return the splits that exist, by name."""
        named = {"train": self.train, "validation": self.validation, "test": self.test, **self.others}
        return {name: split for name, split in named.items() if split is not None}


def _make_data(task: Task, splits: dict[str, Dataset], notes: list[str]) -> Data:
    main = {name: splits.get(name) for name in ("train", "validation", "test")}
    others = {name: split for name, split in splits.items() if name not in main}
    return Data(task, others=others, notes=notes, **main)


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
        if task.label is not None and not task.labels and task.kind != "regression":
            task = dataclasses.replace(task, labels=_labels_in(task, raw))
        splits = {split: _with_label_indices(task, split, dataset) for split, dataset in raw.items()}
    if evaluation and "validation" not in splits and task.label in getattr(splits.get("test"), "column_names", ()):
        splits["validation"] = splits["test"]
        notes.append(f"{task.name} has no validation split; its test split is evaluated")
    return _make_data(task, splits, notes)


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
    folder = next((root / name for name in task.folders if (root / name).is_dir()), None)
    if folder is None:
        raise UserError(f"--data-dir is {root}, which has no folder {' or '.join(task.folders)} for {task.name}.")
    if folder.name.endswith("_sample"):
        notes.append(f"{task.name}: {folder.name} is a sample")
    splits = {}
    for split, hub_split in task.splits.items():
        paths = _parquet_files(folder, hub_split) or _parquet_files(folder, split)
        if not paths:
            continue
        splits[split] = Dataset(pyarrow.concat_tables([read_arrow(path) for path in paths]))
        if not len(splits[split]):
            raise UserError(f"{paths[0]} has no examples.")
        if paths[0].stem.endswith("_subset"):
            notes.append(f"{split} of {task.name} is a subset, {len(splits[split]):,} examples")
    return splits


def _parquet_files(folder: Path, name: str) -> list[Path]:
    """The files of a split: one file, or its shards, or a subset."""
    whole, subset = folder / f"{name}.parquet", folder / f"{name}_subset.parquet"
    if whole.is_file():
        return [whole]
    return sorted(folder.glob(f"{name}-*-of-*.parquet")) or ([subset] if subset.is_file() else [])


def _with_task_columns(task: Task, split: str, dataset: Dataset) -> Dataset:
    """Check that the columns of the task exist. The Hub stores source and target of a translation in one column."""
    if task.kind == "translation" and "translation" in dataset.column_names:
        dataset = dataset.select_columns(["translation"]).flatten()
        dataset = dataset.rename_columns({name: name.removeprefix("translation.") for name in dataset.column_names})
    needed = [*task.text, *([task.label] if task.label and split in ("train", "validation") else [])]
    missing = [name for name in needed if name not in dataset.column_names]
    if missing:
        raise UserError(
            f"{split} of {task.name} has no column {missing[0]!r}; it has {', '.join(dataset.column_names)}."
        )
    return dataset


def _declared_labels(dataset: Dataset, column: str) -> list[str]:
    """The label names that the data set declares for a column; empty if it declares none."""
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
    return columns.sorted_names(names)


def _flat(task: Task, values: list[Any]) -> list[Any]:
    """All labels: the label of each example, or the tags of all its words."""
    return list(chain.from_iterable(values)) if task.kind == "tokens" else values


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
    if task.kind == "regression":
        return dataset
    declared = _declared_labels(dataset, task.label)
    order = tuple(declared) if set(declared) == set(task.labels) else task.labels
    if order == task.labels and all(isinstance(value, int) and 0 <= value < len(order) for value in flat):
        return dataset
    index = _index_of(task.labels, order)
    for value in flat:
        if value not in index:
            raise UserError(f"{split} of {task.name} has the label {value!r}; known are {', '.join(task.labels)}.")
    indices = [[index[tag] for tag in value] if task.kind == "tokens" else index[value] for value in values]
    return dataset.remove_columns(task.label).add_column(task.label, indices)


def _index_of(labels: Sequence[str], order: Sequence[str]) -> dict[Any, int]:
    """The index in `labels` of each name, and of each number of a data set that numbers its labels in `order`."""
    index: dict[Any, int] = {name: labels.index(name) for name in order}
    index.update({number: labels.index(name) for number, name in enumerate(order)})
    return index


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
    """Load the user's own files: CSV, TSV, JSON Lines, Parquet or CoNLL, selected by suffix.

    Args:
        train: The training file.
        validation: The validation file; without it `Data.validation` is None (see `split_validation`).
        test: The test file, which need not have labels.
        text: The text column; None = guess it from the column names.
        text_pair: The column of the second text.
        label: The label column, or the target column of a translation; None = guess it.
        kind: `classification`, `regression`, `tokens`, `translation` or `mlm` (masked language modelling, which needs
            no labels; a .txt file then has one text on each line); None = guess it from the labels.

    Example:
        ```python
        data = load_files("reviews.csv", text="review", label="stars", kind="regression")
        data = split_validation(data, share=0.1, seed=42)
        ```
    """
    if kind == "mlm":
        return _load_corpus(train, validation, test, text, {"--text-pair": text_pair, "--label": label})
    table = read_table(train)
    texts, target, notes = columns.find_columns(table, text, text_pair, label, kind)
    task_kind = columns.find_kind(table, target, kind)
    if kind is None:
        notes.append(f"treating the task as {'token classification' if task_kind == 'tokens' else task_kind}")
    if task_kind in ("tokens", "translation") and len(texts) > 1:
        raise UserError(f"--text-pair is {texts[1]!r}, but a task of kind {task_kind} has one text.")
    task = Task(name=table.path.name, kind=task_kind, text=texts, label=target, max_length=256)
    if task_kind == "translation":
        task = dataclasses.replace(task, text=(texts[0], target), label=None)
    task = dataclasses.replace(task, labels=_labels_of_file(task, table))
    task = dataclasses.replace(task, metrics=_default_metrics(task))
    splits = {"train": _split_from_table(task, table)}
    if validation is not None:
        splits["validation"] = _split_from_table(task, read_table(validation))
    if test is not None:
        splits["test"] = _split_from_table(task, read_table(test), needs_labels=False)
    return _make_data(task, splits, notes)


def _load_corpus(
    train: str | Path,
    validation: str | Path | None,
    test: str | Path | None,
    text: str | None,
    others: dict[str, str | None],
) -> Data:
    """Load files for masked language modelling. `others` are column flags that it does not use."""
    for flag, value in others.items():
        if value is not None:
            raise UserError(f"{flag} is {value!r}, but masked language modelling reads one text column and no labels.")
    table = read_table(train, has_plain_texts=True)
    column, notes = columns.find_text(table, text)
    task = Task(table.path.name, "mlm", (column,), None, metrics=("perplexity",))
    splits = {"train": _split_from_table(task, table)}
    for name, path in (("validation", validation), ("test", test)):
        if path is not None:
            splits[name] = _split_from_table(task, read_table(path, has_plain_texts=True))
    return _make_data(task, splits, notes)


def as_corpus(data: Data) -> Data:
    """Return the texts of a task for masked language modelling: each different text once, without labels.

    Args:
        data: The data of a task. Words are joined by spaces; of a translation, the source is used.
    """
    from datasets import Dataset

    task = data.task
    if task.kind == "choice":
        raise UserError(f"{task.name} is of kind choice, and its endings are no texts to learn from; use another task.")
    names = task.text[:1] if task.kind in ("translation", "tokens") else task.text

    def texts(split: Dataset) -> list[str]:
        values = chain.from_iterable(split[name][:] for name in names)
        joined = (" ".join(value) if isinstance(value, list) else value for value in values)
        return list(dict.fromkeys(text for text in joined if text and text.strip()))

    corpus = dataclasses.replace(
        task, kind="mlm", text=("text",), label=None, labels=(), metrics=("perplexity",), submission={}, synonyms={}
    )
    splits = {name: Dataset.from_dict({"text": texts(split)}) for name, split in data.splits().items()}
    return _make_data(corpus, splits, data.notes)


def load_inputs(path: str | Path, task: Task) -> Data:
    """Load one file to predict or to evaluate, as `Data.test`.

    Args:
        path: The file, with the columns of the task. The label column may be absent.
        task: The task of the trained model.
    """
    table = read_table(path, has_plain_texts=task.kind == "mlm")
    return Data(task, None, None, _split_from_table(task, table, needs_labels=False))


def _labels_of_file(task: Task, table: Table) -> tuple[str, ...]:
    if task.label is None or task.kind == "regression":
        return ()
    if task.kind == "tokens":
        sentences = columns.checked_sentences(table, task.text[0])
        names = list(chain.from_iterable(columns.tag_names(table, task.label, sentences)))
    else:
        names = columns.class_names(table, task.label)
    columns.check_classes(table, task.label, names)
    return columns.sorted_names(set(names))


def _default_metrics(task: Task) -> tuple[str, ...]:
    if task.kind == "tokens":
        are_entities = all(name == "O" or name[:2] in ("B-", "I-", "E-", "S-") for name in task.labels)
        of_entities = ("entity_f1", "entity_precision", "entity_recall") if are_entities else ()
        return (*of_entities, "token_accuracy")
    return {
        "classification": ("accuracy", "macro_f1"),
        "regression": ("pearson", "spearman", "rmse"),
        "translation": ("bleu",),
    }[task.kind]


def _split_from_table(task: Task, table: Table, needs_labels: bool = True) -> Dataset:
    """Check the texts and labels of a file and make a data set of them.

    Without `needs_labels` the label column, or the target of a translation, may be absent.
    """
    from datasets import Dataset, Features, List, Value

    texts = task.text
    if task.kind == "translation" and not needs_labels and texts[1] not in table.columns:
        texts = texts[:1]
    for name in (*texts, *([task.label] if task.label and needs_labels else [])):
        if name not in table.columns:
            raise UserError(f"{table.path} has no column {name!r}; it has {', '.join(table.columns)}.")
    is_tokens = task.kind == "tokens"
    read = columns.checked_sentences if is_tokens else columns.checked_texts
    values: dict[str, list[Any]] = {name: read(table, name) for name in texts}
    features = {name: List(Value("string")) if is_tokens else Value("string") for name in texts}
    if task.label is not None and (needs_labels or columns.has_labels(table, task.label, task.labels)):
        values[task.label] = _read_labels(task, task.label, table, values[task.text[0]])
        number = Value("float64" if task.kind == "regression" else "int64")
        features[task.label] = List(number) if is_tokens else number
    return Dataset.from_dict(values, features=Features(features))


def _read_labels(task: Task, column: str, table: Table, texts: list[Any]) -> list[Any]:
    """The labels of a file as numbers: floats for a regression, otherwise indices of `task.labels`."""
    if task.kind == "regression":
        return columns.checked_numbers(table, column)
    is_tokens = task.kind == "tokens"
    names = columns.tag_names(table, column, texts) if is_tokens else columns.class_names(table, column)
    # A file in the Hub's format holds the indices of the labels and not their names.
    return columns.to_indices(table, names, task.labels, accept_indices=task.name in TASKS)
