"""Predict with the model of a finished run: a few texts, or a whole file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset

from ...errors import UserError, on_one_line
from ...utils.checks import check_choice, check_number, check_whole
from ...utils.deprecation import warn_renamed
from .. import tasks
from ..evaluation.tables import BINARY_FORMATS, FORMATS, free_name, labels_as_names, prediction_columns, write_table
from ..statistics.calibration import softmax
from ..tasks.files import Table, divided
from ..tasks.files.delimited import SEPARATORS
from ..tasks.kinds import Answers
from .decisions import UNSURE, Required, Rule, choose_rule
from .folder import RECORD_FILE, check_writable, read_record
from .inference import CollatedRows, Rows, run_model
from .onnx_model import ENGINES, TORCH, load_exported

STANDARD_INPUT = "-"
Progress = Callable[[int, int], None]


@dataclass
class Predictions:
    """The predictions for a file.

    Attributes:
        path: The file that was written; None = the standard output.
        examples: The number of predictions.
        form: How the file is written if it is as an unusual file that was read: `semicolons, cp1252`.
        scores: The scores, if the file has labels.
        notes: Notes about the file, such as excluded rows.
        decisions: How many predictions are unsure, and what to expect, in sentences.
    """

    path: Path | None
    examples: int
    form: str = ""
    scores: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    decisions: list[str] = field(default_factory=list)

    @property
    def metrics(self) -> dict[str, float]:
        """Deprecated: use `scores`."""
        warn_renamed("Predictions.metrics", "Predictions.scores")
        return self.scores

    @property
    def rows(self) -> int:
        """Deprecated: use `examples`."""
        warn_renamed("Predictions.rows", "Predictions.examples")
        return self.examples


@dataclass
class Finished:
    """The prediction settings of a finished run.

    Attributes:
        folder: Its folder.
        task: The task.
        max_length: The maximum length, of texts in tokens, of sounds in seconds.
        temperature: Logits are divided by it; fitted on the validation data.
        decimals: The decimals of a regression's predictions.
        threshold: The probability above which a label is predicted, for several labels.
        rule: Which predictions are given, and which classes are still possible; None = no such columns.
    """

    folder: str | Path
    task: tasks.Task
    max_length: int
    temperature: float = 1.0
    decimals: int = 4
    threshold: float = 0.5
    rule: Rule | None = None

    def load(self, engine: str = TORCH) -> Predictor:
        """Load the model and its tokenizer.

        Args:
            engine: "torch", or "onnx" or "onnx-int8" for a file that `attendrop export` wrote.
        """
        check_choice("engine", engine, ENGINES)
        tokenizer = tasks.load_processor(str(self.folder), self.task)
        if engine != TORCH:
            return Predictor(self, tokenizer, load_exported(self.folder, engine))
        model = tasks.load_model(str(self.folder), self.task, tokenizer=tokenizer, is_finished=True)
        model.to("cuda" if torch.cuda.is_available() else "cpu")
        return Predictor(self, tokenizer, model)


@dataclass
class Predictor:
    """A finished run whose model is in memory.

    Attributes:
        run: The run.
        tokenizer: The tokenizer, image processor or feature extractor.
        model: The model, on its device.
    """

    run: Finished
    tokenizer: Any
    model: Any

    def outputs(self, data: tasks.Data, batch_size: int, progress: Progress | None = None) -> Outputs:
        """Run the model on `data.test`.

        Args:
            data: The data.
            batch_size: The number of examples in a batch.
            progress: Called after each batch with the number of examples that are done, and of all.
        """
        prepared = tasks.prepare(data, self.tokenizer, self.run.max_length)
        split, starts = prepared.test, prepared.word_starts.get("test")
        assert split is not None
        rows = (
            CollatedRows(split, prepared.collator)
            if prepared.keeps_columns
            else Rows.of_split(split, self.tokenizer, tasks.kind_of(self.run.task).has_endings)
        )
        return Outputs(self.run, data, self._values(rows, starts, len(split), batch_size, progress), starts)

    def columns(self, texts: Sequence[Any], batch_size: int) -> dict[str, list[Any]]:
        """Return the columns of texts and of their predictions.

        Args:
            texts: The texts; for a task of text pairs, two for each example. In tagging, each may be a list of words.
            batch_size: The number of examples in a batch.
        """
        run = self.run
        columns = _example_columns(run.task, texts)
        if tasks.modality_of(run.task).reads_files:
            data = tasks.Data(run.task, None, None, Dataset.from_dict(columns))
            return {**columns, **self.outputs(data, batch_size).columns(tuple(columns))}
        encoded = self._encoder(columns)
        starts = encoded.pop("word_starts", None)
        rows = Rows.of_lists(encoded, self.tokenizer, tasks.kind_of(run.task).has_endings)
        values = self._values(rows, starts, len(next(iter(columns.values()))), batch_size)
        outputs = Outputs(run, tasks.Data(run.task, None, None), values, starts)
        return {**columns, **outputs.columns(tuple(columns))}

    @cached_property
    def _encoder(self) -> Any:
        modality, notes = tasks.modality_of(self.run.task), list[str]()
        length = modality.length_limit(self.run.task, self.tokenizer, self.run.max_length, notes)
        return modality.encoder(self.run.task, self.tokenizer, length)

    def _values(self, rows: Any, starts: Any, total: int, batch_size: int, progress: Progress | None = None) -> Any:
        done = 0

        def count(examples: int) -> None:
            nonlocal done
            done += examples
            if progress is not None:
                progress(done, total)

        run = self.run
        values = run_model(self.model, rows, self.tokenizer, run.task, batch_size, run.max_length, count, starts)
        return tasks.kind_of(run.task).as_values(values)


@dataclass
class Outputs:
    """The outputs of the model of a run for `data.test`."""

    run: Finished
    data: tasks.Data
    values: Any
    word_starts: Sequence[Sequence[int]] | None

    def columns(self, taken: Sequence[str] = ()) -> dict[str, list[Any]]:
        """Return the columns that the predictions add to those in `taken`."""
        run = self.run
        columns = prediction_columns(
            run.task, self.values, temperature=run.temperature, decimals=run.decimals, threshold=run.threshold,
            word_starts=self.word_starts, taken=taken,
        )  # fmt: skip
        if run.rule is not None:
            added = run.rule.columns(run.task, softmax(self.values, run.temperature))
            columns |= {free_name(name, (*taken, *columns)): column for name, column in added.items()}
        return columns

    def answers(self) -> Answers | None:
        """Return the predictions and the references; None if the file has no labels."""
        split, task = self.data.test, self.run.task
        kind = tasks.kind_of(task)
        if split is None or kind.target(task) not in split.column_names:
            return None
        return replace(kind.answers.of(task, self.values, split, self.word_starts), threshold=self.run.threshold)


def predict_texts(
    folder: str | Path, texts: Sequence[str], batch_size: int = 32, temperature: float | None = None
) -> Iterator[tuple[str, Any]]:
    """Predict texts, and yield each text (or pair of texts) with its prediction.

    Args:
        folder: The folder of a finished run.
        texts: The texts; for a task of text pairs, two for each example.
        batch_size: The number of examples in a batch.
        temperature: Logits are divided by it; None = that of the run.
    """
    columns, task = text_columns(folder, texts, batch_size, temperature)
    shown = zip(*(columns[name] for name in tasks.kind_of(task).inputs(task)), strict=True)
    for parts, prediction in zip(shown, columns[_added(columns, task)], strict=True):
        yield " | ".join(" ".join(p) if isinstance(p, list) else p for p in parts), tasks.as_text(task, prediction)


def _added(columns: dict[str, list[Any]], task: tasks.Task) -> str:
    """Return the name of the column with the predictions: the first one after the texts."""
    return next(name for name in columns if name not in task.text)


def text_columns(
    folder: str | Path,
    texts: Sequence[str],
    batch_size: int = 32,
    temperature: float | None = None,
    required: Required = Required(),  # noqa: B008
    engine: str = TORCH,
) -> tuple[dict[str, list[Any]], tasks.Task]:
    """Predict texts, and return the columns of the texts and of the predictions, and the task.

    Args:
        folder: The folder of a finished run.
        texts: The texts; for a task of text pairs, two for each example.
        batch_size: The number of examples in a batch.
        temperature: Logits are divided by it; None = that of the run.
        required: Which predictions are given, and whether prediction sets are listed.
        engine: "torch", or "onnx" or "onnx-int8" for a file that `attendrop export` wrote.
    """
    check_whole("batch_size", batch_size, 1)
    check_choice("engine", engine, ENGINES)
    run = read_finished(folder, temperature, required)
    _example_columns(run.task, texts)  # what cannot be predicted is refused before the model is loaded
    return run.load(engine).columns(texts, batch_size), run.task


def _example_columns(task: tasks.Task, texts: Sequence[Any]) -> dict[str, list[Any]]:
    """Return texts as the columns of the task; raise a `UserError` if one cannot be predicted."""
    kind = tasks.kind_of(task)
    width = len(kind.inputs(task))
    if len(texts) % width:
        raise UserError(f"{len(texts)} texts are given, but one example of {task.name} has {width}.")
    for number, text in enumerate(texts, 1):
        parts = [text] if isinstance(text, str) else text
        joined = " ".join(parts)
        problem = (
            "has a NUL character" if "\0" in joined
            else "has half of a surrogate pair, which is no character" if not _is_unicode(joined)
            else "is empty" if not parts or not all(part.strip() for part in parts)
            else None
        )  # fmt: skip
        if problem is not None:
            raise UserError(f"text {number} of {len(texts)} {problem}; give a text with at least one word.")
    columns: dict[str, list[Any]] = {name: list(texts[i::width]) for i, name in enumerate(task.text[:width])}
    if kind.is_per_word:
        split = {name: [t.split() if isinstance(t, str) else list(t) for t in of] for name, of in columns.items()}
        columns = {**columns, **split}
    for name, values in columns.items():
        for value in values:
            if (unusable := tasks.modality_of(task).problem(task, name, value)) is not None:
                raise UserError(f"the example {unusable.text}; {unusable.advice}.")
    return columns


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def predict_file(
    folder: str | Path,
    file: str | Path,
    output: str | Path | None,
    batch_size: int = 32,
    overwrite: bool = False,
    options: tasks.ReadOptions | None = None,
    form: str | None = None,
    temperature: float | None = None,
    progress: Progress | None = None,
    required: Required = Required(),  # noqa: B008
    engine: str = TORCH,
) -> Predictions:
    """Write all columns of a file with a prediction for each row, and compute the scores if the file has labels.

    Args:
        folder: The folder of a finished run.
        file: The file to predict, with the columns of the training file; `-` = a table from the standard input.
        output: The file to write; None = `<file>_predictions` next to `file` with its suffix, or the standard output
            if `file` is `-`. A CSV or TSV file has the separator and the encoding of `file`.
        batch_size: The number of examples in a batch.
        overwrite: Whether `output` may be replaced.
        options: The encoding and the separator of `file`.
        form: `csv`, `tsv`, `jsonl`, `parquet` or `xlsx`; None = that of `output`, or of `file`.
        temperature: Logits are divided by it; None = that of the run.
        progress: Called after each batch with the number of examples that are done, and of all.
        required: Which predictions are given, and whether prediction sets are listed.
        engine: "torch", or "onnx" or "onnx-int8" for a file that `attendrop export` wrote.
    """
    check_whole("batch_size", batch_size, 1)
    check_choice("engine", engine, ENGINES)
    run = read_finished(folder, temperature, required)
    form = _chosen_format(form, file, output)
    path = _output_path(file, output, form)
    if path is None and form in BINARY_FORMATS:
        raise UserError(f"format is {form!r}, which cannot go to the standard output; name a file with --output.")
    if path is not None:
        _check_output(path, divided(file)[0], overwrite)
    data, table = read_rows(file, run.task, options)
    columns = dict(table.columns)
    outputs = run.load(engine).outputs(data, batch_size, progress)
    assert data.test is not None
    task = run.task
    if task.label in columns and task.label in data.test.column_names:
        columns[task.label] = labels_as_names(task, data.test)
    if tasks.kind_of(task).is_per_word:
        columns[task.text[0]] = list(data.test[task.text[0]])
    added = outputs.columns(tuple(columns))
    columns |= added
    separator, encoding = None, "utf-8"
    if path is not None and form in ("csv", "tsv"):
        separator = table.separator if form == table.form else None
        encoding = _encoding_of(table, [*columns, *added[next(iter(added))]], data.notes)
    write_table(path, columns, task, form, separator, encoding)
    shown = [SEPARATORS[separator] if separator in (";", "|") else "", encoding if encoding != "utf-8" else ""]
    written = ", ".join(filter(None, shown))
    return Predictions(path, len(data.test), written, _scores(outputs), data.notes, done_sentences(run, added))


def done_sentences(run: Finished, added: Mapping[str, Sequence[Any]]) -> list[str]:
    """Describe the rule of a run, and how many predictions are unsure.

    Args:
        run: The run.
        added: The columns of the predictions.
    """
    if run.rule is None:
        return []
    sentences, decisions = list(run.rule.sentences), next((added[n] for n in added if n.startswith("decision")), None)
    if run.rule.least is not None and decisions is not None:
        unsure = list(decisions).count(UNSURE)
        sentences.append(f"{unsure:,} of {len(decisions):,} are {UNSURE} ({unsure / max(len(decisions), 1):.1%})")
    return sentences


def _encoding_of(table: Table, added: Iterable[Any], notes: list[str]) -> str:
    """Return the encoding of a table, or UTF-8 with a note if a name or a prediction cannot be written in it."""
    for text in dict.fromkeys(part for value in added for part in (value if isinstance(value, list) else [value])):
        try:
            str(text).encode(table.encoding)
        except UnicodeError:
            notes.append(f"{table.path} is {table.encoding}, which cannot write {text!r}; the predictions are UTF-8")
            return "utf-8"
    return table.encoding


def read_rows(file: str | Path, task: tasks.Task, options: tasks.ReadOptions | None) -> tuple[tasks.Data, Table]:
    """Load a file, or a table from the standard input, whose format is recognised.

    Args:
        file: The file; `-` = the standard input.
        task: The task.
        options: The encoding and the separator.
    """
    if str(file) != STANDARD_INPUT:
        return tasks.load_rows(file, task, options)
    content = sys.stdin.buffer.read()
    is_json = content.lstrip()[:1] in (b"{", b"[")
    is_table = not tasks.kind_of(task).is_per_word
    suffix = ".parquet" if content[:4] == b"PAR1" else ".jsonl" if is_json else ".csv" if is_table else ".txt"
    return tasks.load_rows(f"standard input{suffix}", task, options, content)


def _scores(outputs: Outputs) -> dict[str, float]:
    answers = outputs.answers()
    if answers is None:
        return {}
    pair = answers.for_metrics(answers.predicted)
    return {name: tasks.METRICS[name](*pair) for name in answers.task.metrics}


def _chosen_format(form: str | None, file: str | Path, output: str | Path | None) -> str:
    """Return the format of the predictions: the named one, that of the output, or that of the input."""
    suffix = Path(output).suffix.lower().removeprefix(".") if output and str(output) != STANDARD_INPUT else None
    if form is None:
        if suffix is not None and suffix not in FORMATS:
            raise UserError(f"output is {str(output)!r}; it must end in {', '.join(f'.{name}' for name in FORMATS)}.")
        return suffix or _format_of(file)
    check_choice("format", form, FORMATS)
    if suffix is not None and suffix != form:
        raise UserError(f"output is {str(output)!r}, but format is {form!r}; the file must end in .{form}.")
    return form


def _output_path(file: str | Path, output: str | Path | None, form: str) -> Path | None:
    if output is not None:
        return None if str(output) == STANDARD_INPUT else Path(output)
    if str(file) == STANDARD_INPUT:
        return None
    path = _uncompressed(file)
    return path.with_name(f"{path.stem}_predictions.{form}")


def _uncompressed(file: str | Path) -> Path:
    """Return the path of a file without the name of a sheet and without `.gz`."""
    path = divided(file)[0]
    return path.with_suffix("") if path.suffix.lower() == ".gz" else path


def _format_of(file: str | Path) -> str:
    """Return the format in which the predictions for a file are written: its own, or else CSV."""
    suffix = _uncompressed(file).suffix.lower().removeprefix(".")
    return "jsonl" if suffix in ("json", "ndjson") else suffix if suffix in FORMATS else "csv"


def read_finished(folder: str | Path, temperature: float | None = None, required: Required = Required()) -> Finished:  # noqa: B008
    """Read the prediction settings of a finished run.

    Args:
        folder: The folder of the run.
        temperature: Logits are divided by it; None = the temperature of the run.
        required: Which predictions are given, and whether prediction sets are listed.
    """
    if temperature is not None:
        check_number("temperature", temperature, 0.01, 100)
    record = read_record(folder)
    try:
        task, max_length = tasks.Task.from_dict(record.task_definition), record.max_length
        check_choice("kind", task.kind, tasks.KINDS)
        check_whole("max_length", max_length, 1)
        check_number("threshold", record.threshold, 0, 1, is_above=True, is_below=True)
        check_number("temperature", record.temperature, 0, is_above=True)
        check_whole("decimals", record.decimals, 0)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        path = str(Path(folder, RECORD_FILE))
        raise UserError(
            f"{path!r} is damaged ({type(error).__name__}: {on_one_line(error)}); copy it again, or train again."
        ) from None
    if not tasks.kind_of(task).has_answers:
        raise UserError(
            f"{str(folder)!r} holds a masked language model, which has no labels to predict; fine-tune it first with "
            "`attendrop train --model`."
        )
    chosen = record.temperature if temperature is None else temperature
    rule = choose_rule(folder, task, chosen, required) if required else None
    return Finished(folder, task, max_length, chosen, record.decimals, record.threshold, rule)


def _check_output(path: Path, file: Path, overwrite: bool) -> None:
    """Refuse a file that cannot or must not be written, before anything is predicted."""
    if path.is_dir():
        raise UserError(f"output is {str(path)!r}, which is a folder; it must be a file.")
    if path.exists() and file.exists() and path.samefile(file):
        raise UserError(f"output is {str(path)!r}, which is the input file; choose another with --output.")
    if path.exists() and not overwrite:
        raise UserError(f"output is {str(path)!r}, which exists; choose another with --output or use --overwrite.")
    check_writable(path.parent, "output", path, may_create=False)
