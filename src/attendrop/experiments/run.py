"""One run: data, model, methods, training, evaluation, and the folder that it leaves behind.

    fine_tune(model="roberta-base", task="glue/rte", method=["addrop:p=0.3,q=0.3"], output_dir="rte")

is what `attendrop train --model roberta-base --task glue/rte --method addrop:p=0.3,q=0.3 --output-dir rte` does.
"""

from __future__ import annotations

import json
import math
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from torch.utils.data import Subset
from transformers import AutoConfig, EarlyStoppingCallback, Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, set_seed
from transformers.trainer_callback import PrinterCallback, TrainerCallback

from .. import tasks
from ..core.regularizer import Regularizer
from ..errors import UserError
from ..methods import parse_method
from ..trainer import regularized
from .checkpoints import Interruption, full_disk_told, last_checkpoint
from .presets import apply_preset
from .sampler import LengthGroupedSampler
from .settings import RunConfig, make_config, write_yaml

CONFIG_FILE, METRICS_FILE, RECORD_FILE = "run.yaml", "metrics.json", "record.json"
LIBRARIES = ("attendrop", "torch", "transformers", "accelerate", "datasets", "tokenizers", "safetensors", "numpy")


class Listener:
    """Is told what a run does. The command line shows it; this one keeps silent."""

    def note(self, text: str) -> None: ...

    def described(self, description: tasks.Description) -> None: ...

    def interrupted(self) -> None:
        """Ctrl-C was pressed and the step is being finished."""

    def callbacks(self) -> Sequence[TrainerCallback]:
        return ()


@dataclass
class Result:
    """What came of a run."""

    folder: Path
    metrics: dict[str, float]
    model: Any
    finished: bool  # False: stopped by Ctrl-C, with a checkpoint
    record: dict[str, Any] = field(default_factory=dict)


def fine_tune(listener: Listener | None = None, **settings: Any) -> Result:
    """A run from keyword arguments that have the names of the flags."""
    return train(make_config(settings), listener)


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: metadata.version(name) for name in LIBRARIES}}


def train(config: RunConfig, listener: Listener | None = None) -> Result:
    """Trains as configured. Whatever is wrong with the input is said before anything is written."""
    listener = listener or Listener()
    checkpoint = _check_folder(config)
    tokenizer = tasks.load_tokenizer(config.model, trust_remote_code=config.trust_remote_code)
    regularizers = _methods(config, listener)
    arguments = training_arguments(config)
    data = _data(config, arguments.seed)
    max_length = config.max_length or data.task.max_length
    listener.described(tasks.describe(data, tokenizer, max_length))
    prepared = tasks.prepare(data, tokenizer, max_length)
    others = _other_tasks(config, data, tokenizer, max_length)
    notes: list[str] = []
    set_seed(arguments.seed)  # the new head's weights follow the seed
    model = tasks.load_model(
        config.model, data.task, trust_remote_code=config.trust_remote_code, tokenizer=tokenizer, notes=notes
    )
    for note in [*data.notes, *prepared.notes, *notes]:
        listener.note(note)
    if "metric_for_best_model" not in config.explicit:  # TrainingArguments would choose by the loss
        arguments.metric_for_best_model = prepared.metric
        arguments.greater_is_better = prepared.greater_is_better
    run = _Run(config, arguments, data, prepared, others, max_length, tokenizer, listener)
    trainer = run.make_trainer(model, regularizers)
    return run.train(trainer, checkpoint)


def _methods(config: RunConfig, listener: Listener) -> list[Regularizer]:
    if config.preset:
        model = AutoConfig.from_pretrained(config.model, trust_remote_code=config.trust_remote_code)
        for note in apply_preset(config, model.model_type):
            listener.note(note)
    try:
        return [parse_method(text) for text in config.method]
    except ValueError as error:
        raise UserError(str(error)) from None


def _check_folder(config: RunConfig) -> Path | None:
    """The checkpoint to go on from. A folder with anything in it is not touched unless that was asked for."""
    folder = config.output_dir
    if folder.is_file():
        raise UserError(f"output_dir is {str(folder)!r}, which is a file; it must be a folder.")
    named = config.training.get("resume_from_checkpoint")
    if config.resume or named:
        checkpoint = Path(named) if named else last_checkpoint(folder)
        if named and not Path(named).is_dir():
            raise UserError(f"resume_from_checkpoint is {str(named)!r}, which is no folder; it must be a checkpoint.")
        if checkpoint is None:
            raise UserError(f"there is no checkpoint in {str(folder)!r} to resume from; train without --resume.")
        return checkpoint
    if not folder.is_dir() or not any(folder.iterdir()):
        return None
    if not config.overwrite:
        raise UserError(
            f"output_dir is {str(folder)!r}, which is not empty; choose another with --output-dir, go on with --resume "
            "or replace the run with --overwrite."
        )
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(
            f"output_dir is {str(folder)!r}, which holds no {CONFIG_FILE}, so no earlier run; nothing is overwritten."
        )
    return None


def training_arguments(config: RunConfig) -> Any:
    training = config.training
    if "save_strategy" not in config.explicit:
        # the best model can be taken only from where it was evaluated
        training["save_strategy"] = training["eval_strategy"]
        if training["eval_strategy"] == "steps" and "save_steps" not in config.explicit and "eval_steps" in training:
            training["save_steps"] = training["eval_steps"]
    if training["eval_strategy"] == "no" and "load_best_model_at_end" not in config.explicit:
        training["load_best_model_at_end"] = False
    try:
        arguments = Seq2SeqTrainingArguments(**training)
        if arguments.device.type == "cpu" and "dataloader_pin_memory" not in config.explicit:
            arguments.dataloader_pin_memory = False  # there is no other memory to pin for, and torch warns
        return arguments
    except (TypeError, ValueError, ImportError) as error:
        raise UserError(f"a training argument is not allowed: {' '.join(str(error).split())}") from None


def _data(config: RunConfig, seed: int) -> tasks.Data:
    if config.task:
        data = tasks.load_task(config.task, config.data_dir)
    else:
        assert config.train_file is not None
        data = tasks.load_files(
            config.train_file, config.validation_file, config.test_file,
            text=config.text, text_pair=config.text_pair, label=config.label, kind=config.kind,
        )  # fmt: skip
    if data.train is not None and config.max_train_samples:
        data.train = _first(data.train, config.max_train_samples)
    if data.validation is None:
        data = tasks.split_validation(data, config.validation_share, seed)
    if config.max_eval_samples:
        data.validation = _first(data.validation, config.max_eval_samples)
        data.test = _first(data.test, config.max_eval_samples)
        data.others = {name: _first(part, config.max_eval_samples) for name, part in data.others.items()}
    if config.shots is not None:
        data = tasks.few_shots(data, config.shots, seed)
    if config.fraction is not None:
        data = tasks.fraction(data, config.fraction, seed)
    return data


def _first(part: Any, count: int) -> Any:
    return None if part is None else part.select(range(min(count, len(part))))


def _other_tasks(config: RunConfig, data: tasks.Data, tokenizer: Any, max_length: int) -> dict[str, tasks.Prepared]:
    """The tasks of --also-eval, read and checked before training starts."""
    found = {}
    for name in config.also_eval:
        other = tasks.load_task(name, config.data_dir, evaluation=True)
        if other.task.kind != data.task.kind:
            raise UserError(
                f"also_eval is {name!r}, which is {other.task.kind}, and {data.task.name} is {data.task.kind}; it must "
                "be of the same kind."
            )
        other.train, other.test, other.others = None, None, {}
        if config.max_eval_samples:
            other.validation = _first(other.validation, config.max_eval_samples)
        found[name] = tasks.prepare(other, tokenizer, max_length, labels=data.task.labels)
    return found


@dataclass
class _Run:
    config: RunConfig
    arguments: Any
    data: tasks.Data
    prepared: tasks.Prepared
    others: dict[str, tasks.Prepared]
    max_length: int
    tokenizer: Any
    listener: Listener

    def make_trainer(self, model: Any, regularizers: list[Regularizer]) -> Any:
        translates = self.data.task.kind == "translation"
        self.arguments.predict_with_generate = translates
        if translates:
            self.arguments.generation_max_length = self.arguments.generation_max_length or self.data.task.max_length
        callbacks: list[TrainerCallback] = list(self.listener.callbacks())
        if self.config.patience is not None:
            callbacks.append(EarlyStoppingCallback(self.config.patience))
        folder = self.config.output_dir
        is_new = not folder.exists()
        try:
            trainer = _trainer_class(translates)(
                model=model,
                args=self.arguments,
                train_dataset=self.prepared.train,
                eval_dataset=self.prepared.validation,
                processing_class=self.tokenizer,
                data_collator=self.prepared.collator,
                compute_metrics=self.prepared.compute_metrics,
                preprocess_logits_for_metrics=None if translates else tasks.keep_logits,
                callbacks=callbacks,
                regularizers=regularizers,
                step=self.config.step,
            )
            if regularizers and self.arguments.max_steps <= 0:
                trainer.check_model(math.ceil(self.arguments.num_train_epochs))
        except (ValueError, ImportError) as error:
            if is_new and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()  # the Trainer makes it before it checks
            raise UserError(" ".join(str(error).split())) from None
        trainer.remove_callback(PrinterCallback)
        if not translates:
            # These heads average over the batch they see and ignore the count of a whole step that the Trainer hands
            # them; it would multiply the loss by the processes and by the accumulated batches.
            trainer.model_accepts_loss_kwargs = False
        return trainer

    def train(self, trainer: Any, checkpoint: Path | None) -> Result:
        folder, start = self.config.output_dir, time.perf_counter()
        if trainer.args.should_save:
            if self.config.overwrite:
                _clear(folder)
            folder.mkdir(parents=True, exist_ok=True)
            write_yaml(self.config, folder / CONFIG_FILE, versions())
        trainer.accelerator.wait_for_everyone()
        if checkpoint is not None:
            _restore_patience(trainer, checkpoint)
        interruption = Interruption()
        trainer.add_callback(interruption)
        with full_disk_told(folder):
            with interruption.listening(self.listener.interrupted):
                try:
                    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
                except ValueError as error:
                    raise UserError(" ".join(str(error).split())) from error
            if interruption.happened:
                return Result(folder, {}, trainer.model, finished=False)
            seconds = time.perf_counter() - start
            metrics = self.evaluate(trainer)
            record = self.record(trainer, metrics, seconds)
            trainer.save_model()
            self.predict(trainer)
            if trainer.args.should_save:
                self.write(trainer, record)
        trainer.accelerator.wait_for_everyone()
        return Result(folder, metrics, trainer.model, finished=True, record=record)

    def evaluate(self, trainer: Any) -> dict[str, float]:
        """Scores on the validation part, the task's other parts with labels, and the tasks of --also-eval."""
        found = _scores(trainer.evaluate(), "eval", "validation")
        for name, part in self.prepared.others.items():
            if not name.startswith("test"):
                found |= _scores(trainer.evaluate(part), "eval", name)
        for name, other in self.others.items():
            trainer.compute_metrics, before = other.compute_metrics, trainer.compute_metrics
            found |= _scores(trainer.evaluate(other.validation), "eval", name)
            trainer.compute_metrics = before
        return found

    def predict(self, trainer: Any) -> None:
        """Predictions for every test part, and in GLUE's format where it has one."""
        parts = {"test": self.prepared.test, **self.prepared.others}
        raw = {"test": self.data.test, **self.data.others}
        for name, part in parts.items():
            if part is None or not name.startswith("test"):
                continue
            decoded = self.prepared.decode(trainer.predict(_without_labels(part)).predictions, name)
            if not trainer.args.should_save:
                continue
            folder = self.config.output_dir
            tasks.write_predictions(folder / f"predictions_{name}.csv", raw[name], decoded, self.data.task)
            if name in self.data.task.submission:
                tasks.write_submission(folder, self.data.task, decoded, name)

    def record(self, trainer: Any, metrics: dict[str, float], seconds: float) -> dict[str, Any]:
        """The run's record, ready for JSON."""
        return {
            "config": self.config.settings(),
            "regularizers": [regularizer.to_dict() for regularizer in trainer.regularizers],
            "task": {**asdict(self.data.task), "labels": list(self.data.task.labels)},
            "max_length": self.max_length,
            "seed": trainer.args.seed,
            "versions": versions(),
            "device": str(trainer.args.device),
            "processes": trainer.args.world_size,
            "rows": {name: len(part) for name, part in self.data.parts().items()},
            "notes": [*self.data.notes, *self.prepared.notes],
            "seconds": round(seconds, 1),
            "steps": trainer.state.global_step,
            "best_checkpoint": Path(trainer.state.best_model_checkpoint or "").name or None,
            "metrics": metrics,
            "history": trainer.state.log_history,
        }

    def write(self, trainer: Any, record: dict[str, Any]) -> None:
        from ..report.card import write_card
        from ..report.training import plot_history

        folder = self.config.output_dir
        _write_json(folder / METRICS_FILE, record["metrics"])
        _write_json(folder / RECORD_FILE, record)
        plot_history(record["history"], folder / "curves.png", self.prepared.metric)
        write_card(folder, record)


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=1, default=str) + "\n", encoding="utf-8")


def _scores(metrics: Mapping[str, Any], prefix: str, part: str) -> dict[str, float]:
    """The scores of one part, without the Trainer's timings."""
    timings = ("runtime", "per_second", "epoch", "preparation_time")
    return {
        f"{part}/{name.removeprefix(f'{prefix}_')}": value
        for name, value in metrics.items()
        if not any(timing in name for timing in timings)
    }


def _without_labels(part: Any) -> Any:
    return part.remove_columns([name for name in ("labels", "label") if name in part.column_names])


def _restore_patience(trainer: Any, checkpoint: Path) -> None:
    """The Trainer forgets how many evaluations in a row did not improve."""
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    saved = state.get("stateful_callbacks", {}).get("EarlyStoppingCallback")
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, EarlyStoppingCallback) and isinstance(saved, dict):
            callback.early_stopping_patience_counter = saved["attributes"]["early_stopping_patience_counter"]


def _clear(folder: Path) -> None:
    """Removes an earlier run, and nothing else than what a folder of runs holds."""
    for path in folder.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()


def _lengths(dataset: Any) -> list[int]:
    if isinstance(dataset, Subset):  # a method holds a part out
        lengths = _lengths(dataset.dataset)
        return [lengths[i] for i in dataset.indices]
    return list(dataset["length"])


def _trainer_class(translates: bool) -> Any:
    base: Any = regularized(Seq2SeqTrainer if translates else Trainer)

    class RunTrainer(base):
        """Groups batches by length so that a resumed run and several processes see the same batches."""

        def _get_train_sampler(self, train_dataset: Any = None) -> Any:
            if self.args.train_sampling_strategy != "group_by_length" or self.train_dataset is None:
                return super()._get_train_sampler(train_dataset)
            batch = self.args.train_batch_size * self.args.gradient_accumulation_steps * self.args.world_size
            seed = self.args.seed if self.args.data_seed is None else self.args.data_seed
            return LengthGroupedSampler(_lengths(self.train_dataset), batch, seed)

    return RunTrainer
