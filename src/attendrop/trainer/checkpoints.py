"""The life of a Trainer's checkpoints: how one is written, which one a run continues from, and which ones are refused.

Writing, in this order: all processes write into `unfinished/checkpoint-<step>`; everything is flushed to the disk; the
manifest is written; the folder is renamed; old checkpoints are deleted.

Resuming has three ways. Without methods the Trainer resumes as the stock one does, and nothing is looked at here. With
methods, a changed setting is a warning, and refused is what would train something wrong: a damaged checkpoint, or one
without the state of a method. A strict Trainer, such as that of the command line, refuses every changed setting.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from transformers.utils import logging

from ..core.capabilities import KeepsState
from ..core.state import find_missing_state
from ..core.trainer_protocol import TrainerProtocol
from ..utils.distributed import gather_objects
from ..utils.files import load_json
from ..utils.manifest import NoManifest, find_problem, read_manifest, seal
from .checkpoint_folders import STAGING, delete_old_checkpoints, move_into_place, numbered_checkpoints
from .fingerprint import data_fingerprint, model_fingerprint
from .trajectory import (
    HELD_BY_OPTIMIZER,
    Change,
    argument_settings,
    describe_changes,
    find_changes,
    keep_hyperparameters,
    library_versions,
    method_settings,
)

logger = logging.get_logger(__name__)

STATE_FILE = "trainer_state.json"


class Checkpoints:
    """Writes, verifies and chooses the checkpoints of a Trainer.

    Args:
        trainer: the Trainer.
        training_data: returns the training examples, before a method holds some of them out.
        is_strict: whether every changed setting is refused.

    Attributes:
        run_settings: settings besides the Trainer's own that a resumed run must share with its checkpoint.
        changes: the settings that were changed at a resume, in this run or in an earlier part of it.
        notes: what the user must know about the checkpoint that was chosen, as sentences.
    """

    def __init__(self, trainer: TrainerProtocol, training_data: Callable[[], Any], is_strict: bool) -> None:
        self._trainer = trainer
        self._training_data = training_data
        self._is_strict = is_strict
        self._may_change = False
        self._overruled: dict[str, Any] = {}  # settings in whose place the loaded optimizer keeps earlier values
        self._fingerprints: dict[str, str | None] = {}
        self._chosen: Path | None = None
        self._step = -1  # of the chosen checkpoint
        self._is_new_choice = False  # True until training begins
        self._is_verified = True  # False: the chosen checkpoint has no manifest
        self.staging: Path | None = None
        self.run_settings: dict[str, Any] = {}
        self.changes: list[Change] = []
        self.notes: list[str] = []

    # ---- which checkpoint --------------------------------------------------------------------------------------

    def choose(self, requested: str | Path | bool | None, may_change: bool, compare: bool = True) -> str | None:
        """Return the checkpoint to continue from; None if nothing is to be resumed. All processes call it.

        Args:
            requested: a checkpoint; True for the newest complete one in the output folder; None or False for none.
            may_change: whether the settings may differ from those that the checkpoint was trained with, and are used.
            compare: whether the settings are compared at all.

        Raises:
            ValueError: the checkpoint is damaged, there is no complete one, or settings differ that may not.
        """
        # The names of the parameters change when the model is sharded.
        self._fingerprints["model"] = model_fingerprint(self._trainer.model)
        self._forget(may_change)
        if requested is None or requested is False:
            return None
        if requested is True:
            checkpoint = self._newest_whole(Path(self._trainer.args.output_dir))
        else:
            checkpoint = Path(requested)
            problem = self._problem(checkpoint)
            if problem is not None:
                raise ValueError(f"{str(checkpoint)!r} cannot be resumed from: {problem}.")
        self._step = int(_state_of(checkpoint)["global_step"])
        if not (_has_optimizer(checkpoint) or self._trainer.is_deepspeed_enabled):
            self.notes.append(f"{checkpoint.name} has no state of the optimizer, which begins anew.")
        if self._is_verified and compare:
            self.changes = self._changes(checkpoint)
        self._chosen, self._is_new_choice = checkpoint, True
        return str(checkpoint)

    def begin(self, requested: str | bool | None, may_change: bool, compare: bool) -> str | bool | None:
        """Like `choose`, when training begins. A choice that was made just before is not made again."""
        self._may_change = may_change
        if self._is_stock:
            self.choose(None, may_change)
            return requested  # the stock Trainer chooses
        if not (self._is_new_choice and requested == str(self._chosen)):
            self.choose(requested, may_change, compare)
            for note in self.notes:
                logger.warning(note)
        self._is_new_choice = False
        return None if self._chosen is None else str(self._chosen)

    @property
    def _is_stock(self) -> bool:
        """Whether the Trainer resumes as the stock one does."""
        return not (self._is_strict or self._may_change or self._trainer.regularizers)

    def _forget(self, may_change: bool) -> None:
        self._chosen, self._step, self._is_verified, self._is_new_choice = None, -1, True, False
        self.changes, self.notes, self._overruled, self._may_change = [], [], {}, may_change

    def _newest_whole(self, folder: Path) -> Path:
        problems: list[str] = []
        for checkpoint in numbered_checkpoints(folder):
            problem = self._problem(checkpoint)
            if problem is None:
                if problems:
                    self.notes.append(f"{problems[0]}; the run continues from {checkpoint.name}.")
                return checkpoint
            problems.append(f"{checkpoint.name} cannot be resumed from: {problem}")
        if not problems and not self._is_strict:
            raise ValueError(f"No valid checkpoint found in output directory ({folder})")  # as the stock Trainer says
        if not problems:
            raise ValueError(f"there is no checkpoint in {str(folder)!r} to resume from.")
        raise ValueError(f"there is no complete checkpoint in {str(folder)!r} to resume from; {'; '.join(problems)}.")

    def _problem(self, checkpoint: Path) -> str | None:
        """Return the problem of a checkpoint on any machine, or None. One process of each machine reads the files."""
        args = self._trainer.args
        mine: tuple[str | None, bool] = None, True
        if args.local_process_index == 0:
            unverified = _missing_manifest(checkpoint) if self._may_change or not self._is_strict else None
            mine = self._local_problem(checkpoint, unverified is None), unverified is None
        problems = gather_objects(mine, args.world_size)
        self._is_verified = all(is_verified for _, is_verified in problems)
        problem = next((problem for problem, _ in problems if problem is not None), None)
        if problem is None and not self._is_verified:
            self.notes.append(
                f"the files of {checkpoint.name} are not verified, because {_missing_manifest(checkpoint)}."
            )
        return problem

    def _local_problem(self, checkpoint: Path, verify: bool) -> str | None:
        if not checkpoint.is_dir():
            return "there is no such folder"
        problem = None
        if verify:
            problem = self._damage(checkpoint)
            if problem is None and self._is_strict and read_manifest(checkpoint)["save_only_model"]:
                problem = "save_only_model was on, so that it has no state of the optimizer"
            if problem is not None and problem == _missing_manifest(checkpoint):
                problem += "; --resume-changed (resume_changed=True in Python) continues from it all the same"
        if problem is None and not (self._is_strict or self._may_change):
            problem = self._missing_state(checkpoint, verify)
        if problem is None and self._trainer.args.load_best_model_at_end:
            problem = self._best_problem(checkpoint, verify)
        return problem

    def _damage(self, folder: Path) -> str | None:
        """Return the fault of a checkpoint's files, or None."""
        return find_problem(folder, may_be_resaved=not self._is_strict)

    def _missing_state(self, checkpoint: Path, is_sealed: bool) -> str | None:
        """Return a text that names a method whose state the checkpoint should hold and does not, or None."""
        trained = read_manifest(checkpoint)["settings"]["methods"] if is_sealed else []
        fresh = [method for method in self._trainer.regularizers if method.to_dict()["method"] not in trained]
        missing = find_missing_state(fresh, checkpoint, self._trainer.args.process_index)
        if missing is None:
            return None
        return f"it has no state of the method {missing}; resume_changed=True begins with a new one all the same"

    def _best_problem(self, checkpoint: Path, verify: bool) -> str | None:
        """Return the problem of the best checkpoint so far, or None; the run needs it to end with the best model."""
        best = best_of(checkpoint)
        if best is None or best == checkpoint:
            return None
        if not best.is_dir():
            return f"the best checkpoint so far is {best.name}, and it is missing" if self._is_strict else None
        problem = self._damage(best) if verify else None
        return None if problem is None else f"the best checkpoint so far is {best.name}, and {problem}"

    def _changes(self, checkpoint: Path) -> list[Change]:
        """Return the changes of all resumes so far, or raise a `ValueError` if changes are not allowed."""
        args = self._trainer.args
        result: tuple[list[Change], list[Change], list[str]] = ([], [], [])
        if args.process_index == 0:
            manifest = read_manifest(checkpoint)
            earlier = [Change(**change) for change in manifest["changes"]]
            result = earlier, find_changes(manifest["settings"], self.settings(), manifest["step"]), []
            for library, version in library_versions().items():
                if manifest["versions"].get(library) != version:
                    before = manifest["versions"].get(library)
                    result[2].append(
                        f"{checkpoint.name} was written with {library} {before}, and {version} is used now."
                    )
        earlier, changes, notes = gather_objects(result, args.world_size)[0]
        refused = (
            [] if self._may_change else [change for change in changes if self._is_strict or self._is_wrong(change)]
        )
        if refused:
            raise ValueError(describe_changes(refused, checkpoint.name))
        if not self._may_change and _has_optimizer(checkpoint):
            overruled = [change for change in changes if change.name in HELD_BY_OPTIMIZER]
            changes = [change for change in changes if change not in overruled]
            self._overruled = {change.name: change.before for change in overruled}
            notes += [
                f"{change.name} is {change.now}, and the optimizer of {checkpoint.name} continues with "
                f"{change.before}, as that of the stock Trainer does; resume_changed=True uses the new value."
                for change in overruled
            ]
        self.notes += [*notes, *(f"{change}." for change in changes)]
        return [*earlier, *changes]

    def _is_wrong(self, change: Change) -> bool:
        """Whether a method has another state in each process, and their number has changed."""
        methods = self._trainer.regularizers
        return change.name == "processes" and any(isinstance(m, KeepsState) and m.local_state for m in methods)

    def settings(self) -> dict[str, Any]:
        """Return the settings that decide the final weights of the run."""
        trainer = self._trainer
        for name, dataset in (("training data", self._training_data()), ("evaluation data", trainer.eval_dataset)):
            if name not in self._fingerprints:
                self._fingerprints[name] = data_fingerprint(dataset)
        return {
            **self.run_settings,
            **argument_settings(trainer.args),
            **method_settings(trainer.regularizers),
            **self._fingerprints,
            **self._overruled,
        }

    # ---- going on from it --------------------------------------------------------------------------------------

    @property
    def is_changed(self) -> bool:
        """Whether the run continues with other settings than its checkpoint, at the user's request."""
        has_changes = not self._is_verified or any(change.step == self._step for change in self.changes)
        return self._may_change and has_changes

    def restore_best(self) -> None:
        """Set the path of the best checkpoint, which the Trainer forgets if the folder of the run was moved."""
        if self._chosen is not None:
            best = best_of(self._chosen)
            if best is not None and best.is_dir():
                self._trainer.state.best_model_checkpoint = str(best)

    def refuse_if_finished(self, max_steps: int) -> None:
        """Refuse to continue with changed settings where no step is left that they could change."""
        if self.is_changed and self._chosen is not None and self._step >= max_steps:
            raise ValueError(
                f"{self._chosen.name} has all of the {max_steps} steps of the run, so that no step is left to train "
                "with the changed settings; raise num_train_epochs or max_steps to train on."
            )

    @contextmanager
    def loading_optimizer(self) -> Iterator[None]:
        """Enter this while the optimizer and the scheduler are loaded: changed settings stay in force."""
        if not self.is_changed:
            yield
            return
        with keep_hyperparameters(self._trainer.optimizer, self._trainer.lr_scheduler):
            yield

    def check_best(self) -> None:
        """Raise a `ValueError` if the best checkpoint, which is loaded at the end, is damaged or gone."""
        best = Path(self._trainer.state.best_model_checkpoint)
        mine = None
        if self._is_stock:
            return
        if self._trainer.args.local_process_index == 0:
            mine = self._damage(best) if best.is_dir() else "it is missing"
            if not self._is_verified and mine == _missing_manifest(best):
                mine = None  # it is older than the part of the run that this library has written
        for problem in gather_objects(mine, self._trainer.args.world_size):
            if problem is not None:
                raise ValueError(f"the best checkpoint {str(best)!r} cannot be loaded at the end: {problem}.")

    # ---- writing one -------------------------------------------------------------------------------------------

    @contextmanager
    def writing(self, folder: str) -> Iterator[Path]:
        """Enter this while a checkpoint is written; gives the folder for its files.

        Args:
            folder: the folder of the run.
        """
        trainer, args = self._trainer, self._trainer.args
        step = trainer.state.global_step
        name = f"checkpoint-{step}"
        staging = Path(folder, STAGING)
        if args.local_process_index == 0:
            if staging.is_symlink():
                staging.unlink(missing_ok=True)  # never followed
            shutil.rmtree(staging, ignore_errors=True)  # of a process that was killed
            (staging / name).mkdir(parents=True, exist_ok=True)
        trainer.accelerator.wait_for_everyone()
        self.staging = staging
        try:
            yield staging / name
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)  # so that a full disk has space for other things
            raise
        finally:
            self.staging = None
        self._write_state(folder, staging / name)
        trainer.accelerator.wait_for_everyone()
        # On a shared disk process 0 has renamed the folder when the other machines look for it.
        for is_mine in (args.process_index == 0, args.process_index != 0 and args.local_process_index == 0):
            if is_mine and any((staging / name).glob("*")):
                self._finish(staging / name, Path(folder, name), step)
            trainer.accelerator.wait_for_everyone()
        if args.should_save:
            delete_old_checkpoints(Path(folder), args.save_total_limit, step, trainer.state.best_model_checkpoint)

    def _finish(self, staged: Path, target: Path, step: int) -> None:
        try:
            facts = {
                "step": step,
                "save_only_model": self._trainer.args.save_only_model,
                "versions": library_versions(),
                "settings": self.settings(),
                "changes": [asdict(change) for change in self.changes],
            }
            seal(staged, facts)
            move_into_place(staged, target)
        except BaseException:
            shutil.rmtree(staged.parent, ignore_errors=True)
            raise

    def _write_state(self, folder: str, staged: Path) -> None:
        """Write the Trainer's state again, with the path that the best checkpoint will have."""
        state = self._trainer.state
        if state.best_global_step:
            best = os.path.join(folder, f"checkpoint-{state.best_global_step}")
            is_this = state.best_global_step == state.global_step
            if is_this or os.path.isdir(best):
                state.best_model_checkpoint = best
        if self._trainer.args.should_save:
            state.save_to_json(str(staged / STATE_FILE))


def best_of(checkpoint: Path) -> Path | None:
    """Return the best checkpoint that the state of a checkpoint names, as a folder beside it."""
    best = _state_of(checkpoint).get("best_model_checkpoint")
    return checkpoint.parent / Path(best).name if best else None


def _has_optimizer(checkpoint: Path) -> bool:
    """Whether the Trainer finds the state of an optimizer in a checkpoint, and that of its scheduler."""
    return (checkpoint / "scheduler.pt").is_file() and any(checkpoint.glob("optimizer*"))


def _state_of(checkpoint: Path) -> dict[str, Any]:
    try:
        state: dict[str, Any] = load_json(checkpoint / STATE_FILE)
    except (OSError, ValueError):
        raise ValueError(f"{str(checkpoint)!r} cannot be resumed from: {STATE_FILE} cannot be read.") from None
    return state


def _missing_manifest(folder: Path) -> str | None:
    """Return a text that says that a folder has no manifest; None if it has one, whole or not."""
    try:
        read_manifest(folder)
    except NoManifest as error:
        return str(error)
    except ValueError:
        return None
    return None
