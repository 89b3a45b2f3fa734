"""Passwords among the training arguments, such as `hub_token`. They are never written."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def is_secret(name: str) -> bool:
    """Return whether a setting is a password, however it is written: transformers has the same ending."""
    return name.strip().lower().replace("-", "_").endswith("_token")


@contextmanager
def without_secrets(arguments: Any) -> Iterator[None]:
    """Set the passwords of the training arguments to None for the block."""
    secrets = {name: value for name, value in vars(arguments).items() if is_secret(name) and value is not None}
    for name in secrets:
        setattr(arguments, name, None)
    try:
        yield
    finally:
        for name, value in secrets.items():
            setattr(arguments, name, value)
