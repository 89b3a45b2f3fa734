"""Warnings about names that have changed."""

from __future__ import annotations

import warnings

# Names of other libraries, or shorter ones -> the setting.
OTHER_NAMES = {
    "lr": "learning_rate",
    "epochs": "num_train_epochs",
    "num_epochs": "num_train_epochs",
    "batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "model_name_or_path": "model",
    "task_name": "task",
    "max_seq_length": "max_length",
    "methods": "method",
    "regularizers": "method",
}


def warn_renamed(old: str, new: str) -> None:
    """Warn the caller's caller that a name is deprecated."""
    warnings.warn(f"{old} is deprecated and will be removed; use {new} instead.", FutureWarning, stacklevel=3)
