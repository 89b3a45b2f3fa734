"""The boundary of the program: every error ends as one sentence and an exit code, and a bug as a report on the disk.

With ATTENDROP_DEBUG=1 in the environment, errors are raised with their tracebacks.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from contextlib import suppress
from pathlib import Path

from ...errors import DivergedError, UserError, on_one_line
from ...methods._own import place_of
from ...utils.files import UNFINISHED, is_no_space
from .console import print_error
from .launch import is_main_process
from .packages import NAMES, sentence_about

DEBUG = "ATTENDROP_DEBUG"
_OF_MODELS = ("pytorch_utils.py", "modeling_utils.py", "configuration_utils.py", "masking_utils.py")  # and models/
_ISSUES = "https://github.com/attendrop/attendrop/issues"


def reported(error: Exception) -> int:
    """Print an error as one sentence, and return the exit code.

    Args:
        error: The exception of a command.

    Returns:
        2 after a mistake of the user or of the machine, 3 if training diverged, 1 after a bug.
    """
    if os.environ.get(DEBUG):
        raise error
    if isinstance(error, (UserError, DivergedError)):
        if is_main_process():  # the others have the same
            print_error(error)
        return 3 if isinstance(error, DivergedError) else 2
    if isinstance(error, BrokenPipeError):  # who read our output has ended
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    if sentence := _explained(error):
        print_error(sentence)
        return 2
    if place := place_of(error):
        print_error(f"your method failed in {place}: {type(error).__name__}: {on_one_line(error)}{_kept(error)}.")
        return 2
    if _is_of_model(error):
        reason = f"{type(error).__name__}: {on_one_line(error)}"
        print_error(
            f"transformers cannot run the model ({reason}){_kept(error)}; see whether its config.json is right, and if "
            f"it is, report it at {_ISSUES}."
        )
        return 2
    print_error(_bug(error))
    return 1


def _explained(error: Exception) -> str | None:
    """Return the sentence for an error of the machine; None for a bug."""
    place = str(getattr(error, "filename", None) or "").removesuffix(UNFINISHED)
    if is_no_space(error):
        return f"the disk is full{f', so {place!r} was not written' * bool(place)}; free some space and try again."
    if isinstance(error, PermissionError) and place:
        return f"{place!r} cannot be opened or changed ({error.strerror}); change its permissions or choose another."
    if isinstance(error, OSError):
        reason = error.strerror if place and error.strerror else on_one_line(error)
        return f"{f'{place!r} cannot be used: ' * bool(place)}{reason}."
    if isinstance(error, UnicodeEncodeError):
        wrong = error.object[error.start : error.start + 20]
        return f"a name or a value has {wrong!a}, which is no text in {error.encoding.upper()}; rename or change it."
    if isinstance(error, MemoryError):
        return "the memory of this machine is not enough; use a smaller file, model or batch size."
    if isinstance(error, RecursionError):
        return f"a value is nested too deeply to be read{_kept(error)}."
    if isinstance(error, ModuleNotFoundError):
        module = (error.name or "").partition(".")[0]
        return f"this needs {sentence_about([module])}" if module in NAMES else None
    return None


def _is_of_model(error: Exception) -> bool:
    """Return whether an error was raised by the code of a model or of its configuration in transformers."""
    frames = traceback.extract_tb(error.__traceback__)
    parts = Path(frames[-1].filename).parts if frames else ()
    return "transformers" in parts and ("models" in parts or parts[-1] in _OF_MODELS)


def _bug(error: Exception) -> str:
    return (
        f"internal error ({type(error).__name__}: {on_one_line(error)}){_kept(error)}; please report it at {_ISSUES}, "
        f"and see it here with {DEBUG}=1."
    )


def _kept(error: Exception) -> str:
    """Write the traceback into a new file, and return where it is as the end of a clause."""
    text = "".join(traceback.format_exception(error))
    try:
        file, path = tempfile.mkstemp(prefix="attendrop-error-", suffix=".txt", text=True)
        with open(file, "w", encoding="utf-8", errors="backslashreplace") as report:
            report.write(text)
    except OSError:
        sys.stderr.write(text)
        return ""
    return f"; the traceback is in {path}"
