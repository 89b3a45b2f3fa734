"""Settings as the words of a command line. Importing this module loads neither torch nor transformers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ...utils.secrets import is_secret


def flag_of(name: str) -> str:
    """Return the flag of a setting: `learning_rate` is `--learning-rate`."""
    return f"--{name.replace('_', '-')}"


def as_arguments(settings: Mapping[str, Any]) -> list[str]:
    """Return the words of a command line that give these settings, without passwords, so that it can be stored."""
    arguments: list[str] = []
    for name, value in settings.items():
        if is_secret(name):
            continue
        flag = flag_of(name)
        if isinstance(value, bool):
            arguments.append(flag if value else f"--no-{flag[2:]}")
        else:
            for each in value if isinstance(value, list) else [value]:
                arguments += [flag, json.dumps(each) if isinstance(each, dict) else str(each)]
    return arguments
