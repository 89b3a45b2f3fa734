"""The records of a study: one JSON file for each run that has ended, `runs/<id>.json` in the folder of the study.

Records are written atomically. A broken file is reported and never read as a result, and records that do not
belong together (other data, another model, other versions) are refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...errors import UserError, on_one_line, one_line
from ...utils.files import UNFINISHED, load_json, write_whole
from ...utils.model_files import model_checksums
from ...utils.secrets import is_secret
from ..records import STATUSES, RunError, StudyRecord
from .spec import RunSpec

RUNS_FOLDER = "runs"

# What a run with a result has.
_RESULT_FIELDS = ("model", "data", "versions", "scores")

# Settings in which the runs of a comparison may differ: those of the contender, the seed and the amount of data, the
# place of files whose content is compared, and what a machine decides.
_MAY_DIFFER = {
    "method", "seed", "data_seed", "task", "fraction", "shots", "model", "train_file", "validation_file", "test_file",
    "data_dir", "output_dir", "use_cpu", "disable_tqdm", "dataloader_num_workers",
}  # fmt: skip
_OF_THE_EXAMPLES = ("class_weights",)  # chosen from the examples, which may depend on the seed


def now() -> str:
    """Return the current time in the format of the records."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def record_path(folder: str | Path, run_id: str) -> Path:
    """Return the file of a run's record."""
    return Path(folder, RUNS_FOLDER, f"{run_id}.json")


def write_record(folder: str | Path, record: StudyRecord) -> Path:
    """Write a record atomically, with a checksum of its content.

    Args:
        folder: The folder of the study.
        record: The record. Its outputs, which have a file of their own, are left out.

    Raises:
        ValueError: The record lacks a field. It is not written.
    """
    content = dataclasses.replace(record, outputs=None).to_json()
    content = json.loads(json.dumps(content, default=str))
    path = record_path(folder, record.id)
    if problem := _find_problem(record, path.stem):
        raise ValueError(f"the record of run {path.stem} is not written: {problem}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({**content, "checksum": _checksum(content)}) + "\n")
    return path


def read_record(path: Path) -> StudyRecord:
    """Read and check one record. One of an earlier schema is converted.

    Raises:
        UserError: The file is not a whole record.
    """
    try:
        content = load_json(path)
    except (OSError, ValueError) as error:
        raise _not_whole(path, f"it cannot be read, {type(error).__name__}: {on_one_line(error)}") from None
    if isinstance(content, dict) and (checksum := content.pop("checksum", None)) not in (None, _checksum(content)):
        raise _not_whole(path, f"its content does not match its checksum {checksum}")
    try:
        record = StudyRecord.from_json(content)
    except (ValueError, TypeError, AttributeError) as error:
        raise _not_whole(path, str(error)) from None
    if problem := _find_problem(record, path.stem):
        raise _not_whole(path, problem)
    return record


def _not_whole(path: Path, problem: str) -> UserError:
    return UserError(f"{str(path)!r} is not a whole record ({problem}); delete it to repeat its run.")


def read_records(folder: str | Path, on_broken: Callable[[str], None] | None = None) -> dict[str, StudyRecord]:
    """Read all records of a study, by the id of their run.

    Args:
        folder: The folder of the study.
        on_broken: Called with one sentence for each file that is not a whole record, which is then left out. None:
            such a file is refused.

    Raises:
        UserError: A record is broken, or the records do not belong together.
    """
    records: dict[str, StudyRecord] = {}
    for path in sorted(Path(folder, RUNS_FOLDER).glob("*.json")):
        try:
            records[path.stem] = read_record(path)
        except UserError as error:
            if on_broken is None:
                raise
            on_broken(str(error))
    SameStudy(records.values())
    return records


def remove_unfinished(folder: str | Path) -> None:
    """Delete partial files of a killed driver. Only the holder of the folder's lock may do so."""
    for path in [*Path(folder).glob(f"*{UNFINISHED}"), *Path(folder).glob(f"*/*{UNFINISHED}")]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def describe(spec: RunSpec, status: str, **fields: Any) -> StudyRecord:
    """Return the record of a run. Its settings have no tokens and passwords.

    Args:
        spec: The run.
        status: The status of the run.
        **fields: Further fields of the record.
    """
    settings = {name: value for name, value in spec.settings.items() if not is_secret(name)}
    names = (
        "id",
        "method",
        "task",
        "size",
        "seed",
        "keep",
        "resample",
        "fold",
        "score_on",
        "score_epochs",
        "head_seed",
        "trial",
        "plan",
    )
    known = {name: getattr(spec, name) for name in names}
    return StudyRecord(**{**known, "settings": settings, **fields}, status=status)


def failed_record(spec: RunSpec, kind: str, message: str, *, started: str, worker: str, trace: str = "") -> StudyRecord:
    """Return the record of a run that has failed.

    Args:
        spec: The run.
        kind: The type of the error.
        message: The error message.
        started: When the run began.
        worker: The worker that ran it.
        trace: The traceback, if there is one.
    """
    error = RunError(kind, one_line(" ".join(message.split())), trace)
    return describe(spec, "failed", error=error, started=started, ended=now(), worker=worker)


def worker_name(device: str) -> str:
    """Return a name for this process in a record."""
    return f"{socket.gethostname()}/{os.getpid()}/{device}"


def _find_problem(record: StudyRecord, run_id: str) -> str | None:
    """Return why a record is invalid; None if it is valid."""
    if not re.fullmatch(r"[\w.-]+", run_id) or record.id != run_id:
        return f"its id is {record.id!r}"
    if record.status not in STATUSES:
        return f"its status is {record.status!r}"
    needed = ("error",) if record.has_failed else _RESULT_FIELDS
    return next((f"{name!r} is missing" for name in needed if not getattr(record, name)), None)


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def check_models(folder: Path, records: Iterable[StudyRecord]) -> None:
    """Raise a `UserError` if a model that runs were trained from has other weights, settings or tokens now.

    Args:
        folder: The folder of the study.
        records: Its records.
    """
    for name, content in {r.model.name: r.model.content for r in records if r.model is not None}.items():
        now = model_checksums(name)
        if part := next((part for part, value in content.items() if now and now.get(part) != value), None):
            raise UserError(
                f"the {part} of the model {name} changed after runs of the study in {str(folder)!r} were trained from "
                "it; restore the model, or choose another folder for the new runs."
            )


class SameStudy:
    """Refuses a record that does not belong to the others: other data or settings, another model, other versions.

    Args:
        records: The existing records.
    """

    def __init__(self, records: Iterable[StudyRecord] = ()) -> None:
        records = list(records)
        self._is_search = any(record.trial is not None for record in records)  # its runs have settings of their own
        self._seen: dict[tuple[Any, ...], tuple[Any, str]] = {}
        for record in records:
            self.add(record)

    def add(self, record: StudyRecord) -> None:
        """Compare a record with those before it.

        Raises:
            UserError: It differs. The sentence names the difference.
        """
        self._is_search |= record.trial is not None
        facts = {**dict(_facts(record)), **({} if self._is_search else dict(_settings(record)))}
        for key, value in facts.items():
            before, other = self._seen.get(key, (value, ""))
            if value != before:
                raise UserError(
                    f"the record of run {record.id} ({record.method}, seed {record.seed}) has another "
                    f"{key[0]} than that of run {other}: {value!r} instead of {before!r}; the runs of one folder must "
                    "have the same, so choose another folder for these runs."
                )
        for key, value in facts.items():
            self._seen.setdefault(key, (value, record.id))


def _facts(record: StudyRecord) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield what records must have in common: the name of a fact, where it holds, and its value."""
    task = record.task
    yield ("plan",), record.plan
    if record.fold is None:
        yield ("score_on",), record.score_on
        yield ("score_epochs",), record.score_epochs
    if record.model is not None:
        for part, checksum in record.model.content.items():
            yield (f"checksum of the {part} of the model",), checksum
        if not record.model.content:
            yield ("model",), record.model.name
        yield (f"fingerprint of the model for {task}",), record.model.fingerprint
    # Which examples a run is trained and scored on may depend on all of these.
    seed = None if record.resample is False else record.seed
    where = (record.size, record.keep, record.fold, seed)
    for part, fingerprint in record.data.items():
        yield (f"fingerprint of the {part} data of {task}", *where), fingerprint
        of_all = part == "validation" and record.fold is None and record.score_on == "validation"
        if of_all or part in (record.settings.get("also_eval") or ()):
            yield (f"fingerprint of the {part} data of {task}",), fingerprint
    for library, version in record.versions.items():
        yield (f"version of {library}",), version


def _settings(record: StudyRecord) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Yield the settings that the runs of a comparison must have in common, as `_facts` does.

    A contender with settings of its own shares them with its other runs only.
    """
    if record.has_failed:
        return
    contender = record.method if "@" in record.method else None
    where = (record.task, record.size, record.keep, record.fold, contender)
    for name, value in record.settings.items():
        if name not in _MAY_DIFFER:
            seed = record.seed if record.resample and name in _OF_THE_EXAMPLES else None
            yield (name, *where, seed), value
