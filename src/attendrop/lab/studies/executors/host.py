"""Executes one run inside a worker; an exception becomes a failed record."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from importlib import import_module
from typing import Any

from ....errors import on_one_line
from ....methods._own import place_of
from ....utils.processes import freeze_imported
from ...records import StudyRecord
from ..records import failed_record, now
from ..spec import RunSpec

# After these errors the process cannot be reused: its memory is full, or its CUDA context is broken.
_FATAL = frozenset(("MemoryError", "OutOfMemoryError", "AcceleratorError"))


def load_worker(path: str, device: str | None, owns_process: bool = False) -> Any:
    """Make a worker.

    Args:
        path: The import path of its class, `module:name`.
        device: The device that it runs on.
        owns_process: Whether the process is dedicated to the worker.
    """
    module, _, name = path.partition(":")
    worker = getattr(import_module(module), name)(device)
    if owns_process:
        freeze_imported()
    return worker


def run_spec(
    worker: Any, spec: RunSpec, progress: Callable[[dict[str, Any]], bool] | None, name: str
) -> tuple[StudyRecord, bool]:
    """Execute a run.

    Args:
        worker: The worker.
        spec: The run.
        progress: Called after each evaluation; True stops the run.
        name: Names the worker in the record of a failed run.

    Returns:
        The record, and whether the worker must be replaced.
    """
    started = now()
    try:
        return worker.run(spec, progress), False
    except Exception as error:
        trace = traceback.format_exc(limit=-8)
        place = place_of(error)  # in a method of the user
        message = f"{f'{place}: ' if place else ''}{on_one_line(error)}"
        record = failed_record(spec, _kind(error), message, started=started, worker=name, trace=trace)
        return record, is_fatal(error)


def is_fatal(error: BaseException) -> bool:
    """Return whether the process must be replaced after this error."""
    return bool(_FATAL & {cls.__name__ for cls in type(error).__mro__}) or "CUDA error" in str(error)


def _kind(error: BaseException) -> str:
    """Return the type of an error.

    A `UserError` keeps its name, whatever its subclass: it is a mistake in the input.
    """
    names = [cls.__name__ for cls in type(error).__mro__]
    return "UserError" if "UserError" in names else names[0]
