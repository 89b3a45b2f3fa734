"""The output folder of a run: the names of its files, and checks against overwriting the user's files."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from ...errors import UserError
from ...methods import method_names
from ...trainer.checkpoint_folders import STAGING, numbered_checkpoints
from ...utils.files import json_text, load_json, write_json, write_whole
from ...utils.lock import LOCK_FILE
from ...utils.manifest import MANIFEST_FILE, MODEL_FILES, check_sealed, seal_model
from ..evaluation.evaluator import EVALUATION_FILE
from ..records import FolderRecord, flat_scores
from ..tasks import TASKS
from .decisions import OUTPUTS_FILE
from .run_yaml import write_yaml
from .settings import RunConfig

CONFIG_FILE, METRICS_FILE, RECORD_FILE = "run.yaml", "metrics.json", "record.json"
_ATTENDOUT_RUN, _ATTENDOUT_FIGURE = "attendout_run.json", "attendout.png"

# Everything that a run writes into its output folder, as regular expressions. `--overwrite` deletes nothing else.
_WRITTEN = (
    *map(
        re.escape,
        (CONFIG_FILE, METRICS_FILE, RECORD_FILE, "README.md", "curves.png", _ATTENDOUT_FIGURE, "regularizers.json"),
    ),
    *(re.escape(file) for task in TASKS.values() for file in task.submission.values()),
    *(rf"{method}_(run\.json|generator\.safetensors)" for method in method_names()),
    r"predictions_test\w*\.csv",
    *map(re.escape, (EVALUATION_FILE, OUTPUTS_FILE)),
    r"(classes|confusion|errors)(_(test|validation)\w*)?\.csv|(confusion|reliability)(_(test|validation)\w*)?\.png",
    r"checkpoint-\d+",
    re.escape(STAGING),
    re.escape(MANIFEST_FILE),
    r"compression(\.png|\.csv)?",
    r"model(\.int8)?\.onnx(\.data)?|model\.pt2|export\.json",
    r"training_args\.bin|1_Pooling|2_Dense",
    *MODEL_FILES,
)


def check_folder(config: RunConfig, may_go_on: bool = True) -> None:
    """Check the output folder.

    A folder that is not empty is refused, unless the user asked to resume, or to overwrite an earlier run in it.

    Args:
        config: The configuration of the run.
        may_go_on: Whether the command can do so at all, for the error message.
    """
    folder = config.output_dir
    check_writable(folder, "output_dir", folder, may_create=True)
    if config.resume or config.training.get("resume_from_checkpoint"):
        _check_checkpoint(config)
        return
    if not folder.is_dir() or not any(path.name != LOCK_FILE for path in folder.iterdir()):
        return
    if not config.overwrite:
        others = ", continue with --resume or replace the run with --overwrite" if may_go_on else ""
        raise UserError(f"output_dir is {str(folder)!r}, which is not empty; choose another with --output-dir{others}.")
    if not (folder / CONFIG_FILE).is_file():
        raise UserError(
            f"output_dir is {str(folder)!r}, which has no {CONFIG_FILE} and therefore no earlier run; nothing is "
            "overwritten."
        )


def check_writable(folder: Path, setting: str, value: Path, may_create: bool) -> None:
    """Write an empty temporary file into a folder, or to where it will be created.

    Args:
        folder: The folder.
        setting: The setting that names it, for the error message.
        value: The value of that setting.
        may_create: Whether the folder need not exist yet.
    """
    given = f"{setting} is {str(value)!r}"
    if str(folder) != str(folder).encode(errors="replace").decode():  # the writers of weights and tokenizers take text
        raise UserError(f"{given}, which is no text in UTF-8; choose another place.")
    try:
        with suppress(FileNotFoundError, NotADirectoryError):
            os.lstat(folder)  # fails if the name is too long
        existing = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
        if not existing.is_dir():
            what = "a file" if existing.exists() else "a symbolic link to nothing"
            raise UserError(f"{given}, but {str(existing)!r} is {what}; it must be a folder.")
        if existing != folder and not may_create:
            raise UserError(f"{given}, but the folder {str(folder)!r} does not exist.")
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise UserError(
            f"{given}, which cannot be written to ({error.strerror or error}); choose another place."
        ) from None


def _check_checkpoint(config: RunConfig) -> None:
    """Raise if there is no checkpoint. Its files are verified later, by the Trainer."""
    named = config.training.get("resume_from_checkpoint")
    if named and not Path(named).is_dir():
        raise UserError(f"resume_from_checkpoint is {str(named)!r}, which is not a folder; it must be a checkpoint.")
    if named or numbered_checkpoints(config.output_dir):
        return
    if (config.output_dir / RECORD_FILE).is_file():
        raise UserError(
            f"the run in {str(config.output_dir)!r} is finished, and its checkpoints were removed; repeat it with "
            "--overwrite, more --num-train-epochs if you like, and --keep-checkpoints to resume it later."
        )
    raise UserError(f"there is no checkpoint in {str(config.output_dir)!r} to resume from; train without --resume.")


def is_written_by_a_run(name: str) -> bool:
    """Return whether a run writes a file or folder of this name into its output folder."""
    return any(re.fullmatch(pattern, name) for pattern in _WRITTEN)


def remove_checkpoints(folder: Path) -> None:
    """Delete the checkpoints of a finished run. A symbolic link, or a folder without a manifest, stays.

    Args:
        folder: The output folder, in which the model is saved.
    """
    for checkpoint in numbered_checkpoints(folder):
        if not checkpoint.is_symlink() and (checkpoint / MANIFEST_FILE).is_file():
            shutil.rmtree(checkpoint)


def clear_folder(folder: Path) -> list[str]:
    """Delete the files of an earlier run, and return the names of everything else, which stays.

    Of a symbolic link the link is deleted, never what it points to.
    """
    others = []
    for path in sorted(folder.iterdir()):
        if path.name == LOCK_FILE:
            continue
        if not is_written_by_a_run(path.name):
            others.append(path.name)
        elif path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    return others


@contextmanager
def empty_folders_removed(folder: Path) -> Iterator[None]:
    """If the run is refused inside, remove the folders that were created for it and are empty."""
    created = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    try:
        yield
    except UserError:
        for path in created:
            with suppress(OSError):  # not there, or not empty
                path.rmdir()
        raise


class OutputFolder(TrainerCallback):
    """Prepares the output folder when training begins, and checks afterwards that nobody deletes it.

    Training begins when the Trainer has accepted everything, so a run that is refused writes and deletes nothing.

    Args:
        config: The configuration of the run.
        trainer: Its Trainer.
        versions: The versions of the libraries, for `run.yaml`.
        note: Called with a sentence for the user.
    """

    def __init__(
        self, config: RunConfig, trainer: Any, versions: Mapping[str, str], note: Callable[[str], None]
    ) -> None:
        self.config, self.trainer, self.versions, self.note = config, trainer, versions, note
        self.is_prepared = False

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.is_prepared or not args.should_save:
            return
        folder = self.config.output_dir
        folder.mkdir(parents=True, exist_ok=True)
        if self.config.overwrite and (others := clear_folder(folder)):
            self.note(f"{', '.join(others)} in {folder} were not written by a run and stay there")
        write_yaml(
            self.config, args, folder / CONFIG_FILE, self.versions, [*_code_of(self.trainer), *changes_of(self.trainer)]
        )
        self.is_prepared = True

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if args.should_save:
            self.check_exists()

    def check_exists(self) -> None:
        """Raise a `UserError` if the folder was deleted or emptied since training began."""
        folder = self.config.output_dir
        if not (folder / CONFIG_FILE).is_file():
            raise UserError(
                f"output_dir is {str(folder)!r}, whose {CONFIG_FILE} was deleted during the run, so that the results "
                "would be incomplete; train again."
            )


def changes_of(trainer: Any) -> list[str]:
    """Return one sentence for each setting that was changed when the run was resumed."""
    return [f"The run was resumed with a change: {change}." for change in trainer.checkpoints.changes]


def _code_of(trainer: Any) -> list[str]:
    """Return the checksum of each method that is not part of attendrop."""
    described = (method.to_dict() for method in trainer.regularizers)
    return [f"method {fields['method']}: {fields['code']}" for fields in described if "code" in fields]


def write_results(folder: Path, record: FolderRecord, method_epochs: Sequence[int]) -> None:
    """Write the scores, the learning curves, the model card, the seal, and last the record, which marks a finished run.

    Args:
        folder: The output folder.
        record: The record of the run.
        method_epochs: The epochs, from 0, in which a method with cross-tuning acted.
    """
    from ..report.card import write_card
    from ..report.learning_curves import Marks, plot_history

    write_json(folder / METRICS_FILE, flat_scores(record.scores))
    metric, evaluation = str(record.metric), record.evaluation.get("validation")
    score = evaluation.scores.get(metric) if evaluation else None
    if record.cost.steps:
        marks = Marks(record.kept.epoch, method_epochs, score.baseline if score else None)
        plot_history(record.history, folder / "curves.png", metric, marks)
    if (folder / _ATTENDOUT_RUN).is_file():
        _plot_attendout(folder, record)
    write_card(folder, record)
    content = json_text(record.to_json())
    outputs = folder / OUTPUTS_FILE
    further = {OUTPUTS_FILE: outputs.read_bytes()} if outputs.is_file() else {}
    seal_model(folder, {"versions": record.versions}, {RECORD_FILE: content.encode(), **further})
    write_whole(folder / RECORD_FILE, content)


def _plot_attendout(folder: Path, record: FolderRecord) -> None:
    """Draw the drop probability of each layer, and the scores of the attacker and the defender."""
    from ..report.attendout_figure import plot_run

    if history := load_json(folder / _ATTENDOUT_RUN):
        plot_run(history, folder / _ATTENDOUT_FIGURE, record.history, metric=str(record.metric))


def mark_unfinished(folder: Path) -> None:
    """Delete the record of an earlier end of the run, and its seal, before files that they describe are replaced.

    Args:
        folder: The output folder.
    """
    for name in (RECORD_FILE, MANIFEST_FILE):
        (folder / name).unlink(missing_ok=True)


def read_record(folder: str | Path) -> FolderRecord:
    """Return the record of a finished run. One of an earlier schema is converted.

    Args:
        folder: The output folder of the run.
    """
    path = Path(folder, RECORD_FILE)
    if not path.is_file():
        raise UserError(f"{str(folder)!r} has no {RECORD_FILE}; it must be the folder of a finished `attendrop train`.")
    check_sealed(folder, [RECORD_FILE])
    return FolderRecord.read(path, "copy it again, or train again")
