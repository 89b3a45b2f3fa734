"""The settings that decide the final weights of a run: the ones that a resumed run must share with its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import Any

import torch

from .. import __version__
from ..core.regularizer import Regularizer

# Fields of TrainingArguments that do not change the weights: where to write, what to print, how to load data. All
# others are compared. A field that a later version of transformers adds is compared too, until it is listed here.
_NO_EFFECT = {
    "output_dir", "disable_tqdm", "report_to", "run_name", "project", "debug", "skip_memory_metrics", "do_train",
    "do_eval", "do_predict", "resume_from_checkpoint", "local_rank", "torch_empty_cache_steps",
    "include_num_input_tokens_seen", "eval_accumulation_steps", "enable_jit_checkpoint",
    "restore_callback_states_from_checkpoint", "dataloader_num_workers", "dataloader_pin_memory",
    "dataloader_persistent_workers", "dataloader_prefetch_factor", "dataloader_multiprocessing_context", "ddp_timeout",
    "use_cpu",  # the device is compared
}  # fmt: skip
_NO_EFFECT_PREFIXES = ("log", "save_", "hub_", "push_to_hub", "trackio_")

# Settings of the optimizer that its state in a checkpoint holds: the Trainer loads them over those of the run.
HELD_BY_OPTIMIZER = {"learning_rate", "weight_decay", "adam_beta1", "adam_beta2", "adam_epsilon", "optim_args"}

_RENAMED = {"step": "capture"}  # settings in the manifests of older checkpoints

_LIBRARIES = ("torch", "transformers", "accelerate")


@dataclass(frozen=True)
class Change:
    """A setting that differs between a checkpoint and the run that continues from it.

    Attributes:
        step: the step of the checkpoint.
        name: the setting.
        before: the value of the checkpoint.
        now: the value of the run.
    """

    step: int
    name: str
    before: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.name} was {_short(self.before)} until step {self.step} and is {_short(self.now)} after it"


def argument_settings(args: Any) -> dict[str, Any]:
    """Return the fields of TrainingArguments that decide the weights."""
    values = {
        name: value
        for name, value in args.to_dict().items()
        if name not in _NO_EFFECT and not name.startswith(_NO_EFFECT_PREFIXES)
    }
    return as_json({**values, "processes": args.world_size, "device": args.device.type})


def method_settings(regularizers: Sequence[Regularizer]) -> dict[str, Any]:
    """Return one entry for each field of each method, so that a difference names the field."""
    names = [regularizer.to_dict()["method"] for regularizer in regularizers]
    settings: dict[str, Any] = {"methods": names}
    for place, regularizer in enumerate(regularizers):
        fields = regularizer.to_dict()
        name = fields.pop("method")
        prefix = name if names.count(name) == 1 else f"{name}[{place}]"
        settings |= {f"{prefix}.{field}": value for field, value in fields.items()}
    return as_json(settings)


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that compute the weights.

    This one may run from a source tree, not installed.
    """
    return {"attendrop": __version__, **{name: version_of(name) for name in _LIBRARIES}}


@cache
def version_of(library: str) -> str:
    """Return the version of an installed library. Its metadata take milliseconds to read, and each checkpoint asks."""
    return metadata.version(library)


def find_changes(before: Mapping[str, Any], now: Mapping[str, Any], step: int) -> list[Change]:
    """Return the settings that have another value now. Fields of methods that only one of them has are not listed."""
    before = {_RENAMED.get(name, name): value for name, value in before.items()}
    names = [name for name in before if name in now and before[name] != now[name]]
    return [Change(step, name, before[name], now[name]) for name in names]


def describe_changes(changes: Sequence[Change], checkpoint: str) -> str:
    """Return one sentence that refuses a resume with these changes."""
    listed = ", ".join(f"{change.name} is {_short(change.now)} and was {_short(change.before)}" for change in changes)
    return (
        f"{listed} when {checkpoint} was written; use the earlier value to continue that run, or allow the change with "
        "--resume-changed (resume_changed=True in Python)."
    )


def as_json(value: Any) -> Any:
    """Return the value as it is after a round trip through JSON."""
    return json.loads(json.dumps(value, default=lambda x: getattr(x, "value", type(x).__name__)))


def _short(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    text = json.dumps(value) if isinstance(value, (list, dict)) else repr(value)
    return text if len(text) <= 200 else f"{text[:197]}..."


@contextmanager
def keep_hyperparameters(optimizer: Any, scheduler: Any) -> Iterator[None]:
    """Keep the optimizer's learning rate, weight decay and so on while its state is loaded in this context.

    A checkpoint holds the hyper-parameters of the optimizer and of the scheduler. Without this, a learning rate that
    the user changed on purpose would have no effect.
    """
    optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps both
    scheduler = getattr(scheduler, "scheduler", scheduler)
    before = [{name: value for name, value in group.items() if name != "params"} for group in optimizer.param_groups]
    yield
    for group, values in zip(optimizer.param_groups, before, strict=True):
        loaded = group.get("initial_lr", group["lr"])
        rate = group["lr"] * (values.get("initial_lr", values["lr"]) / loaded if loaded else 1)
        group.update({**values, "lr": rate})
    if isinstance(scheduler, torch.optim.lr_scheduler.LambdaLR):
        scheduler.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
        for group, base, factor in zip(optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True):
            group["lr"] = base * factor(scheduler.last_epoch)
        scheduler._last_lr = [group["lr"] for group in optimizer.param_groups]
