"""Runs the runs of a study one after the other in one process.

Between runs it keeps what takes long to make: the tokenised data, the model on its device, the optimizer and the
captured graphs. A run starts from the pretrained weights, with the head of its seed, and gives the same scores as
`attendrop train` with the same settings.
"""

from __future__ import annotations

import dataclasses
import os
import socket
import tempfile
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback, set_seed

from .. import tasks
from ..capture.kept import KeptGraphs
from ..core.networks import TrainsNetworks
from ..core.regularizer import Regularizer
from ..experiments.adapters import load_for_training
from ..experiments.data import load_data
from ..experiments.judging import scores_of
from ..experiments.run import Listener, Run, make_regularizers, prepare_run, training_arguments, versions
from ..experiments.settings import DATA, RUN_SETTINGS, RunConfig, make_config
from ..experiments.tokens import token_in_environment
from ..trainer.fingerprint import data_fingerprint, model_fingerprint
from .details import explorer_of, texts_of
from .scoring import MAX_PREDICTIONS, Scorer
from .spec import RunSpec

DATA_SEED = 42  # of splits and samples that all seeds share
FOLD_SHARE, SELECTION_SHARE = 0.2, 0.1  # of the training data, split off for `fold` and for `keep="split"`
SELECTION = "selection"  # the part of the training data on which `keep="split"` chooses the epoch

# Training arguments that are not fixed in a captured graph or an optimizer. Runs that differ in others share neither.
_FREE = (
    "output_dir", "run_name", "logging_dir", "seed", "data_seed", "num_train_epochs", "max_steps", "learning_rate",
    "lr_scheduler_type", "lr_scheduler_kwargs", "warmup_steps", "warmup_ratio", "eval_strategy", "eval_steps",
    "eval_delay", "per_device_eval_batch_size", "logging_strategy", "logging_steps", "logging_first_step",
    "metric_for_best_model", "greater_is_better",
)  # fmt: skip

_AMOUNTS = ("shots", "fraction", "max_train_samples", "max_eval_samples")  # of data; graphs do not depend on them
_DATA_SETTINGS = [f.name for f in dataclasses.fields(RunConfig) if f.metadata.get("panel") == DATA]

Progress = Callable[[dict[str, Any]], bool]


class Worker:
    """Trains and scores the runs of a study.

    Args:
        device: "cpu" for runs on the CPU; None = the first GPU where there is one.
    """

    def __init__(self, device: str | None = None) -> None:
        self._on_cpu = device == "cpu"
        self._name = f"{socket.gethostname()}/{os.getpid()}"
        self._model: _ModelOnDevice | None = None
        self._runs: dict[Any, Run] = {}  # their tokenised data
        self._data: dict[Any, tuple[tasks.Data, dict[str, str | None]]] = {}

    def run(self, spec: RunSpec, progress: Progress | None = None) -> dict[str, Any]:
        """Train and score one run, and return its record.

        Args:
            spec: The run.
            progress: Called after each evaluation; the run stops early if it returns True.
        """
        started, clock = datetime.now(UTC), time.perf_counter()
        with tempfile.TemporaryDirectory(prefix="attendrop-") as folder:
            config = make_config({**spec.settings, **self._fixed_settings(spec, folder)})
            with token_in_environment(config):
                record = self._run(spec, config, progress)
        record["cost"]["overhead_seconds"] = round(time.perf_counter() - clock - record["cost"].pop("total"), 3)
        return {**record, "started": _as_text(started), "ended": _as_text(datetime.now(UTC)), "worker": self._name}

    def _fixed_settings(self, spec: RunSpec, folder: str) -> dict[str, Any]:
        """Settings that the worker decides: nothing is saved, and the study chooses the epoch."""
        fixed = {"output_dir": folder, "seed": spec.seed, "save_strategy": "no", "load_best_model_at_end": False}
        return {**fixed, "use_cpu": True} if self._on_cpu else fixed

    def _run(self, spec: RunSpec, config: RunConfig, progress: Progress | None) -> dict[str, Any]:
        listener = Listener()
        regularizers = make_regularizers(config, listener)
        arguments = training_arguments(config)
        data, fingerprints = self._load_data(spec, config)
        model = self._load_model(config, data, arguments.seed)
        run = self._prepare(spec, config, arguments, data, model, listener)
        key = _arguments_key(arguments)
        trainer = run.make_trainer(model.model, regularizers, model.optimizer(key, arguments.learning_rate))
        trainer.steps.keep_graphs(model.kept, (_settings_key(config), key))
        if model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(model.device)
        training = _Training(spec, run, trainer, progress)
        try:
            training.train()
            scores, predictions = training.scores()
        finally:
            model.after_run(trainer, key)
        details: dict[str, Any] = {}
        if spec.details:
            details["texts"] = texts_of(data, MAX_PREDICTIONS)
            details["explorer"] = explorer_of(data, model.model, model.tokenizer, regularizers)
        return {
            **describe(spec),
            **details,
            "status": "stopped" if training.was_stopped else "finished",
            "settings": {name: value for name, value in config.settings().items() if name != "output_dir"},
            "regularizers": [method.to_dict() for method in regularizers],
            "versions": versions(),
            "device": _device_name(model.device),
            "model": {"name": config.model, "fingerprint": model.fingerprint},
            "data": fingerprints,
            "examples": {name: len(split) for name, split in data.splits().items()},
            "metric": run.prepared.metric,
            "greater_is_better": run.prepared.greater_is_better,
            "labels": list(data.task.labels),
            "notes": [*data.notes, *run.prepared.notes, *_caveats(spec, regularizers)],
            "scores": scores,
            "curves": training.curves(),
            "method_metrics": training.method_metrics(),
            "predictions": predictions,
            "kept": {"rule": spec.keep, "epoch": training.kept_epoch},
            "cost": training.cost(model.device),
            "error": None,
        }

    # ---- what is kept between runs -----------------------------------------------------------------------------

    def _load_data(self, spec: RunSpec, config: RunConfig) -> tuple[tasks.Data, dict[str, str | None]]:
        """The data of a run, and the fingerprint of each split."""
        sample_seed = spec.seed if spec.resample else DATA_SEED
        settings = tuple(repr(getattr(config, name)) for name in _DATA_SETTINGS)
        key = (settings, sample_seed, spec.fold, spec.keep == "split")
        if key not in self._data:
            _keep_newest(self._data, 8)
            data = split_for(spec, load_data(config, DATA_SEED, sample_seed))
            self._data[key] = data, {name: data_fingerprint(split) for name, split in data.splits().items()}
        return self._data[key]

    def _load_model(self, config: RunConfig, data: tasks.Data, seed: int) -> _ModelOnDevice:
        adapters = (config.lora, config.lora_r, config.lora_alpha, config.lora_dropout, tuple(config.lora_targets))
        head = (data.task.modality, data.task.kind, tuple(data.task.labels))
        key = (config.model, config.trust_remote_code, head, adapters, config.quantize)
        if self._model is None or self._model.key != key:
            self._model = None  # frees its memory before the next one is loaded
            self._runs.clear()
            self._model = _ModelOnDevice(key, config, data.task)
        self._model.reset(seed)
        return self._model

    def _prepare(
        self,
        spec: RunSpec,
        config: RunConfig,
        arguments: Any,
        data: tasks.Data,
        model: _ModelOnDevice,
        listener: Listener,
    ) -> Run:
        is_masked = data.task.kind == "mlm"  # its masks depend on the seed
        key = (id(data), config.max_length, tuple(config.also_eval), spec.seed if is_masked else None)
        if key not in self._runs:
            _keep_newest(self._runs, 8)
            self._runs[key] = prepare_run(config, arguments, data, model.model, model.tokenizer, listener)
        run = dataclasses.replace(self._runs[key], config=config, arguments=arguments, listener=listener)
        run.choose_metric()
        return run


def _keep_newest(cache: dict[Any, Any], count: int) -> None:
    while len(cache) >= count:
        del cache[next(iter(cache))]


def split_for(spec: RunSpec, data: tasks.Data) -> tasks.Data:
    """Split off what a run needs of the training data: the part that scores a fold, the part that chooses an epoch."""
    if spec.fold is not None:
        bare = dataclasses.replace(data, validation=None, test=None, others={})
        data = tasks.split_validation(bare, FOLD_SHARE, DATA_SEED + 1 + spec.fold)
    if spec.keep == "split":
        parts = tasks.split_validation(dataclasses.replace(data, validation=None), SELECTION_SHARE, DATA_SEED)
        data = dataclasses.replace(data, train=parts.train, others={**data.others, SELECTION: parts.validation})
    return data


class _ModelOnDevice:
    """A model that is trained again and again from its pretrained weights, in the same tensors."""

    def __init__(self, key: Any, config: RunConfig, task: tasks.Task) -> None:
        self.key = key
        self.tokenizer = tasks.load_processor(config.model, task, trust_remote_code=config.trust_remote_code)
        self.model: Any = None
        self.fingerprint = ""
        self.kept = KeptGraphs()
        self._optimizers: dict[Any, torch.optim.Optimizer] = {}
        self._load = lambda: load_for_training(config, task, self.tokenizer, [])

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @torch.no_grad()
    def reset(self, seed: int) -> None:
        """Copy the pretrained weights and the head of this seed into the model, in place."""
        set_seed(seed)  # so that the weights of a new head depend on the seed only
        fresh = self._load()
        if self.model is None:
            self.model, self.fingerprint = fresh, model_fingerprint(fresh)
            return
        tensors = dict(_named_tensors(fresh))
        for name, tensor in _named_tensors(self.model):
            tensor.copy_(tensors[name])
        self.model.train(fresh.training)

    def optimizer(self, key: Any, learning_rate: float) -> torch.optim.Optimizer | None:
        """The optimizer of earlier runs with the same settings, its state set to zero in place; None at first."""
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
        if can_be_reset and all(parameter.requires_grad for parameter in self.model.parameters()):
            self._optimizers[key] = optimizer


def _named_tensors(model: Any) -> list[tuple[str, Tensor]]:
    return [*model.named_parameters(), *model.named_buffers()]


def _settings_key(config: RunConfig) -> tuple[tuple[str, str], ...]:
    """The settings besides the training arguments that are fixed in a captured graph: the methods, the loss."""
    own = (name for name in RUN_SETTINGS if name not in _AMOUNTS)
    return tuple((name, repr(getattr(config, name))) for name in own)


def _arguments_key(arguments: Any) -> tuple[tuple[str, str], ...]:
    return tuple((name, repr(value)) for name, value in sorted(arguments.to_dict().items()) if name not in _FREE)


class _Training(TrainerCallback):
    """Trains one run, follows its evaluations, and scores the epoch that the study keeps."""

    def __init__(self, spec: RunSpec, run: Run, trainer: Any, progress: Progress | None) -> None:
        self.spec, self.run, self.trainer, self.progress = spec, run, trainer, progress
        self.scorer = Scorer(run.prepared, run.data.task.kind == "classification")
        self.was_stopped = False
        self.kept_epoch: float | None = None
        self._best: float | None = None
        self._weights: dict[str, Tensor] = {}  # of the best epoch
        self._validation: list[dict[str, Any]] = []  # scores of each evaluation
        self._is_inside = False  # an evaluation in an evaluation
        trainer.compute_metrics = self.scorer
        if spec.keep == "split":
            trainer.eval_dataset = run.prepared.others[SELECTION]
        trainer.add_callback(self)

    def train(self) -> None:
        clock = time.perf_counter()
        self.trainer.train()
        if self.trainer.args.device.type == "cuda":
            torch.cuda.synchronize(self.trainer.args.device)
        self._seconds = time.perf_counter() - clock
        if self.spec.keep == "last" or self.kept_epoch is None:
            self.kept_epoch = self.trainer.state.epoch

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: Mapping[str, Any] | None = None, **kwargs: Any
    ) -> None:
        name = f"eval_{self.run.prepared.metric}"
        if self._is_inside or metrics is None or name not in metrics or not self.trainer.is_in_train:
            return
        score = metrics[name]
        if self.spec.keep == "split":
            self._is_inside = True
            try:
                metrics = self.trainer.evaluate(self.run.prepared.validation, metric_key_prefix="eval_validation")
            finally:
                self._is_inside = False
            metrics = {key.replace("eval_validation_", "eval_", 1): value for key, value in metrics.items()}
        self._validation.append({"epoch": state.epoch, "step": state.global_step, **scores_of(metrics)})
        self._follow(score, state.epoch)
        if self.progress is not None and self.progress(
            {
                "id": self.spec.id, "epoch": state.epoch, "epochs": state.num_train_epochs,
                "step": state.global_step, "steps": state.max_steps, "score": score,
            }
        ):  # fmt: skip
            self.was_stopped = control.should_training_stop = True

    def _follow(self, score: float, epoch: float) -> None:
        """Remember the weights of the best epoch, where the study keeps the best one."""
        if self.spec.keep == "last":
            return
        signed = score if self.run.prepared.greater_is_better else -score
        if self._best is None or signed > self._best:
            self._best, self.kept_epoch = signed, epoch
            self._weights = {name: tensor.detach().clone() for name, tensor in _named_tensors(self.trainer.model)}

    @torch.no_grad()
    def scores(self) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
        """The scores of the kept epoch on every part, and its predictions on the validation data."""
        last = self._validation[-1] if self._validation else None
        has_networks = any(isinstance(method, TrainsNetworks) for method in self.trainer.regularizers)
        is_current = last is not None and last["step"] == self.trainer.state.global_step and not has_networks
        if self._weights and self.kept_epoch != self.trainer.state.epoch:
            for name, tensor in _named_tensors(self.trainer.model):
                tensor.copy_(self._weights[name])
            is_current = False
        prepared = self.run.prepared
        if is_current and last is not None:
            validation = {name: value for name, value in last.items() if name not in ("epoch", "step")}
        else:
            validation = scores_of(self.trainer.evaluate(prepared.validation))
        scores = {"validation": validation}
        predictions = {"validation": self.scorer.predictions} if self.scorer.predictions else {}
        for name, split in prepared.others.items():
            if not name.startswith("test") and name != SELECTION:
                scores[name] = scores_of(self.trainer.evaluate(split))
        for name, (_, other) in self.run.others.items():
            self.trainer.compute_metrics = other.compute_metrics
            scores[name] = scores_of(self.trainer.evaluate(other.validation))
        return scores, predictions

    def curves(self) -> list[dict[str, Any]]:
        """The scores of each evaluation, and the mean training loss since the one before it."""
        losses = [(entry["step"], entry["loss"]) for entry in self.trainer.state.log_history if "loss" in entry]
        rows, before = [], 0
        for row in self._validation:
            since = [loss for step, loss in losses if before < step <= row["step"]]
            rows.append({**row, "train_loss": sum(since) / len(since) if since else None})
            before = row["step"]
        return rows

    def method_metrics(self) -> dict[str, list[list[float]]]:
        """What the methods logged: name -> [step, value] pairs."""
        usual = {"loss", "grad_norm", "learning_rate", "epoch", "step"}
        metrics: dict[str, list[list[float]]] = {}
        for entry in self.trainer.state.log_history:
            if "loss" in entry:
                for name, value in entry.items():
                    if name not in usual and isinstance(value, (int, float)):
                        metrics.setdefault(name, []).append([entry["step"], value])
        return metrics

    def cost(self, device: torch.device) -> dict[str, Any]:
        evaluating = sum(entry.get("eval_runtime", 0.0) for entry in self.trainer.state.log_history)
        evaluating += sum(entry.get("eval_validation_runtime", 0.0) for entry in self.trainer.state.log_history)
        is_gpu = device.type == "cuda"
        return {
            "seconds": round(self._seconds - evaluating, 3),
            "total": self._seconds,
            "evaluation_seconds": round(evaluating, 3),
            "steps": self.trainer.state.global_step,
            "peak_memory_mib": round(torch.cuda.max_memory_allocated(device) / 2**20) if is_gpu else None,
            "captured": self.trainer.steps.were_captured,
        }


def describe(spec: RunSpec) -> dict[str, Any]:
    """What a record says about its run before it has run."""
    values = {
        name: getattr(spec, name) for name in ("id", "method", "task", "size", "seed", "keep", "resample", "fold")
    }
    return {"format": 1, **values, "trial": spec.trial}


def _caveats(spec: RunSpec, regularizers: list[Regularizer]) -> list[str]:
    uses_dev = [m.name for m in regularizers if isinstance(m, TrainsNetworks) and m.draws_from == "dev"]
    if uses_dev and spec.keep != "split":
        return [f"{uses_dev[0]} used validation examples during training, so its scores on them are optimistic"]
    return []


def _device_name(device: torch.device) -> str:
    return f"{device} {torch.cuda.get_device_name(device)}" if device.type == "cuda" else "cpu"


def _as_text(moment: datetime) -> str:
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
