"""Methods that are not part of attendrop: classes in the user's files, and in installed packages.

    ./my_method.py:LogitNorm     a class in a file
    logit_norm                   the entry point `logit_norm` of the group `attendrop.methods` of a package

A file is run when the user names it: on the command line, in a configuration, or in Python. What a run, a study or a
model has stored names a method and its checksum, and never runs a file. A process reads each file once, so that all
runs of a study have the same code, and workers get its content from the driver (`provide`).
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import importlib.util
import linecache
import os
import re
import sys
import traceback
from collections.abc import Iterable, Mapping
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import UserError, on_one_line
from ..utils.limits import read_bytes

GROUP = "attendrop.methods"  # of entry points
_MOST_BYTES = 2**20
_REFERENCE = re.compile(r"(?P<file>[^=]*?\.py)(?::(?P<name>[^:=,]*))?(?::(?P<fields>.*))?", re.DOTALL)

_sources: dict[str, str] = {}  # the file as the user wrote it -> its content
_modules: dict[tuple[str, str], ModuleType] = {}  # file and checksum -> its module
_classes: dict[str, Any] = {}  # what records say about the code -> the class


def split(text: str) -> tuple[str, str] | None:
    """Return the reference FILE.py:CLASS and the text of the fields; None if the text names no file."""
    match = _REFERENCE.fullmatch(text.strip())
    if match is None:
        return None
    name = match["name"] or ""
    return f"{match['file']}:{name}" if name else match["file"], match["fields"] or ""


def with_absolute_file(text: str) -> str:
    """Return a method whose file, if it is in one, is written with its absolute path."""
    own = split(text)
    if own is None:
        return text
    return ":".join(filter(None, (os.path.abspath(os.path.expanduser(own[0])), own[1])))


def sources(methods: Iterable[str]) -> dict[str, str]:
    """Return the content of each file that the methods name.

    Args:
        methods: Methods as the user wrote them.
    """
    files = [reference[0].partition(".py")[0] + ".py" for method in methods if (reference := split(method))]
    return {file: _source(file) for file in files}


def provide(contents: Mapping[str, str]) -> None:
    """Give the content of files, which may not exist here, to this process."""
    _sources.update(contents)


def checksum(content: str) -> str:
    return f"sha256 {hashlib.sha256(content.encode()).hexdigest()}"


def methods_in(file: str) -> dict[str, Any]:
    """Return the methods that a file defines, {name of the class: class}."""
    from ..core.regularizer import Regularizer

    module = _module(file)
    return {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, Regularizer) and value.__module__ == module.__name__
    }


def class_in_file(reference: str) -> Any:
    """Return the class of a reference.

    Args:
        reference: FILE.py:CLASS, from `split`.
    """
    file, _, name = reference.partition(".py")
    file, name = f"{file}.py", name.removeprefix(":")
    known = methods_in(file)
    given = f"method is {reference!r}"
    if not known:
        raise UserError(f"{given}, and {file!r} has no subclass of attendrop.Regularizer, which every method is.")
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1) or [*known][:1]
        raise UserError(f"{given}; it must name a class of the file, such as {file}:{near[0]}.")
    _check_class(known[name], given)
    content = _source(file)
    return _remember(known[name], f"{os.path.basename(file)}:{name}, {checksum(content)}")


def installed_names() -> list[str]:
    """Return the names of the methods of installed packages. Nothing is imported."""
    return sorted({point.name for point in metadata.entry_points(group=GROUP)})


def installed_class(name: str) -> Any:
    """Return the class of a method of an installed package.

    Args:
        name: The name of its entry point.
    """
    from ..core.regularizer import Regularizer

    point = next(point for point in metadata.entry_points(group=GROUP) if point.name == name)
    package = f"{point.dist.name} {point.dist.version}" if point.dist else point.module
    given = f"method is {name!r}, which the package {package} provides as {point.value!r}"
    try:
        cls = point.load()
    except (Exception, SystemExit) as error:
        raise UserError(f"{given}; it cannot be imported: {type(error).__name__}: {on_one_line(error)}.") from error
    if not (isinstance(cls, type) and issubclass(cls, Regularizer)):
        raise UserError(f"{given}; it must be a subclass of attendrop.Regularizer.")
    _check_class(cls, given)
    if cls.name != name:
        raise UserError(f"{given}; the class has the name {cls.name!r}, and the entry point must have the same.")
    return _remember(cls, f"{package}, {_checksum_of_module(sys.modules[cls.__module__])}")


def recorded_class(name: str, code: str) -> Any:
    """Return the class that a saved configuration names, if this process has it with the same code.

    Args:
        name: The name of the method.
        code: What was stored about its code.
    """
    if code not in _classes and name in installed_names():
        installed_class(name)
    if code not in _classes:
        raise ValueError(
            f"the method {name!r} is that of {code or 'another file'}, which is not loaded; load the same file first, "
            "with attendrop.parse_method('FILE.py:CLASS'), or install the same version of its package."
        )
    return _classes[code]


def place_of(error: BaseException) -> str | None:
    """Return where in a method file an error was raised, as "FILE, line N"; None if it was elsewhere."""
    files = {module.__file__: file for (file, _), module in _modules.items()}
    lines = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    return f"{files[lines[-1].filename]!r}, line {lines[-1].lineno}" if lines else None


def _source(file: str) -> str:
    if file not in _sources:
        path = Path(file).expanduser()
        if not path.exists() or path.is_dir():
            problem = "is a folder" if path.is_dir() else "does not exist"
            raise UserError(f"method is of the file {file!r}, which {problem}; give a Python file, FILE.py:CLASS.")
        try:
            _sources[file] = importlib.util.decode_source(read_bytes(path, _MOST_BYTES))
        except OSError as error:
            raise UserError(f"the method file {file!r} cannot be read: {error.strerror or error}.") from None
        except (SyntaxError, UnicodeDecodeError) as error:
            raise UserError(f"the method file {file!r} is not Python source: {on_one_line(error)}.") from None
    return _sources[file]


def _module(file: str) -> ModuleType:
    """Run the file, once for each content."""
    content = _source(file)
    key = (file, checksum(content))
    if key not in _modules:
        path = os.path.abspath(os.path.expanduser(file))
        module = ModuleType(f"attendrop_method_{hashlib.sha256(repr(key).encode()).hexdigest()[:16]}")
        module.__file__ = path
        sys.modules[module.__name__] = module  # dataclasses look there for the meaning of annotations
        linecache.cache[path] = (len(content), None, content.splitlines(keepends=True), path)  # for tracebacks
        _modules[key] = module
        try:
            exec(compile(content, path, "exec", dont_inherit=True), vars(module))
        except (Exception, SystemExit) as error:
            where, what = place_of(error) or repr(file), on_one_line(error)
            if isinstance(error, SyntaxError) and error.filename == path:
                where, what = f"{file!r}, line {error.lineno}", error.msg
            del _modules[key], sys.modules[module.__name__]
            raise UserError(f"the method file {where}: {type(error).__name__}: {what}.") from error
    return _modules[key]


def _check_class(cls: Any, given: str) -> None:
    if "__dataclass_params__" not in vars(cls):
        raise UserError(f"{given}, and {cls.__name__} is no dataclass; write @dataclass above it.")
    if not re.fullmatch(r"[a-z]\w*", cls.name, re.ASCII):
        raise UserError(
            f"{given}, and the name of {cls.__name__} is {cls.name!r}; it must be lower-case letters, digits and _, as "
            f'in name: ClassVar[str] = "{cls.__name__.lower()}".'
        )
    if taken := {"method", "code"} & {field.name for field in dataclasses.fields(cls)}:
        raise UserError(f"{given}, and {cls.__name__} has a field {min(taken)!r}, which records use; rename it.")


def _remember(cls: Any, code: str) -> Any:
    cls._code = code
    _classes[code] = cls
    return cls


def _checksum_of_module(module: ModuleType) -> str:
    try:
        return checksum(importlib.util.decode_source(Path(str(module.__file__)).read_bytes()))
    except (OSError, SyntaxError, UnicodeDecodeError):
        return "a compiled module"
