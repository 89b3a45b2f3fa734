"""Executes the runs of a study sequentially in one process.

It caches expensive objects between runs: the tokenised data, the model on its device, the optimizer and the captured
graphs. A run starts from the pretrained weights, with the head of its seed, and gives the same scores as
`attendrop train` with the same settings; where steps are captured, up to rounding, because batches are padded to fewer
lengths.
"""

from __future__ import annotations

import dataclasses
import math
import os
import socket
import tempfile
import time
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor
from transformers import set_seed

from ...capture.persistent_graphs import PersistentGraphs
from ...errors import UserError
from ...methods._own import provide
from ...trainer.fingerprint import data_fingerprint, model_fingerprint
from ...utils.model_files import model_checksums
from .. import tasks
from ..evaluation.outputs import as_text
from ..evaluation.scorer import MAX_PREDICTIONS, Scorer
from ..records import CHECKED, ModelFacts, StudyRecord
from ..runs.caveats import optimistic_scores
from ..runs.frozen import Frozen, depends_on_seed, solve, starts_frozen
from ..runs.hub_token import token_in_environment
from ..runs.lora import load_for_training
from ..runs.numbers import start_at_labels
from ..runs.resolve import resolve_recipe, resolve_settings
from ..runs.run import Listener, Run, prepare_run, versions
from ..runs.settings import DATA, RUN_SETTINGS, RunConfig, make_config
from .details import explorer_of, texts_of
from .kept_models import keep_model, size_of
from .records import describe
from .spec import RunSpec
from .splits import SELECTION, load_split_data, sample_seed
from .training import Progress, Training, named_tensors

# Training arguments that are not fixed in a captured graph or an optimizer. Runs that differ in others share neither.
_FREE = (
    "output_dir", "run_name", "logging_dir", "seed", "data_seed", "num_train_epochs", "max_steps", "learning_rate",
    "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio", "eval_strategy", "eval_steps",
    "eval_delay", "per_device_eval_batch_size", "logging_strategy", "logging_steps", "logging_first_step",
    "metric_for_best_model", "greater_is_better",
)  # fmt: skip

_AMOUNTS = ("shots", "fraction", "max_train_samples", "max_eval_samples")  # of data; graphs do not depend on them
_DATA_SETTINGS = [f.name for f in dataclasses.fields(RunConfig) if f.metadata.get("panel") == DATA]


class Worker:
    """Trains and scores the runs of a study.

    Args:
        device: "cpu" for runs on the CPU; None = the first GPU where there is one.
    """

    training: type[Training] = Training  # trains and scores a run; a subclass may do it otherwise

    def __init__(self, device: str | None = None) -> None:
        self._on_cpu = device == "cpu"
        self._name = f"{socket.gethostname()}/{os.getpid()}"
        self._model: _ModelOnDevice | None = None
        self._runs: dict[Any, Run] = {}  # their tokenised data
        self._scored_on: dict[Any, Run] = {}  # a run for each set of splits that runs are scored on
        self._data: dict[Any, tuple[tasks.Data, dict[str, str | None]]] = {}
        self._described: dict[Any, Any] = {}  # configurations of models
        self._frozen: dict[Any, tuple[Any, Frozen | None, float]] = {}  # linear models of the present model's features

    def run(self, spec: RunSpec, progress: Progress | None = None) -> StudyRecord:
        """Train and score one run, and return its record. A run that is only checked has a record without a result.

        Args:
            spec: The run.
            progress: Called after each evaluation, and now and then in between without a score; the run stops early if
                it returns True.
        """
        started, clock = datetime.now(UTC), time.perf_counter()
        provide(spec.code)
        with tempfile.TemporaryDirectory(prefix="attendrop-") as folder:
            config = make_config({**spec.settings, **self._fixed_settings(spec, folder)})
            with token_in_environment(config):
                record = self._run(spec, config, progress)
        if spec.only_check:
            return record
        record.cost.overhead_seconds = round(time.perf_counter() - clock - (record.cost.total_seconds or 0.0), 3)
        record.started, record.ended, record.worker = _as_text(started), _as_text(datetime.now(UTC)), self._name
        return record

    def _fixed_settings(self, spec: RunSpec, folder: str) -> dict[str, Any]:
        """Return the settings that the worker decides: nothing is saved, and the study chooses the epoch."""
        fixed = {"output_dir": folder, "seed": spec.seed, "save_strategy": "no", "load_best_model_at_end": False}
        return {**fixed, "use_cpu": True} if self._on_cpu else fixed

    def _run(self, spec: RunSpec, config: RunConfig, progress: Progress | None) -> StudyRecord:
        listener = Listener()
        described = self._describe_model(config)
        resolved = resolve_settings(config, described)
        data, fingerprints = self._load_data(spec, resolved.config)
        resolved = resolve_recipe(resolved, data, described)
        config, arguments, regularizers = resolved.config, resolved.arguments, resolved.regularizers
        data = tasks.with_pairs(data, config.pairs)
        model = self._load_model(config, data, arguments.seed if spec.head_seed is None else spec.head_seed)
        start_at_labels(model.model, data)
        run = self._prepare(spec, config, arguments, data, fingerprints, model, listener)
        head_seconds = self._start_head(run, model, spec)
        key = _arguments_key(arguments)
        scorer = Scorer(run.prepared, run.data.task)
        optimizer = model.optimizer(key, arguments.learning_rate)
        selection = run.prepared.others[SELECTION] if spec.keep == "split" else None
        trainer = run.make_trainer(model.model, regularizers, optimizer, scorer, selection)
        _check_epochs(spec, arguments)
        if spec.only_check:
            sizes = {name: len(split) for name, split in data.splits().items()}
            return describe(spec, CHECKED, model_bytes=size_of(model.model), examples=sizes, metric=run.prepared.metric)
        trainer.capture.keep_graphs(model.kept, (_settings_key(config), key))
        if model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(model.device)
        training = self.training(spec, run, trainer, scorer, progress)
        try:
            training.train(head_seconds)
            scores, predictions = training.scores()
        finally:
            model.after_run(trainer, key)
        if spec.models_folder is not None:
            keep_model(spec.models_folder, spec.id, model.model, config, data.task)
        caveats = [] if spec.keep == "split" else optimistic_scores(regularizers)
        record = describe(
            spec,
            "stopped" if training.was_stopped else "finished",
            settings={name: value for name, value in config.settings().items() if name != "output_dir"},
            regularizers=[method.to_dict() for method in regularizers],
            versions=versions(),
            device=_device_name(model.device),
            model=ModelFacts(config.model, model.fingerprint, model.content),
            data=fingerprints | {name: _fingerprint(of.validation, of.task) for name, (of, _) in run.others.items()},
            examples={name: len(split) for name, split in data.splits().items()},
            available=data.available,
            metric=run.prepared.metric,
            greater_is_better=run.prepared.greater_is_better,
            labels=list(data.task.labels),
            notes=[*data.notes, *run.prepared.notes, *resolved.recipe.sentences, *caveats],
            scores=scores,
            curves=training.curves(),
            method_metrics=training.method_metrics(),
            predictions=predictions,
            outputs=as_text(training.outputs) if spec.trial is None else None,
            kept=training.kept(),
            cost=training.cost(model.device),
        )
        if spec.details:
            record.texts = texts_of(data, MAX_PREDICTIONS)
            record.explorer = explorer_of(data, model.model, model.tokenizer, regularizers)
        return record

    # ---- caches --------------------------------------------------------------------------------------------------

    def _describe_model(self, config: RunConfig) -> Any:
        """Return the configuration of the model of a run."""
        key = (config.model, config.trust_remote_code)
        if key not in self._described:
            _keep_newest(self._described, 8)
            self._described[key] = tasks.load_config(config.model, trust_remote_code=config.trust_remote_code)
        return self._described[key]

    def _load_data(self, spec: RunSpec, config: RunConfig) -> tuple[tasks.Data, dict[str, str | None]]:
        """Return the data of a run, and the fingerprint of each split."""
        settings = tuple(repr(getattr(config, name)) for name in _DATA_SETTINGS)
        key = (settings, sample_seed(spec), spec.fold, spec.keep == "split", spec.score_on)
        if key not in self._data:
            _keep_newest(self._data, 8)
            data = load_split_data(spec, config)
            self._data[key] = (
                data,
                {name: _fingerprint(split, data.task) for name, split in data.splits().items()},
            )
        return self._data[key]

    def _load_model(self, config: RunConfig, data: tasks.Data, seed: int) -> _ModelOnDevice:
        adapters = (config.lora, config.lora_r, config.lora_alpha, config.lora_dropout, tuple(config.lora_targets))
        head = (data.task.modality, data.task.kind, tuple(data.task.labels))
        read = (config.pooling, config.pairs, config.dropout, config.attention_dropout)
        key = (config.model, config.trust_remote_code, head, read, adapters, config.quantize)
        if self._model is None or self._model.key != key:
            self._model = None  # frees its memory before the next one is loaded
            self._runs.clear()
            self._scored_on.clear()
            self._frozen.clear()
            self._model = _ModelOnDevice(key, config, data.task)
        self._model.reset(seed)
        return self._model

    def _start_head(self, run: Run, model: _ModelOnDevice, spec: RunSpec) -> float:
        """Write the frozen solution into a new head. Runs with the same training examples share it.

        Returns:
            The seconds that it took to fit it; 0 = nothing was fitted.
        """
        start = run.config.head_start
        if not spec.is_frozen and (start == "random" or (spec.only_check and start == "auto")):
            return 0.0
        key = (id(run.prepared.train), run.max_length)
        train, frozen, seconds = self._frozen.get(key, (None, None, 0.0))
        if train is not run.prepared.train:
            clock = time.perf_counter()
            frozen = solve(model.model, run.data.task, run.prepared, run.arguments)
            seconds = time.perf_counter() - clock
            if frozen is None or not depends_on_seed(frozen.model, frozen.name):
                _keep_newest(self._frozen, 8)
                self._frozen[key] = run.prepared.train, frozen, seconds
        if spec.is_frozen and frozen is None:
            raise UserError(
                f"method {spec.method!r} is a linear model of frozen features, and the head of this model and task has "
                "no last linear layer with a bias that it could be; leave it out."
            )
        if spec.is_frozen or starts_frozen(run.config, frozen):
            assert frozen is not None
            frozen.write(frozen.solution if spec.is_frozen else frozen.first)
        return seconds

    def _prepare(
        self,
        spec: RunSpec,
        config: RunConfig,
        arguments: Any,
        data: tasks.Data,
        fingerprints: dict[str, str | None],
        model: _ModelOnDevice,
        listener: Listener,
    ) -> Run:
        masks_seed = spec.seed if tasks.kind_of(data.task).is_masked else None
        shared = (config.max_length, tuple(config.also_eval), config.pairs, masks_seed)
        key = (id(data), *shared)
        if key not in self._runs:
            _keep_newest(self._runs, 8)
            # Runs with other samples of the training data are mostly scored on the same examples.
            scored_on = (tuple((name, value) for name, value in fingerprints.items() if name != "train"), *shared)
            known = self._scored_on.get(scored_on)
            if known is None or None in fingerprints.values():
                _keep_newest(self._scored_on, 8)
                run = prepare_run(config, arguments, data, model.model, model.tokenizer, listener)
                self._scored_on[scored_on] = run
            else:
                run = _prepare_like(known, config, arguments, data, model.model, listener)
            self._runs[key] = run
        run = dataclasses.replace(self._runs[key], config=config, arguments=arguments, listener=listener)
        run.choose_metric()
        return run


def _fingerprint(split: Any, task: tasks.Task) -> str | None:
    return data_fingerprint(tasks.content_of(split, task))


def _prepare_like(
    known: Run, config: RunConfig, arguments: Any, data: tasks.Data, model: Any, listener: Listener
) -> Run:
    """Do what `prepare_run` does, for data that differ from those of an earlier run in the training examples alone.

    Args:
        known: The earlier run. Its other splits are not tokenised again.
        config: The configuration, with the tokenizer and the maximum length of the earlier run.
        arguments: The training arguments.
        data: The data.
        model: The model that will be trained.
        listener: Receives the notes and the description of the training examples.
    """
    train_alone = dataclasses.replace(data, validation=None, test=None, others={})
    without_others = dataclasses.replace(config, also_eval=[])
    run = prepare_run(without_others, arguments, train_alone, model, known.tokenizer, listener)
    prepared = dataclasses.replace(known.prepared, train=run.prepared.train)
    return dataclasses.replace(known, data=data, prepared=prepared)


def _check_epochs(spec: RunSpec, arguments: Any) -> None:
    """Refuse a run with fewer epochs, or evaluations of them, than are scored."""
    if spec.score_epochs == 1 or spec.is_frozen:
        return
    reason = f"score_epochs is {spec.score_epochs}, and {spec.method} has"
    if arguments.max_steps > 0 or arguments.eval_strategy != "epoch":
        raise UserError(
            f"{reason} max_steps {arguments.max_steps} and eval_strategy {arguments.eval_strategy.value!r}; it needs "
            "runs whose length is num_train_epochs, and an evaluation after each epoch."
        )
    if math.ceil(arguments.num_train_epochs) < spec.score_epochs:
        raise UserError(
            f"{reason} num_train_epochs {arguments.num_train_epochs:g}; it must be at most the number of epochs."
        )


def _keep_newest(cache: dict[Any, Any], count: int) -> None:
    while len(cache) >= count:
        del cache[next(iter(cache))]


class _ModelOnDevice:
    """A model that is reset to its pretrained weights for each run, in the same tensors."""

    def __init__(self, key: Any, config: RunConfig, task: tasks.Task) -> None:
        self.key = key
        self.tokenizer = tasks.load_processor(config.model, task, trust_remote_code=config.trust_remote_code)
        self.model: Any = None
        self.fingerprint = ""
        self.content: dict[str, str] = {}  # of the files of the pretrained model
        self.kept = PersistentGraphs()
        self._optimizers: dict[Any, torch.optim.Optimizer] = {}
        self._name = config.model
        self._load = lambda: load_for_training(config, task, self.tokenizer, [])

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @torch.no_grad()
    def reset(self, seed: int) -> None:
        """Copy the pretrained weights and the head of this seed into the model, in place."""
        set_seed(seed)  # so that the weights of a new head depend on the seed only
        fresh = self._load()
        self.content = model_checksums(self._name)
        if self.model is None:
            self.model, self.fingerprint = fresh, model_fingerprint(fresh)
            return
        tensors = dict(named_tensors(fresh))
        for name, tensor in named_tensors(self.model):
            tensor.copy_(tensors[name])
        self.model.train(fresh.training)

    def optimizer(self, key: Any, learning_rate: float) -> torch.optim.Optimizer | None:
        """Return the optimizer of earlier runs with these settings, its state zeroed in place; None at first."""
        optimizer = self._optimizers.get(key)
        if optimizer is None:
            return None
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
            group.pop("initial_lr", None)
        return optimizer

    def after_run(self, trainer: Any, key: Any) -> None:
        """Keep the optimizer, and remove what accelerate has put around the model's forward."""
        trainer.accelerator.unwrap_model(self.model, keep_fp32_wrapper=False)
        optimizer = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
        can_be_reset = type(optimizer) in (torch.optim.Adam, torch.optim.AdamW)  # the state begins with zeros
        # The optimizer of a run with frozen weights would not train them in the next run.
        count = sum(len(group["params"]) for group in optimizer.param_groups) if can_be_reset else 0
        if can_be_reset and count == len(list(self.model.parameters())):
            self._optimizers[key] = optimizer


def _settings_key(config: RunConfig) -> tuple[tuple[str, str], ...]:
    """Return the settings besides the training arguments that are fixed in a captured graph: the methods, the loss."""
    own = (name for name in RUN_SETTINGS if name not in _AMOUNTS)
    return tuple((name, repr(getattr(config, name))) for name in own)


def _arguments_key(arguments: Any) -> tuple[tuple[str, str], ...]:
    return tuple((name, repr(value)) for name, value in sorted(arguments.to_dict().items()) if name not in _FREE)


def _device_name(device: torch.device) -> str:
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "cpu"


def _as_text(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
