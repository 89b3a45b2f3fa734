"""The records of a study: one JSON file for each run that has ended, `runs/<id>.json` in the folder of the study.

A record is written whole or not at all. A file that cannot be a record is named and never read as a result, and records
that do not belong together (other data, another model, other versions) are refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...errors import UserError, on_one_line, one_line
from ...utils.files import UNFINISHED, write_whole
from ...utils.secrets import is_secret
from .spec import OF_THE_START, RunSpec

FORMAT = 1
RUNS_FOLDER = "runs"
STATUSES = ("finished", "failed", "stopped")
CHECKED = "checked"  # the status of a run that was only checked; it is never written

Record = dict[str, Any]

# The fields of every record, and those of a run that has a result.
_FIELDS = {"id": str, "status": str, "method": str, "task": str, "size": str, "seed": int, "settings": dict}
_RESULT_FIELDS = {"model": dict, "data": dict, "versions": dict, "scores": dict}


def now() -> str:
    """The time, as records have it."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def record_path(folder: str | Path, run_id: str) -> Path:
    """The file of a run's record."""
    return Path(folder, RUNS_FOLDER, f"{run_id}.json")


def write_record(folder: str | Path, record: Mapping[str, Any]) -> Path:
    """Writes a record, whole or not at all, with a checksum of its content.

    Args:
        folder: The folder of the study.
        record: The record.

    Raises:
        ValueError: The record lacks a field. It is not written.
    """
    content = json.loads(json.dumps({**record, "format": FORMAT}, default=str))
    content.pop("checksum", None)
    path = record_path(folder, str(record.get("id")))
    if problem := _find_problem(content, path.stem):
        raise ValueError(f"the record of run {path.stem} is not written: {problem}")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({**content, "checksum": _checksum(content)}) + "\n")
    return path


def read_record(path: Path) -> Record:
    """Reads and checks one record.

    Raises:
        UserError: The file is not a whole record.
    """
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        problem = _find_problem(record, path.stem)
    except (OSError, ValueError) as error:
        problem = f"it cannot be read, {type(error).__name__}: {on_one_line(error)}"
    if problem:
        raise UserError(f"{str(path)!r} is not a whole record ({problem}); delete it, and its run is done again.")
    return record


def read_records(folder: str | Path, on_broken: Callable[[str], None] | None = None) -> dict[str, Record]:
    """Reads all records of a study, by the id of their run.

    Args:
        folder: The folder of the study.
        on_broken: Called with one sentence for each file that is not a whole record, which is then left out. None:
            such a file is refused.

    Raises:
        UserError: A record is broken, or the records do not belong together.
    """
    records: dict[str, Record] = {}
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
    """Deletes the files that a killed driver had begun to write. Only the holder of the folder's lock may do so."""
    for path in [*Path(folder).glob(f"*{UNFINISHED}"), *Path(folder).glob(f"*/*{UNFINISHED}")]:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def describe(spec: RunSpec) -> Record:
    """What a record says about its run, however the run ends; `settings` has no tokens and passwords."""
    values = {name: value for name, value in asdict(spec).items() if name not in OF_THE_START}
    settings = {name: value for name, value in spec.settings.items() if not is_secret(name)}
    return {"format": FORMAT, "id": spec.id, **values, "settings": settings, "trial": spec.trial}


def failed_record(spec: RunSpec, kind: str, message: str, *, started: str, worker: str, trace: str = "") -> Record:
    """The record of a run that has failed.

    Args:
        spec: The run.
        kind: The type of the error.
        message: What has happened.
        started: When the run began.
        worker: Who ran it.
        trace: The traceback, if there is one.
    """
    error = {"type": kind, "message": one_line(" ".join(message.split())), **({"traceback": trace} if trace else {})}
    return {
        **describe(spec), "status": "failed", "error": error, "started": started, "ended": now(), "worker": worker
    }  # fmt: skip


def worker_name(device: str) -> str:
    """Names this process in a record."""
    return f"{socket.gethostname()}/{os.getpid()}/{device}"


def _find_problem(record: Any, run_id: str) -> str | None:
    """What keeps a value from being a record, or None."""
    if not isinstance(record, dict):
        return f"it holds a {type(record).__name__}"
    if record.get("format") != FORMAT:
        return f"its format is {record.get('format')!r}, not {FORMAT}"
    content = {name: value for name, value in record.items() if name != "checksum"}
    if "checksum" in record and record["checksum"] != _checksum(content):
        return "its content does not fit to its checksum"
    if not re.fullmatch(r"[\w.-]+", run_id) or record.get("id") != run_id:
        return f"its id is {record.get('id')!r}"
    if record.get("status") not in STATUSES:
        return f"its status is {record.get('status')!r}"
    fields = _FIELDS | (_RESULT_FIELDS if record["status"] != "failed" else {"error": dict})
    for name, kind in fields.items():
        if not isinstance(record.get(name), kind):
            return f"{name} is missing" if name not in record else f"{name} is {record[name]!r}"
    return None


def _checksum(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class SameStudy:
    """Refuses a record that does not belong to the others: other data, another model, other versions.

    Args:
        records: The records that are there already.
    """

    def __init__(self, records: Iterable[Mapping[str, Any]] = ()) -> None:
        self._seen: dict[tuple[Any, ...], tuple[Any, str]] = {}
        for record in records:
            self.add(record)

    def add(self, record: Mapping[str, Any]) -> None:
        """Compares a record with those before it.

        Raises:
            UserError: It differs. The sentence names the difference.
        """
        facts = dict(_facts(record))
        for key, value in facts.items():
            before, other = self._seen.get(key, (value, ""))
            if value != before:
                raise UserError(
                    f"the record of run {record['id']} ({record['method']}, seed {record['seed']}) has another "
                    f"{key[0]} than that of run {other}: {value!r} instead of {before!r}; the runs of one folder must "
                    "have the same, so choose another folder for these runs."
                )
        for key, value in facts.items():
            self._seen.setdefault(key, (value, str(record["id"])))


def _facts(record: Mapping[str, Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """What records must have in common: the name of a fact, where it holds, and its value."""
    task = record["task"]
    model, data, versions = (record.get(name) or {} for name in ("model", "data", "versions"))
    if "name" in model:
        yield ("model",), model["name"]
    if "fingerprint" in model:
        yield (f"fingerprint of the model for {task}",), model["fingerprint"]
    # Which examples a run is trained and scored on may depend on all of these.
    seed = record["seed"] if record.get("resample", True) else None
    where = (record["size"], record.get("keep"), record.get("fold"), seed)
    for part, fingerprint in data.items():
        yield (f"fingerprint of the {part} data of {task}", *where), fingerprint
        if part == "validation" and record.get("fold") is None:
            yield (f"fingerprint of the {part} data of {task}",), fingerprint
    for library, version in versions.items():
        yield (f"version of {library}",), version
