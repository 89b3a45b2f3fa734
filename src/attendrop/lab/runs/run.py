"""One run: load data and model, train with the methods, evaluate, and write the output folder.

    fine_tune(model="roberta-base", task="glue/rte", method=["addrop:p=0.3,q=0.3"], output_dir="rte")

does the same as `attendrop train --model roberta-base --task glue/rte --method addrop:p=0.3,q=0.3 --output-dir rte`.
"""

from __future__ import annotations

import math
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from huggingface_hub.errors import HfHubHTTPError
from transformers import EarlyStoppingCallback, set_seed
from transformers.trainer_callback import PrinterCallback, TrainerCallback

from ...core.regularizer import Regularizer
from ...errors import UserError, on_one_line
from ...model.sites import unwrapped
from ...trainer.trajectory import library_versions, version_of
from ...utils.lock import locked
from .. import tasks
from ..evaluation.evaluator import Evaluator, Part
from ..records import Averaged, BaselineScores, Cost, FolderRecord, Kept
from .baselines import Baselines
from .best import kept_epoch, method_epochs
from .caveats import caveats_of
from .checks import check_metric
from .data import load_data, load_other_tasks
from .decisions import write_outputs
from .duration import duration_of
from .folder import (
    OutputFolder,
    changes_of,
    check_folder,
    empty_folders_removed,
    mark_unfinished,
    remove_checkpoints,
    write_results,
)
from .frozen import solve, starts_frozen
from .hub_token import token_in_environment
from .interruption import Interruption, full_disk_explained
from .lora import check_libraries, load_for_training, merge_adapters
from .losses import make_loss
from .masked_lm import EpochOfMasks
from .memory import estimate_memory, out_of_memory_explained
from .numbers import start_at_labels
from .resolve import resolve_recipe, resolve_settings
from .result import Result
from .resume import choose_checkpoint
from .settings import RunConfig
from .trainer import MaskedLMRunTrainer, Metrics, RunTrainer, TranslationRunTrainer

SETS_CHECKPOINTS = {
    "save_strategy",
    "save_steps",
    "save_total_limit",
    "keep_checkpoints",
}  # with these, none is skipped
_FURTHER_LIBRARIES = ("datasets", "tokenizers", "safetensors", "numpy")


class Listener:
    """Receives the events of a run. The methods do nothing here; override those that you need.

    Example:
        ```python
        class Printer(Listener):
            def note(self, text):
                print("note:", text)


        fine_tune(Printer(), model="roberta-base", task="glue/rte")
        ```
    """

    def note(self, text: str) -> None:
        """Handle a note: what was guessed, split off, truncated or initialised at random."""

    def described(self, description: tasks.Description) -> None:
        """Handle the statistics of the data, before training."""

    def interrupted(self) -> None:
        """Handle Ctrl-C. The run finishes its step and stops."""

    def callbacks(self) -> Sequence[TrainerCallback]:
        """Return callbacks to add to the Trainer."""
        return ()


def versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that decide the result of a run."""
    further = {name: version_of(name) for name in _FURTHER_LIBRARIES}
    return {"python": platform.python_version(), **library_versions(), **further}


def train(config: RunConfig, listener: Listener | None = None) -> Result:
    """Run a configuration. All errors in the input are raised before anything is written.

    Args:
        config: The configuration, from `make_config`.
        listener: Receives the events of the run; None = no output.
    """
    with token_in_environment(config):
        return _train(config, listener or Listener())


def _train(config: RunConfig, listener: Listener) -> Result:
    check_folder(config)
    check_libraries(config)
    described = tasks.load_config(config.model, trust_remote_code=config.trust_remote_code)
    resolved = resolve_settings(config, described)
    for note in resolved.notes:
        listener.note(note)
    data = load_data(resolved.config, resolved.arguments.seed)
    resolved = resolve_recipe(resolved, data, described)
    config, arguments = resolved.config, resolved.arguments
    data = tasks.with_pairs(data, config.pairs)
    tokenizer = tasks.load_processor(config.model, data.task, trust_remote_code=config.trust_remote_code)
    notes: list[str] = []
    set_seed(arguments.seed)  # so that the weights of a new head depend on the seed only
    model = load_for_training(config, data.task, tokenizer, notes)
    if start := start_at_labels(model, data):
        notes.append(start)
    notes += resolved.recipe.sentences
    run = prepare_run(config, arguments, data, model, tokenizer, listener, notes)
    run.begin(model)
    with empty_folders_removed(config.output_dir):
        trainer = run.make_trainer(model, resolved.regularizers)
        with locked(config.output_dir) if trainer.args.process_index == 0 else nullcontext():
            return run.train(trainer)


def prepare_run(
    config: RunConfig,
    arguments: Any,
    data: tasks.Data,
    model: Any,
    tokenizer: Any,
    listener: Listener,
    notes: Sequence[str] = (),
) -> Run:
    """Tokenise the data for a model and check them against it.

    Args:
        config: The configuration.
        arguments: The training arguments, from `resolve_settings`.
        data: The data, from `load_data`.
        model: The model that will be trained.
        tokenizer: Its tokenizer, or its image processor or feature extractor.
        listener: Receives the notes and the description of the data.
        notes: Sentences for the listener.
    """
    notes = list(notes)
    modality = tasks.modality_of(data.task)
    max_length = modality.check_length(model, tokenizer, config.max_length, data.task, notes)
    tasks.note_length(model, max_length)
    description = tasks.describe(data, tokenizer, max_length)
    listener.described(description)
    if description.unit == "tokens":
        lengths = description.lengths.get("train")
        tokens = min(max_length, int(lengths.longest)) if lengths else max_length
        notes.append(str(estimate_memory(model, arguments, tokens)))
    prepared = tasks.prepare(data, tokenizer, max_length, seed=arguments.seed, mlm_probability=config.mlm_probability)
    if config.train_file and description.unit == "tokens":
        findings = tasks.examine_lengths(description, config.model, model.config, tokenizer)
        findings += tasks.examine_vocabulary(data, config.model, tokenizer)
        prepared.notes += [f"warning: {finding.text}" for finding in findings]
    others = load_other_tasks(config, data, tokenizer, max_length)
    for note in [*data.notes, *prepared.notes, *notes]:
        listener.note(note)
    run = Run(config, arguments, data, prepared, others, max_length, tokenizer, listener)
    run.choose_metric()
    return run


@dataclass
class Run:
    """A run whose input has been checked: trains, evaluates, predicts and writes the output folder."""

    config: RunConfig
    arguments: Any
    data: tasks.Data
    prepared: tasks.Prepared
    others: dict[str, tuple[tasks.Data, tasks.Prepared]]  # the tasks of --also-eval
    max_length: int
    tokenizer: Any
    listener: Listener
    baselines: Baselines | None = None

    @property
    def is_masked(self) -> bool:
        """Whether the task is masked language modelling."""
        return tasks.kind_of(self.data.task).is_masked

    def choose_metric(self) -> None:
        """Set the metric that selects the best model, where the user did not; the Trainer's default is the loss."""
        if "metric_for_best_model" in self.config.explicit:
            check_metric(self.arguments.metric_for_best_model, self.data.task.metrics)
        else:
            self.arguments.metric_for_best_model = self.prepared.metric
            self.arguments.greater_is_better = self.prepared.greater_is_better

    def begin(self, model: Any) -> None:
        """Fit the linear models of the untrained model: the first weights of the head, and baselines.

        Args:
            model: The model that will be trained.
        """
        config = self.config
        if config.no_baselines and config.head_start == "random":
            return
        frozen = solve(model, self.data.task, self.prepared, self.arguments, with_validation=not config.no_baselines)
        if not config.no_baselines:
            self.baselines = Baselines(self.data, self.prepared, frozen)
            self.baselines.add_means(model, self.tokenizer, self.max_length)
        if starts_frozen(config, frozen):
            assert frozen is not None
            frozen.write(frozen.first)
            self.prepared.notes.append(frozen.sentence)
            self.listener.note(frozen.sentence)

    def make_trainer(
        self,
        model: Any,
        regularizers: list[Regularizer],
        optimizer: Any = None,
        metrics: Metrics | None = None,
        selection: Any = None,
    ) -> Any:
        """Make the Trainer.

        Args:
            model: The model.
            regularizers: The methods.
            optimizer: The optimizer; None = the one that the training arguments describe.
            metrics: Computes the metrics of evaluations during training; None = those of the task.
            selection: The examples that are evaluated during training; None = the validation data.
        """
        kind = tasks.kind_of(self.data.task)
        self.arguments.predict_with_generate = kind.is_generated
        if kind.is_generated:
            self.arguments.generation_max_length = self.arguments.generation_max_length or self.max_length
        callbacks: list[TrainerCallback] = list(self.listener.callbacks())
        if self.config.patience is not None:
            callbacks.append(EarlyStoppingCallback(self.config.patience))
        if self.is_masked:
            callbacks.append(EpochOfMasks(self.prepared.collator))
        if self.prepared.keeps_columns:
            self.arguments.remove_unused_columns = False
        trainer_class = (
            TranslationRunTrainer if kind.is_generated else MaskedLMRunTrainer if self.is_masked else RunTrainer
        )
        try:
            trainer = trainer_class(
                model=model,
                args=self.arguments,
                train_dataset=self.prepared.train,
                eval_dataset=self.prepared.validation if selection is None else selection,
                processing_class=self.tokenizer,
                data_collator=self.prepared.collator,
                compute_loss_func=make_loss(self.config, self.data, self.arguments),
                compute_metrics=metrics or self.prepared.compute_metrics,
                preprocess_logits_for_metrics=self.prepared.reduce_outputs,
                callbacks=callbacks,
                optimizers=(optimizer, None),
                regularizers=regularizers,
                capture=self.config.capture,
                check_finite=True,
                strict_resume=True,
                is_balanced=self.config.balanced_sampling,
                quality=self.prepared.quality if self.config.keep_epoch == "auto" else None,
                skips_checkpoints=not self.config.explicit & SETS_CHECKPOINTS,
                averages_over_batch=kind.has_new_head,
            )
            if regularizers and self.arguments.max_steps <= 0:
                trainer.check_model(math.ceil(self.arguments.num_train_epochs))
        except (ValueError, ImportError, OSError, HfHubHTTPError) as error:
            raise UserError(f"{on_one_line(error)}.") from None
        trainer.remove_callback(PrinterCallback)
        return trainer

    def train(self, trainer: Any) -> Result:
        folder, start = self.config.output_dir, time.perf_counter()
        checkpoint = choose_checkpoint(self.config, trainer, self.listener.note)
        if checkpoint is None and (sentence := duration_of(trainer, self.prepared, self.data.task)):
            self.listener.note(sentence)
        trainer.accelerator.wait_for_everyone()
        output = OutputFolder(self.config, trainer, versions(), self.listener.note)
        trainer.add_callback(output)
        interruption = Interruption()
        trainer.add_callback(interruption)
        with full_disk_explained(folder):
            with interruption.handle_signals(self.listener.interrupted), out_of_memory_explained(trainer.args):
                try:
                    trainer.train(
                        resume_from_checkpoint=str(checkpoint) if checkpoint else None,
                        resume_changed=self.config.resume_changed,
                    )
                except ValueError as error:
                    raise UserError(f"{on_one_line(error)}.") from error
            if trainer.args.should_save:
                output.check_exists()
            if interruption.happened:
                return Result(folder, {}, trainer.model, finished=False)
            seconds = time.perf_counter() - start
            kept = kept_epoch(trainer, self.config.patience)
            for sentence in kept.sentences:
                self.listener.note(sentence)
            merge_adapters(trainer, self.config, self.data.task)
            record = self.conclude(trainer, seconds, kept)
            if trainer.args.should_save and not self.config.keep_checkpoints:
                remove_checkpoints(folder)
        trainer.accelerator.wait_for_everyone()
        return Result(folder, record.scores, trainer.model, finished=True, record=record)

    def conclude(
        self, trainer: Any, seconds: float, kept: Kept, soup: Averaged | None = None, folder: Path | None = None
    ) -> FolderRecord:
        """Evaluate the final model, write the output folder, and return the record of the run.

        Args:
            trainer: The Trainer, whose model is the final one.
            seconds: How long training took.
            kept: The epoch whose model it is.
            soup: The runs whose weights were averaged, if it is such a model.
            folder: The folder to write; None = the output folder.
        """
        folder = folder or self.config.output_dir
        evaluator = self.evaluate(trainer)
        baselines = BaselineScores()
        if self.baselines is not None and "validation" in evaluator.answers:
            baselines = self.baselines.compare(evaluator.answers["validation"], trainer.args.world_size)
            if self.config.keep_best_of and self.baselines.replace(trainer, self.config, baselines):
                evaluator = self.evaluate(trainer)
        record = self.record(trainer, evaluator, seconds)
        record.kept, record.soup, record.baselines = kept, soup, baselines
        if trainer.args.should_save:
            mark_unfinished(folder)
        with tasks.saved_with_length(self.tokenizer, self.max_length, self.data.task):
            trainer.save_model(str(folder))
        self.predict(trainer, evaluator, folder)
        if trainer.args.should_save:
            evaluator.write(folder, self.data, self.prepared)
            if "validation" in evaluator.answers:
                write_outputs(folder, evaluator.answers["validation"])
            epochs = method_epochs(trainer.regularizers, math.ceil(trainer.state.num_train_epochs))
            write_results(folder, record, epochs)
        return record

    def scored_parts(self) -> Iterator[Part]:
        """Yield the validation split, the other splits that have labels, and the tasks of --also-eval."""
        for name, split in self._encoded().items():
            if name == "validation" or self.is_masked or self._has_labels(name):
                yield Part(name, split, self.data, self.prepared, name)
        for name, (data, prepared) in self.others.items():
            yield Part(name, prepared.validation, data, prepared, "validation")

    def evaluate(self, trainer: Any) -> Evaluator:
        """Evaluate all parts that have labels."""
        evaluator = Evaluator(trainer)
        for part in self.scored_parts():
            evaluator.score(*part)
        if evaluator.threshold_note:
            self.listener.note(evaluator.threshold_note)
        for warning in evaluator.warnings:
            self.listener.note(f"warning: {warning}")
        return evaluator

    def _encoded(self) -> dict[str, Any]:
        """Return the tokenised splits for evaluation and prediction."""
        splits = {"validation": self.prepared.validation, **self.prepared.others, "test": self.prepared.test}
        return {name: split for name, split in splits.items() if split is not None}

    def _has_labels(self, name: str) -> bool:
        task = self.data.task
        return tasks.kind_of(task).target(task) in self.data.splits()[name].column_names

    def predict(self, trainer: Any, evaluator: Evaluator, folder: Path) -> None:
        """Write predictions for every test split, also in the format of the GLUE website if the task is one of GLUE."""
        task = self.data.task
        for name, split in self._encoded().items():
            if not name.startswith("test") or self.is_masked:
                continue
            if name in evaluator.answers:
                values = evaluator.answers[name].values
            else:
                values = self.prepared.values(trainer.predict(_without_labels(split)).predictions, name)
            if not trainer.args.should_save:
                continue
            raw, starts = self.data.splits()[name], self.prepared.word_starts.get(name)
            evaluator.write_predictions(folder / f"predictions_{name}.csv", raw, values, self.data, starts)
            if name in task.submission:
                answers = tasks.kind_of(task).answers(task, values)
                tasks.write_submission(folder, task, answers.decoded(), name)

    def record(self, trainer: Any, evaluator: Evaluator, seconds: float) -> FolderRecord:
        """Everything that describes the run: the content of `record.json`.

        Args:
            trainer: The Trainer after training.
            evaluator: The scores of the final model.
            seconds: How long training took.
        """
        return FolderRecord(
            settings=self.config.settings(),
            regularizers=[regularizer.to_dict() for regularizer in trainer.regularizers],
            task=self.config.task or Path(str(self.config.train_file)).name,
            task_definition={**asdict(self.data.task), "labels": list(self.data.task.labels)},
            max_length=self.max_length if tasks.kind_of(self.data.task).is_generated else self.prepared.max_length,
            model_class=type(unwrapped(trainer.model)).__name__,
            seed=trainer.args.seed,
            versions=versions(),
            device=str(trainer.args.device),
            examples={name: len(split) for name, split in self.data.splits().items()},
            available=self.data.available,
            metric=self.prepared.metric,
            greater_is_better=self.prepared.greater_is_better,
            notes=[*self.data.notes, *self.prepared.notes, *trainer.checkpoints.notes],
            changes=[asdict(change) for change in trainer.checkpoints.changes],
            caveats=[*caveats_of(self.config, trainer.regularizers), *changes_of(trainer)],
            cost=Cost(
                total_seconds=round(seconds, 1), steps=trainer.state.global_step, processes=trainer.args.world_size
            ),
            best_checkpoint=Path(trainer.state.best_model_checkpoint or "").name or None,
            history=trainer.state.log_history,
            scores=evaluator.scores,
            evaluation=evaluator.evaluation,
            temperature=evaluator.temperature,
            temperature_note=evaluator.temperature_note,
            threshold=evaluator.threshold,
            threshold_note=evaluator.threshold_note,
            decimals=evaluator.decimals,
        )


def _without_labels(split: Any) -> Any:
    return split.remove_columns([name for name in ("labels", "label") if name in split.column_names])
