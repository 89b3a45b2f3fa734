"""Resume a run: choose and verify the checkpoint, and check changed settings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from transformers import EarlyStoppingCallback

from ...errors import UserError
from ...utils.files import load_json
from ...utils.model_files import model_checksums
from .folder import check_folder, read_record
from .settings import RunConfig


def choose_checkpoint(config: RunConfig, trainer: Any, note: Callable[[str], None]) -> Path | None:
    """Verify the checkpoints, compare their settings with those of the run, and return the one to resume from.

    Args:
        config: The configuration of the run.
        trainer: Its Trainer.
        note: Called with notes about the checkpoint for the user.
    """
    if trainer.args.process_index == 0:
        check_folder(config)  # again: another run may have used the folder until now
    named = config.training.get("resume_from_checkpoint")
    trainer.checkpoints.run_settings |= {
        **{f"the {part} of the model": checksum for part, checksum in model_checksums(config.model).items()},
        "patience": config.patience,
        "keep_epoch": config.keep_epoch,
        "class_weights": config.class_weights,
        "balanced_sampling": config.balanced_sampling,
        "focal_gamma": config.focal_gamma,
        "dropout": config.dropout,
        "attention_dropout": config.attention_dropout,
    }
    if config.lora:
        names = ("lora_r", "lora_alpha", "lora_dropout", "lora_targets", "quantize")
        trainer.checkpoints.run_settings |= {name: getattr(config, name) for name in names}
    try:
        chosen = trainer.checkpoints.choose(named or config.resume, config.resume_changed)
    except ValueError as error:
        raise UserError(" ".join(str(error).split())) from None
    if chosen is None:
        return None
    checkpoint = Path(chosen)
    for text in trainer.checkpoints.notes:
        note(text)
    if not named and not trainer.checkpoints.is_changed:
        _refuse_finished(config.output_dir, checkpoint)
    _restore_patience(trainer, checkpoint)
    return checkpoint


def _refuse_finished(folder: Path, checkpoint: Path) -> None:
    """Refuse to resume a run that has written its record after this checkpoint."""
    try:
        steps = read_record(folder).cost.steps
    except UserError:
        return  # it was stopped before it wrote the record, or while it did
    if steps is not None and int(checkpoint.name.rpartition("-")[2]) <= steps:
        raise UserError(
            f"the run in {str(folder)!r} is finished, after {steps} steps; train on with --resume --resume-changed and "
            "more --num-train-epochs, or repeat it with --overwrite."
        )


def _restore_patience(trainer: Any, checkpoint: Path) -> None:
    """Restore the number of evaluations without improvement, which the Trainer saves but does not restore."""
    state = load_json(checkpoint / "trainer_state.json")
    saved = state.get("stateful_callbacks", {}).get("EarlyStoppingCallback")
    for callback in trainer.callback_handler.callbacks:
        if isinstance(callback, EarlyStoppingCallback) and isinstance(saved, dict):
            callback.early_stopping_patience_counter = saved["attributes"]["early_stopping_patience_counter"]
