"""Runs a study and stores its records. After an interruption, rerun it to continue: finished runs are never repeated.

study.json             the configuration; written at the start
runs/<id>.json         the record of each run that has ended
predictions/<id>.npz   the outputs of its model, for ensembles
models/<id>/           its model, where the user wants to keep it
progress.json          runs in progress, for `attendrop study`
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sized
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ...errors import UserError
from ...utils.files import is_no_space, write_whole
from ...utils.lock import locked
from ..records import SCHEMA, Progress, RunError, RunningRun, StudyConfiguration, StudyRecord
from ..records.progress import REPORTED
from .configuration import STUDY_FILE, write_configuration
from .executors import Executor, NextSpec, OnProgress
from .records import RUNS_FOLDER, SameStudy, check_models, read_records, remove_unfinished, write_record
from .spec import RunSpec
from .status import PROGRESS_FILE, Status, Watcher

MAY_GROW = (
    "methods",
    "method_files",
    "tasks",
    "data",
    "seeds",
    "max_seeds",
    "first_look",
    "trials",
)  # these may grow when a study is resumed

_RESERVE_FILE, _RESERVE = "space.reserved", 1 << 20  # bytes reserved for the last record on a full disk
_BEAT = 1.0  # seconds between checks whether progress.json is outdated
_HEARTBEAT = 10.0  # seconds after which it is always rewritten


class Study:
    """The folder of a study, locked while the context is open.

    Args:
        folder: The folder. It is created if it does not exist.
        configuration: The configuration, or a mapping of its fields. Starting again with another one is refused.
        may_grow: Fields of the configuration whose list may get longer, or whose number may grow.
        retry_failed: Whether to retry failed runs.
        watcher: Observes the study.

    Example:
        ```python
        with Study(folder, {"kind": "compare", "seeds": 2}) as study:
            for record in study.run(next_spec, executor, total=4):
                print(record.id, record.status)
        ```
    """

    def __init__(
        self,
        folder: str | Path,
        configuration: StudyConfiguration | Mapping[str, Any],
        *,
        may_grow: Collection[str] = MAY_GROW,
        retry_failed: bool = False,
        watcher: Watcher | None = None,
    ) -> None:
        self.folder, self.configuration, self.may_grow = Path(folder), _checked(configuration), may_grow
        self.retry_failed, self.watcher = retry_failed, watcher or Watcher()
        self.records: dict[str, StudyRecord] = {}
        self.total: int | None = None
        self._running: dict[str, RunningRun] = {}
        self._retried: set[str] = set()  # failed runs that were retried in this invocation
        self._known: list[StudyRecord] = []  # existing records to deliver
        self._requests: Counter[str] = Counter()  # the number of requests for a run in progress
        self._same = SameStudy()
        self._context = ExitStack()

    def __enter__(self) -> Study:
        with ExitStack() as stack:
            stack.enter_context(_removed_if_refused(self.folder))
            stack.enter_context(locked(self.folder))
            with self._full_disk_explained():
                write_configuration(self.folder, self.configuration, self.may_grow)
                self._reserve_space()
            stack.callback(lambda: (self.folder / _RESERVE_FILE).unlink(missing_ok=True))
            remove_unfinished(self.folder)
            self.records = read_records(self.folder, lambda problem: self.watcher.note(f"{problem} It will be rerun."))
            self._same = SameStudy(self.records.values())
            check_models(self.folder, self.records.values())
            stack.enter_context(self._heartbeat())
            self._context = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.__exit__(*error)

    def status(self) -> Status:
        """Return the progress of the study."""
        running = list(self._running.values())
        return Status(self.folder, self.configuration.kind, self.total, dict(self.records), running, True)

    def run(
        self, next_spec: NextSpec, executor: Executor, total: int | None = None, on_progress: OnProgress | None = None
    ) -> Iterator[StudyRecord]:
        """Yield the record of each run of `next_spec` when it ends. Finished runs are not repeated.

        Args:
            next_spec: Asked for the next run when a worker is free; None = no run for now. See `Executor.results`.
            executor: Runs them.
            total: The total number of runs, to estimate the remaining time; None = unknown.
            on_progress: Called with each report of a run, see `Executor.results`; True stops that run.

        Raises:
            UserError: The very first run of the study fails by a mistake in the input, which all runs share; or the
                disk is full; or a record does not belong to the others.
        """
        self.total = total

        def report(progress: dict[str, Any]) -> bool:
            if (run := self._running.get(progress["id"])) is not None:
                self._running[run.id] = replace(run, **{name: progress[name] for name in REPORTED & progress.keys()})
            return on_progress is not None and bool(on_progress(progress))

        with self.watcher.watching(self.status):
            while True:
                with closing(executor.results(lambda: self._next(next_spec), report)) as results:  # type: ignore[type-var]
                    for record in results:
                        yield from self._deliver_known()
                        yield from self._accept(record)
                if not self._known:
                    return
                yield from self._deliver_known()

    def check(self, specs: Iterable[RunSpec], executor: Executor) -> list[StudyRecord]:
        """Validate runs on workers without training, to detect mistakes before the first run starts.

        A method and task that have a result are not checked again.

        Args:
            specs: Runs of each method on each task. If there are several, one valid run is enough.
            executor: Checks them.

        Returns:
            The records of the checks.

        Raises:
            UserError: All runs of a method on a task would fail by a mistake in the input.
        """
        done = {(record.method, record.task) for record in self.records.values() if not record.has_failed}
        new = [replace(spec, only_check=True) for spec in specs if (spec.method, spec.task) not in done]
        waiting = iter(new)
        checked = list(executor.results(lambda: next(waiting, None)))
        for group in dict.fromkeys((spec.method, spec.task) for spec in new):
            errors = [record.error for record in checked if (record.method, record.task) == group]
            if errors and all(error is not None and error.type == "UserError" for error in errors):
                raise UserError(f"{errors[0].message}.")  # type: ignore[union-attr]
        return checked

    def _next(self, next_spec: NextSpec) -> RunSpec | None:
        while (spec := next_spec()) is not None:
            if spec.id in self._running:
                self._requests[spec.id] += 1
            elif self._is_done(spec.id):
                self._known.append(self.records[spec.id])
            else:
                self._requests[spec.id] = 1
                self._running[spec.id] = RunningRun(
                    id=spec.id, method=spec.method, task=spec.task, size=spec.size, seed=spec.seed, since=time.time()
                )
                return spec
        return None

    def has_result(self, run_id: str) -> bool:
        """Return whether a run has ended, and not failed."""
        record = self.records.get(run_id)
        return record is not None and not record.has_failed

    def _is_done(self, run_id: str) -> bool:
        record = self.records.get(run_id)
        is_retried = self.retry_failed and run_id not in self._retried
        return record is not None and not (record.has_failed and is_retried)

    def _deliver_known(self) -> Iterator[StudyRecord]:
        known, self._known = self._known, []
        yield from known

    def _accept(self, record: StudyRecord) -> Iterator[StudyRecord]:
        """Write the record of a run that has just ended."""
        if record.error is not None:
            self._check_failure(record.error)
        self._same.add(record)
        with self._full_disk_explained():
            self._write(record)
        self.records[record.id] = record
        self._retried.add(record.id)
        self._running.pop(record.id, None)
        self.watcher.ended(record, self.status())
        for _ in range(self._requests.pop(record.id, 1)):
            yield record

    def _check_failure(self, error: RunError) -> None:
        """Abort the study if all other runs would fail too."""
        has_result = any(not record.has_failed for record in self.records.values())
        if error.type == "UserError" and not has_result:
            raise UserError(f"{error.message}.")
        if is_no_space(error.message):
            raise UserError(self._full_disk())

    def _write(self, record: StudyRecord) -> None:
        try:
            if record.outputs is not None:
                from ..evaluation.outputs import write_outputs  # imports torch, and not every study has outputs

                # first: a run with a record is never repeated
                record.outputs_checksum = write_outputs(self.folder, record.id, record.outputs)
            write_record(self.folder, record)
        except OSError as error:
            if not is_no_space(error):
                raise
            # Use the reserved space, so that the result of a long run is not lost.
            (self.folder / _RESERVE_FILE).unlink(missing_ok=True)
            write_record(self.folder, record)
            self.records[record.id] = record
            raise

    def _reserve_space(self) -> None:
        write_whole(self.folder / _RESERVE_FILE, os.urandom(_RESERVE), flush=False)  # zeros may take no space

    @contextmanager
    def _full_disk_explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(
                self._full_disk()
                if is_no_space(error)
                else f"{str(self.folder)!r} cannot be written to ({error.strerror or error})."
            ) from None

    def _full_disk(self) -> str:
        return (
            f"the disk is full, so the study in {str(self.folder)!r} stops with {len(self.records)} runs recorded; "
            "free some space and rerun the command to continue."
        )

    @contextmanager
    def _heartbeat(self) -> Iterator[None]:
        """Write progress.json after each change and at regular intervals."""
        is_over = threading.Event()

        def write(pid: int | None, running: Iterable[RunningRun]) -> None:
            progress = Progress(
                pid=pid, host=socket.gethostname(), updated=time.time(), total=self.total, running=list(running)
            )
            with suppress(OSError):  # a full disk: the study reports it
                text = json.dumps(progress.to_json(), default=str)
                write_whole(self.folder / PROGRESS_FILE, text + "\n", flush=False)

        def beat() -> None:
            before, written = None, 0.0
            while not is_over.wait(_BEAT):
                running = self.status().running
                if running != before or time.monotonic() - written > _HEARTBEAT:
                    write(os.getpid(), running)
                    before, written = running, time.monotonic()

        write(os.getpid(), ())
        thread = threading.Thread(target=beat, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            write(None, ())


def _checked(configuration: StudyConfiguration | Mapping[str, Any]) -> StudyConfiguration:
    """Return the configuration of a study, from its fields if need be."""
    if isinstance(configuration, StudyConfiguration):
        return configuration
    if unknown := [name for name in configuration if name not in {field.name for field in fields(StudyConfiguration)}]:
        raise UserError(f"the configuration of a study has no field {unknown[0]!r}; see `StudyConfiguration`.")
    try:
        return StudyConfiguration.from_json({"schema": SCHEMA, **configuration})
    except ValueError as error:
        raise UserError(f"the configuration of the study is wrong: {error}.") from None


@contextmanager
def _removed_if_refused(folder: Path) -> Iterator[None]:
    """Remove a new study that is rejected before its first record, so that the user can correct the input."""
    created = [path for path in (folder, *folder.parents) if not os.path.lexists(path)]
    is_new = not (folder / STUDY_FILE).exists()
    try:
        yield
    except UserError:
        if is_new and not any((folder / RUNS_FOLDER).glob("*.json")):
            for name in (STUDY_FILE, PROGRESS_FILE):
                (folder / name).unlink(missing_ok=True)
            for path in (folder / RUNS_FOLDER, *created):
                with suppress(OSError):  # not there, or not empty
                    path.rmdir()
        raise


def run_study(
    folder: str | Path,
    configuration: StudyConfiguration | Mapping[str, Any],
    specs: Iterable[RunSpec],
    executor: Executor,
    *,
    retry_failed: bool = False,
    watcher: Watcher | None = None,
) -> dict[str, StudyRecord]:
    """Run a list of runs and return all records of the folder by run id.

    Args:
        folder: The folder.
        configuration: The configuration; see `Study`.
        specs: The runs.
        executor: Runs them. It is closed at the end.
        retry_failed: Whether to retry failed runs.
        watcher: Observes the study.
    """
    total = len(specs) if isinstance(specs, Sized) else None
    remaining = iter(specs)
    with closing(executor), Study(folder, configuration, retry_failed=retry_failed, watcher=watcher) as study:
        for _ in study.run(lambda: next(remaining, None), executor, total):
            pass
        return study.records
