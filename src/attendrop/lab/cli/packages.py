"""Optional packages: check the packages that each command needs before anything is imported.

Packages are located, not imported: torch and transformers, which most commands import first, take seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.util import find_spec

from ...errors import UserError
from ...utils.requirements import unmet

_PROGRAM = ("typer", "rich")
_DATA = ("datasets", "pyarrow")
_SCORES = ("scipy", "sklearn")

# Command -> the modules that it always needs.
NEEDED: dict[str, tuple[str, ...]] = {
    "check": _DATA,
    "train": (*_DATA, *_SCORES, "yaml", "matplotlib"),
    "predict": (*_DATA, *_SCORES),
    "serve": (*_DATA, *_SCORES, "fastapi", "uvicorn", "fastapi_offline"),
    "evaluate": (*_DATA, *_SCORES, "matplotlib"),
    "compress": (*_DATA, *_SCORES, "yaml", "matplotlib"),
    "export": (*_DATA, *_SCORES, "yaml"),
    "compare": (*_DATA, *_SCORES, "yaml"),
    "plan": (*_DATA, *_SCORES, "yaml"),
    "tune": (*_DATA, *_SCORES, "yaml", "optuna"),
    "reproduce": (*_DATA, *_SCORES, "yaml", "matplotlib"),
    "study": (),
    "report": _SCORES,
    "soup": (*_DATA, *_SCORES, "yaml", "matplotlib"),
    "curves": ("scipy", "matplotlib"),
    "robustness": (*_DATA, *_SCORES, "matplotlib"),
    "dropped": (*_DATA, *_SCORES, "matplotlib"),
    "demo": (*_DATA, *_SCORES, "yaml", "matplotlib"),
    "methods": (),
    "tasks": (),
}
# A flag, with its value where only this value counts -> the module that it needs in every command that has the flag.
_OF_FLAGS = {
    ("--lora", None): "peft",
    ("--quantize", "4bit"): "bitsandbytes",
    ("--quantize", "8bit"): "bitsandbytes",
    ("--engine", "ray"): "ray",
    ("--engine", "onnx"): "onnxruntime",
    ("--engine", "onnx-int8"): "onnxruntime",
    ("--kind", "token_classification"): "seqeval",
    ("--kind", "tokens"): "seqeval",  # the deprecated name of this kind
    ("--kind", "translation"): "sacrebleu",
    ("--kind", "image_classification"): "PIL",
}
# Every optional module -> its name on the package index.
_SAME_NAME = (
    "typer", "rich", "datasets", "pyarrow", "pandas", "scipy", "seqeval", "sacrebleu", "openpyxl", "matplotlib", "peft",
    "optuna", "ray", "bitsandbytes", "fastapi", "uvicorn", "onnxruntime",
)  # fmt: skip
NAMES = {
    **{name: name for name in _SAME_NAME},
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "PIL": "pillow",
    "fastapi_offline": "fastapi-offline",
}
# Module -> the extra of attendrop that brings it, if that is not `cli`; None = it is installed alone.
_EXTRAS = {
    "peft": "peft", "optuna": "tune", "ray": "ray", "bitsandbytes": None,
    "onnxruntime": "onnx",
    **dict.fromkeys(("fastapi", "uvicorn", "fastapi_offline"), "serve"),
}  # fmt: skip


def check_packages(command: str, arguments: Sequence[str]) -> None:
    """Refuse a command whose packages are not installed, or too old for attendrop.

    Args:
        command: The name of the command.
        arguments: The words that follow it.
    """
    if missing := _missing((*NEEDED[command], *_of_flags(arguments))):
        raise UserError(f"attendrop {command} needs {sentence_about(missing)}")
    if NEEDED[command] and (problem := unmet()):
        raise UserError(problem)


def missing_program() -> str | None:
    """Return a sentence that names missing packages of the command line; None if nothing is missing."""
    missing = _missing(_PROGRAM)
    return f"the command line needs {sentence_about(missing)}" if missing else None


def _of_flags(arguments: Sequence[str]) -> list[str]:
    """Return the modules that the flags of a command line need."""
    words = [part for word in arguments for part in (word.split("=", 1) if word.startswith("--") else [word])]
    return [
        module
        for (flag, value), module in _OF_FLAGS.items()
        for place, word in enumerate(words)
        if word == flag and value in (None, *words[place + 1 : place + 2])
    ]


def _missing(modules: Iterable[str]) -> list[str]:
    return [module for module in dict.fromkeys(modules) if not _is_installed(module)]


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except (ImportError, ValueError):  # a finder that refuses it, or a module without a specification
        return False


def sentence_about(missing: Sequence[str]) -> str:
    """Return the missing packages and the command that installs them, as the end of a sentence.

    Args:
        missing: The names of modules.
    """
    names = [NAMES[module] for module in missing]
    extras = dict.fromkeys(extra for module in missing if (extra := _EXTRAS.get(module, "cli")) is not None)
    alone = [name for name, module in zip(names, missing, strict=True) if _EXTRAS.get(module, "cli") is None]
    if set(extras) > {"cli"} and set(extras) & {"tune", "ray", "serve"}:
        del extras["cli"]  # those extras bring it
    wanted = [*([f"'attendrop[{','.join(extras)}]'"] if extras else []), *alone]
    listed = " and ".join(filter(None, (", ".join(names[:-1]), names[-1])))
    return f"{listed}, which {'is' if len(names) == 1 else 'are'} not installed: pip install {' '.join(wanted)}."
