"""Compresses the model of a finished run, and writes a run folder that the other commands read."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import shutil
import time
from pathlib import Path
from typing import Any

import torch

from ...errors import UserError, on_one_line
from ...model.pooled_config import pooling_of
from ...prune import LayerPlan, UnreachableError, plan_of
from ...prune.compression import STATE, Compressed, Compression
from ...prune.stock_layout import constants_of, is_exact
from ...utils.checks import check_number, check_whole
from ...utils.files import load_json, write_json, write_whole
from ...utils.lock import locked
from .. import tasks
from ..evaluation.answers_compared import compare_answers, score_sentence
from ..evaluation.evaluator import EVALUATION_FILE
from ..evaluation.scores import choose_temperature, evaluate
from ..evaluation.tables import error_columns, write_evaluation, write_table
from ..evaluation.thresholds import choose_threshold
from ..records import BaselineScores, CompressionRecord, CompressionStage, Cost, FolderRecord
from ..runs.decisions import write_outputs
from ..runs.folder import CONFIG_FILE, check_writable, clear_folder, mark_unfinished, read_record, write_results
from ..runs.predict import Finished, Outputs, Predictor
from ..runs.recipe import rate_for, width_of
from ..runs.run import versions
from ..statistics.paired_scores import Difference, examples_needed
from ..tasks.kinds import Answers
from .data import CompressionData, on_device, read_data
from .ensemble import ensemble_targets
from .figure import plot_compression
from .listener import Listener

STAGES, _SETTINGS = "compression", "settings.json"  # the folder of the stages in the output folder, until the end
FIGURE, TABLE = "compression.png", "compression.csv"
TOLERANCE = 0.01  # a loss of the score that counts as none, where the user names no other


@dataclasses.dataclass(frozen=True)
class Settings:
    """The settings of a compression; see `compress_run`."""

    target: float | None = None
    tolerance: float | None = None
    count: int | None = None
    unlabelled: str | None = None
    teacher: str | None = None
    teacher_method: str | None = None
    ways: tuple[str, ...] | None = None
    layers: str = "top"
    gate_threshold: float | None = None
    stage_epochs: float = 1.0
    final_epochs: float = 3.0
    learning_rate: float | None = None
    batch_size: int = 16
    seed: int = 0
    best_effort: bool = False


@dataclasses.dataclass
class CompressedRun:
    """The result of a compression.

    Attributes:
        folder: The folder that was written.
        record: The record of the run; `record.compression` says what was done.
        model: The compressed model.
    """

    folder: Path
    record: FolderRecord
    model: Any

    @property
    def compression(self) -> CompressionRecord:
        """How the model was compressed."""
        assert self.record.compression is not None
        return self.record.compression


def compress_run(
    folder: str | Path,
    output_dir: str | Path | None = None,
    *,
    overwrite: bool = False,
    listener: Listener | None = None,
    **settings: Any,
) -> CompressedRun:
    """Compress the model of a finished run, as `attendrop compress` does.

    A call that was killed goes on where it was, with the same settings.

    Args:
        folder: The folder of the run.
        output_dir: The folder to write; None = the name of the run with `-compressed`.
        overwrite: Whether an earlier run in it is replaced.
        listener: Receives what happens; None = nothing does.
        **settings: The fields of `Settings`: `target`, a speed-up such as 2, or `tolerance`, an allowed loss of the
            score such as 0.01, or `count`, a number of edits; `unlabelled`, a file with further texts; `teacher`, the
            folder of a study whose seeds together are learned from; `ways`, `layers`, `gate_threshold`,
            `stage_epochs`, `final_epochs`, `learning_rate`, `batch_size`, `seed`;
            `best_effort`, to write a model also where the target is not reached.

    Example:
        ```python
        done = compress_run("runs/reviews", target=2)
        print(done.compression.sentences)
        ```
    """
    listener, chosen = listener or Listener(), Settings(**settings)
    _check(chosen)
    record = read_record(folder)
    place = Path(output_dir) if output_dir is not None else Path(f"{str(folder).rstrip('/')}-compressed")
    digest = _digest(folder, record, chosen)
    _check_place(place, Path(folder), overwrite, digest)
    run = _finished(folder, record)
    tokenizer = tasks.load_processor(str(folder), run.task)
    model = tasks.load_model(str(folder), run.task, tokenizer=tokenizer, is_finished=True)
    _check_model(folder, record, model)
    model.to("cuda" if torch.cuda.is_available() else "cpu").eval()
    data = read_data(folder, record, tokenizer, chosen.unlabelled, chosen.batch_size, chosen.seed)
    _note_examples(data, chosen, listener)
    with locked(place):
        if overwrite:
            clear_folder(place)
        return _Work(folder, record, chosen, listener, place, digest, run, tokenizer, model, data).run()


def _check(settings: Settings) -> None:
    if [settings.target, settings.tolerance, settings.count].count(None) != 2:
        raise UserError(
            "give one of --target, a speed-up such as 2x; --tolerance, a loss of the score such as 0.01; and --count, "
            "a number of edits."
        )
    if settings.target is not None:
        check_number("target", settings.target, 1, 100, is_above=True)
    if settings.tolerance is not None:
        check_number("tolerance", settings.tolerance, 0, 1, is_below=True)
    if settings.count is not None:
        check_whole("count", settings.count, 1)
    if settings.gate_threshold is not None:
        check_number("gate_threshold", settings.gate_threshold, 0, 1)
        if settings.layers != "gate":
            raise UserError(f"gate_threshold is for --layers gate, and layers is {settings.layers!r}.")
    for name in ("stage_epochs", "final_epochs"):
        check_number(name, getattr(settings, name), 0, 1000)
    if settings.learning_rate is not None:
        check_number("learning_rate", settings.learning_rate, 0, 1, is_above=True)
    check_whole("batch_size", settings.batch_size, 1)


def _digest(folder: str | Path, record: FolderRecord, settings: Settings) -> str:
    """Return what identifies a compression: the run, and the settings; those with --best-effort go on without it."""
    own = {name: value for name, value in dataclasses.asdict(settings).items() if name != "best_effort"}
    content = json.dumps([str(Path(folder).resolve()), record.to_json(), own], default=str)
    return hashlib.sha256(content.encode()).hexdigest()


def _check_place(place: Path, folder: Path, overwrite: bool, digest: str) -> None:
    check_writable(place, "output_dir", place, may_create=True)
    if place.resolve() == folder.resolve():
        raise UserError(f"output_dir is {str(place)!r}, which is the run itself; choose another with --output-dir.")
    if not place.is_dir() or not any(place.iterdir()):
        return
    if overwrite:
        if not (place / CONFIG_FILE).is_file() and not (place / STAGES).is_dir():
            raise UserError(f"output_dir is {str(place)!r}, which has no earlier run; nothing is overwritten.")
        return
    settings = place / STAGES / _SETTINGS
    if not settings.is_file():
        raise UserError(
            f"output_dir is {str(place)!r}, which is not empty; choose another with --output-dir or use --overwrite."
        )
    if load_json(settings).get("digest") != digest:
        raise UserError(
            f"output_dir is {str(place)!r}, which has an unfinished compression with other settings; repeat it with "
            "those, or use --overwrite."
        )


def _finished(folder: str | Path, record: FolderRecord) -> Finished:
    task = tasks.Task.from_dict(record.task_definition)
    kind = tasks.kind_of(task)
    if kind.is_generated or not kind.has_answers:
        raise UserError(
            f"{str(folder)!r} holds a model for {kind.spoken or kind.name}, which has a decoder or no answers; only "
            "encoders with a head can be compressed."
        )
    return Finished(folder, task, record.max_length, 1.0, record.decimals, record.threshold)


def _check_model(folder: str | Path, record: FolderRecord, model: Any) -> None:
    if record.compression is not None or plan_of(model) != LayerPlan():
        raise UserError(
            f"{str(folder)!r} is compressed already ({plan_of(model)}); begin with the run that it was made from."
        )


def _note_examples(data: CompressionData, settings: Settings, listener: Listener) -> None:
    tolerance = TOLERANCE if settings.tolerance is None else settings.tolerance
    test = data.validation.test
    assert test is not None
    needed = examples_needed(tolerance)
    if len(test) < needed:
        listener.note(
            f"warning: {len(test):,} validation examples cannot show that the score is no more than {tolerance:g} "
            f"lower, even if every answer stays the same; {needed:,} or more could"
        )


@dataclasses.dataclass
class _Work:
    """One compression."""

    folder: str | Path
    record: FolderRecord
    settings: Settings
    listener: Listener
    place: Path
    digest: str
    finished: Finished
    tokenizer: Any
    model: Any
    data: CompressionData

    def run(self) -> CompressedRun:
        start = time.perf_counter()
        stages = self.place / STAGES
        stages.mkdir(exist_ok=True)
        write_json(stages / _SETTINGS, {"digest": self.digest, **dataclasses.asdict(self.settings)})
        try:
            compressed = self._compress(stages)
        except UserError:
            if not (stages / STATE).is_file():  # refused before the first stage
                shutil.rmtree(stages)
            raise
        if not compressed.reached and not self.settings.best_effort:
            wanted = f"count is {self.settings.count}, and {len(compressed.stages) - 2} edits were possible"
            if self.settings.target is not None:
                reached = compressed.stages[-2].speedup
                wanted = f"target is {self.settings.target:g}×, and {reached:.2f}× was reached"
            raise UserError(f"{wanted}; write it with --best-effort, or allow more --ways.")
        record = self._conclude(compressed, time.perf_counter() - start)
        shutil.rmtree(stages, ignore_errors=True)
        return CompressedRun(self.place, record, compressed.model)

    def _compress(self, stages: Path) -> Compressed:
        chosen, data = self.settings, self.data
        targets = None
        if chosen.teacher is not None:
            targets, members = ensemble_targets(
                chosen.teacher, self.record, self.finished.task, data.batches, self.model.device, chosen.teacher_method
            )
            self.listener.note(f"the teacher's answers are the mean of {members} seeds of {chosen.teacher}")
        width = width_of(self.model.config)
        compression = Compression(
            data.batches, data.held_out, on_device(data.shapes, self.model.device),
            target=chosen.target, tolerance=chosen.tolerance, count=chosen.count, score=self._score, ways=chosen.ways,
            by=chosen.layers, generator=self._generator(), threshold=chosen.gate_threshold,
            stage_epochs=chosen.stage_epochs, final_epochs=chosen.final_epochs,
            learning_rate=chosen.learning_rate, base_rate=rate_for(width, self.finished.task.kind), targets=targets,
            folder=stages, seed=chosen.seed, watch=self.listener.progress, told=self.listener.stage,
            best_effort=chosen.best_effort,
        )  # fmt: skip
        try:
            return compression.run(self.model)
        except UnreachableError as error:
            raise UserError(f"{on_one_line(error).removesuffix('.')}; --best-effort writes what is reached.") from None
        except ValueError as error:
            raise error if isinstance(error, UserError) else UserError(on_one_line(error)) from None

    def _generator(self) -> Any:
        if self.settings.layers != "gate":
            return None
        from ...methods.attendout.generator import load_generator

        try:
            return load_generator(self.folder, self.model)
        except ValueError as error:
            raise UserError(on_one_line(error)) from None

    # ---- scores ------------------------------------------------------------------------------------------------------

    def _outputs(self, model: Any, data: tasks.Data) -> Outputs:
        return Predictor(self.finished, self.tokenizer, model).outputs(data, batch_size=32)

    def _answers(self, model: Any, data: tasks.Data) -> Answers:
        answers = self._outputs(model, data).answers()
        assert answers is not None
        return answers

    def _score(self, model: Any) -> float:
        metric = tasks.METRICS[self._metric]
        answers = self._answers(model, self.data.selection)
        value = metric(*answers.for_metrics(answers.predicted))
        return value if metric.greater_is_better else -value

    @property
    def _metric(self) -> str:
        return self.record.metric or self.finished.task.metrics[0]

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _conclude(self, compressed: Compressed, seconds: float) -> FolderRecord:
        """Use the validation data, once: compare, fit temperature and threshold, and write the folder."""
        data, task, place = self.data.validation, self.finished.task, self.place
        before = self._answers(self.model, data)
        outputs = self._outputs(compressed.model, data)
        after = outputs.answers()
        assert after is not None
        difference = compare_answers(after, before, self._metric)
        temperature, note = choose_temperature(after) if after.has_probabilities else (1.0, "")
        threshold, threshold_note, scored = choose_threshold(after)
        results = evaluate(scored, "validation", temperature)
        compression = self._compression(compressed, difference, before, seconds)
        scores = {name: results.scores[name].value for name in task.metrics}
        record = dataclasses.replace(
            self.record, scores={"validation": scores}, evaluation={"validation": results}, temperature=temperature,
            temperature_note=note, threshold=threshold, threshold_note=threshold_note, compression=compression,
            model_class=type(compressed.model).__name__, versions=versions(), device=str(self.model.device), history=[],
            cost=Cost(total_seconds=round(seconds, 1)), baselines=BaselineScores(), best_checkpoint=None, soup=None,
            notes=[*self.record.notes, *compression.sentences],
        )  # fmt: skip
        mark_unfinished(place)
        with tasks.saved_with_length(self.tokenizer, self.finished.max_length, task):
            self.tokenizer.save_pretrained(place)
        compressed.model.cpu().save_pretrained(place)
        write_whole(place / CONFIG_FILE, Path(self.folder, CONFIG_FILE).read_text(encoding="utf-8"))
        write_json(place / EVALUATION_FILE, {"validation": results.to_json()})
        write_evaluation(place, results, task.labels)
        columns = error_columns(scored, data.test, outputs.word_starts, temperature, self.finished.decimals, None)
        write_table(place / "errors.csv", columns, task, "csv")
        write_outputs(place, scored)
        write_whole(place / TABLE, _table(compression))
        plot_compression(compression, place / FIGURE)
        write_results(place, record, [])
        return record

    def _compression(
        self, compressed: Compressed, difference: Difference, before: Answers, seconds: float
    ) -> CompressionRecord:
        tolerance = TOLERANCE if self.settings.tolerance is None else self.settings.tolerance
        metric = tasks.METRICS[self._metric]
        score = metric(*before.for_metrics(before.predicted))
        sign = 1 if metric.greater_is_better else -1
        verdict = difference.verdict(tolerance)
        is_pooled = pooling_of(compressed.model.config) is not None
        stages = [
            CompressionStage(
                stage.edit, stage.plan.tail, list(stage.plan.constant), list(stage.plan.removed), stage.milliseconds,
                stage.stock, stage.divergence, None if stage.score is None else sign * stage.score,
            )
            for stage in compressed.stages
        ]  # fmt: skip
        record = CompressionRecord(
            run=str(self.folder), plan=str(compressed.plan), metric=self._metric, before=score,
            settings={**dataclasses.asdict(self.settings), "learning_rate": compressed.learning_rate},
            after=score + sign * difference.value, low=difference.low, high=difference.high, verdict=verdict,
            speedup=compressed.speedup, stages=stages, seconds=round(seconds, 1),
            is_exact=not is_pooled and is_exact(constants_of(compressed.model), compressed.model.config),
        )  # fmt: skip
        record.sentences = [
            _speed_sentence(record), score_sentence(difference, self._metric, score, tolerance),
            f"trained on {self.data.trained:,} texts of the run and {self.data.unlabelled:,} others; layers and stages "
            f"were chosen on {_count(self.data.selection):,} other training examples",
        ]  # fmt: skip
        return record


def _count(data: tasks.Data) -> int:
    return 0 if data.test is None else len(data.test)


def _speed_sentence(record: CompressionRecord) -> str:
    last = record.stages[-1]
    times = ", ".join(
        f"{last.stock[shape]:.4g} → {time:.4g} ms on {shape} tokens" for shape, time in last.milliseconds.items()
    )
    return f"{record.speedup:.2f}× as fast: {times}; {record.plan}"


def _table(record: CompressionRecord) -> str:
    stream = io.StringIO()
    shapes = list(record.stages[0].milliseconds)
    writer = csv.writer(stream)
    writer.writerow(["edit", "tail", "constant", "removed", *(f"ms {s}" for s in shapes),
                     *(f"stock ms {s}" for s in shapes), "divergence", record.metric])  # fmt: skip
    for stage in record.stages:
        writer.writerow([
            stage.edit, stage.tail, " ".join(map(str, stage.constant)), " ".join(map(str, stage.removed)),
            *(f"{stage.milliseconds[s]:.4f}" for s in shapes), *(f"{stage.stock[s]:.4f}" for s in shapes),
            f"{stage.divergence:.6g}", "" if stage.score is None else f"{stage.score:.6f}",
        ])  # fmt: skip
    return stream.getvalue()
