"""The trials of one method, kept in a storage of Optuna.

The storage is a journal file in the folder of the study, or anything that Optuna can reach. Every trial stores
everything needed to repeat it: settings, seed, versions, and the names of its runs.
"""

from __future__ import annotations

import contextlib
import datetime
import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import UserError, on_one_line
from ...utils.secrets import secrets_of, without_password, without_these
from .search_space import Space

JOURNAL_FILE = "trials.journal"

_FORGOTTEN = datetime.timedelta(seconds=60)  # an older trial without an owner was abandoned


def load_optuna() -> Any:
    """Optuna, without its log lines."""
    try:
        import optuna
    except ModuleNotFoundError as error:
        if error.name != "optuna":
            raise
        raise UserError(
            "tuning needs Optuna, which is not installed; install it with `pip install 'attendrop[tune]'`."
        ) from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    return optuna


def open_storage(folder: Path, url: str | None) -> Any:
    """Return the storage of the trials.

    Args:
        folder: The folder of the study, which this process has locked.
        url: A URL of SQLAlchemy (`postgresql://…`, `sqlite:///…`), of Redis (`redis://…`), or the path of a journal
            file; None = a journal file in the folder.
    """
    load_optuna()
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalFileBackend, JournalRedisBackend

    if url is None:
        return JournalStorage(JournalFileBackend(str(_repaired(folder.absolute() / JOURNAL_FILE))))
    try:
        if re.match(r"(redis|rediss|unix)://", url):
            storage: Any = JournalStorage(JournalRedisBackend(url))
        elif "://" in url:
            storage = RDBStorage(url)
        else:
            storage = JournalStorage(JournalFileBackend(str(Path(url).absolute())))
        storage.get_all_studies()
    except Exception as error:  # every database driver has its own classes
        hint = "it must be a database or a file that Optuna can open, such as sqlite:///trials.db"
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        reason = without_these(secrets_of(url), without_password(on_one_line(Exception(first))))
        raise UserError(f"storage is {without_password(url)!r}, which cannot be used ({reason}); {hint}.") from None
    return storage


def _repaired(journal: Path) -> Path:
    """Remove a truncated last line and stale locks, which a killed process may leave in the journal."""
    for lock in journal.parent.glob(f"{journal.name}.lock*"):
        lock.unlink()
    if journal.is_file() and (content := journal.read_bytes()) and not content.endswith(b"\n"):
        with journal.open("r+b") as file:
            file.truncate(content.rfind(b"\n") + 1)
    return journal


class MethodTrials:
    """The trials of one method.

    Args:
        storage: From `open_storage`.
        name: The name of the study of Optuna. Drivers that use the same name add trials to the same search.
        space: The search space.
        sampler: From `make_sampler`.
        budget: The number of trials.
        owner: The folder of the study, which identifies this driver. A driver that starts again in that folder
            continues its trials.
        is_shared: Whether other drivers may use the storage at the same time.
    """

    def __init__(
        self, storage: Any, name: str, space: Space, sampler: Any, budget: int, owner: str, is_shared: bool
    ) -> None:
        optuna = load_optuna()
        self.space, self.budget, self.owner, self.is_shared = space, budget, owner, is_shared
        self.states = optuna.trial.TrialState
        self._make_trial = optuna.trial.Trial
        self._already_ended = optuna.exceptions.UpdateFinishedTrialError
        # The first evaluation is too noisy to prune a trial.
        pruner = optuna.pruners.MedianPruner(n_startup_trials=5, n_warmup_steps=1)
        self.study = optuna.create_study(
            storage=storage, study_name=name, direction="maximize", sampler=sampler, pruner=pruner, load_if_exists=True
        )

    def all(self) -> list[Any]:
        """Return the trials of the budget, in the order of their numbers."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if trial.number < self.budget]

    def finished(self) -> list[Any]:
        """Return the trials that have a score."""
        return [trial for trial in self.all() if trial.state == self.states.COMPLETE]

    def running_elsewhere(self) -> int:
        """Return the number of trials that other drivers have not finished."""
        return sum(trial.state == self.states.RUNNING and not self._is_own(trial) for trial in self.all())

    def interrupted(self) -> list[Any]:
        """Return the trials that an earlier process of this driver has begun and not finished."""
        return [
            self._suggested(self._make_trial(self.study, trial._trial_id))
            for trial in self.all()
            if trial.state == self.states.RUNNING and self._is_own(trial)
        ]

    def _is_own(self, trial: Any) -> bool:
        owner = trial.user_attrs.get("owner")
        if owner is None:
            age = datetime.datetime.now() - (trial.datetime_start or datetime.datetime.min)
            return not self.is_shared or age > _FORGOTTEN
        return bool(owner == self.owner)

    def ask(self) -> Any | None:
        """Return a new trial, or None if the study has all of them."""
        if len(self.study.get_trials(deepcopy=False)) >= self.budget:
            return None
        trial = self.study.ask()
        if trial.number >= self.budget:  # another driver was faster
            self.study.tell(trial.number, state=self.states.FAIL)
            return None
        return self._suggested(trial)

    def _suggested(self, trial: Any) -> Any:
        """Return the trial with a value for each dimension."""
        trial.set_user_attr("owner", self.owner)
        for name, dimension in self.space.items():
            dimension.suggest(trial, name)
        return trial

    def report(self, trial: Any, step: int, value: float) -> bool:
        """Report the score of an evaluation, and return whether the trial should be stopped.

        Args:
            trial: The trial.
            step: The number of the evaluation, from 0.
            value: The score; greater is better.
        """
        if step not in self.study.get_trials(deepcopy=False)[trial.number].intermediate_values:
            trial.report(value, step)
        return bool(trial.should_prune())

    def end(self, trial: Any, value: float | None, facts: Mapping[str, Any], is_pruned: bool = False) -> None:
        """End a trial.

        Args:
            trial: The trial.
            value: Its score, greater is better; None = it failed or was stopped.
            facts: Facts to store with it.
            is_pruned: Whether it was stopped because its scores were low.
        """
        # Another driver may have ended the trial, assuming that this one was dead.
        with contextlib.suppress(ValueError, self._already_ended):
            for name, fact in facts.items():
                trial.set_user_attr(name, fact)
            if value is not None and math.isfinite(value):
                self.study.tell(trial.number, value)
            else:
                self.study.tell(trial.number, state=self.states.PRUNED if is_pruned else self.states.FAIL)
