"""Saves models and checkpoints of a Trainer with regularisers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from torch import nn
from torch.serialization import safe_globals

from .. import __version__
from ..core.state import save_regularizers
from ..utils.secrets import without_secrets
from .parts import TrainerParts


class Saving(TrainerParts):
    """Saves the methods beside the model. Checkpoints are written aside and verified (checkpoints.py)."""

    def save_model(self, output_dir: str | None = None, *args: Any, **kwargs: Any) -> None:
        if not kwargs.get("_internal_call"):  # `_save_checkpoint` has checked them
            self.divergence.check_weights()
        with self.capture.saving(), self._evaluated_weights():
            super().save_model(output_dir, *args, **kwargs)
        if self.regularizers and self.args.should_save:
            folder = Path(output_dir or self.args.output_dir)
            folder.mkdir(parents=True, exist_ok=True)
            save_regularizers(self.regularizers, folder, attendrop=__version__, seed=self.args.seed)
            self.networks.save_records(folder, is_checkpoint=bool(kwargs.get("_internal_call")))

    def _save(self, *args: Any, **kwargs: Any) -> None:
        """Save without the passwords: the Trainer writes all its arguments to `training_args.bin`."""
        with without_secrets(self.args):
            super()._save(*args, **kwargs)

    # ---- checkpoints -------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        self.divergence.check_weights()
        with self.checkpoints.writing(self._get_output_dir(trial=trial)) as folder:
            super()._save_checkpoint(model, trial)
            if self.engine is not None:
                self.engine.save_state(folder)
            self._save_more(folder)
        if self.args.push_to_hub:
            super()._push_from_checkpoint(str(Path(self._get_output_dir(trial=trial), folder.name)))

    def _save_more(self, checkpoint: Path) -> None:
        """Save what a subclass keeps in a checkpoint besides."""

    def _get_output_dir(self, trial: Any) -> str:
        staging = self.checkpoints.staging
        return super()._get_output_dir(trial) if staging is None else str(staging)

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        """Do nothing: the Trainer calls it before the checkpoint has its final place."""

    def _init_training_state(self, *args: Any, **kwargs: Any) -> tuple[int, int]:
        trained = super()._init_training_state(*args, **kwargs)
        self.checkpoints.restore_best()
        return trained

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        try:
            with self.checkpoints.loading_optimizer():
                super()._load_optimizer_and_scheduler(checkpoint)
        except ValueError as error:
            if not self.regularizers or "parameter group" not in str(error):
                raise
            raise ValueError(
                f"{Path(str(checkpoint)).name} has other groups of weights in its optimizer; methods that freeze "
                "weights or scale learning rates must stay as they are when a run is resumed."
            ) from error

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Load the states of the random generators; a checkpoint of numpy 1 names a function that moved in numpy 2."""
        rebuild: Any = np.empty(0).__reduce__()[0]
        moved: list[Any] = [(rebuild, f"numpy.{core}.multiarray._reconstruct") for core in ("core", "_core")]
        with safe_globals(moved):
            super()._load_rng_state(checkpoint)

    def _load_best_model(self) -> None:
        self.checkpoints.check_best()
        super()._load_best_model()
