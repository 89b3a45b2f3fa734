"""Passwords: training arguments such as `hub_token`, and parts of URLs. They are never written, and never shown."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import quote, unquote_plus


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


def without_login(text: str) -> str:
    """Return a text in which no URL has a password, nor a token in the place of the user."""
    return re.sub(r"(\w\w:/{1,2}(?:[^:/@\s]*:)?)[^/\s]*@", r"\1…@", text)  # `Path` leaves one of two slashes


def without_password(url: str) -> str:
    """Return the text of a URL without its password, whose place is before the last `@` or among the parameters."""
    return re.sub(r"([?&;][^=&;\s]*=)[^&;\s]+", r"\1…", re.sub(r"(://[^:/@\s]*):\S*@", r"\1:…@", url))


def secrets_of(url: str) -> set[str]:
    """Return the passwords of a URL, as they are written in it and as the database gets them.

    Args:
        url: The URL.
    """
    user = re.search(r"://[^:/@\s]*:(\S*)@", url)
    secrets = {*re.findall(r"[?&;][^=&;\s]*=([^&;\s]+)", url), *([user[1]] if user else [])}
    return {form for secret in secrets for form in (secret, unquote_plus(secret), quote(secret)) if form}


def without_these(secrets: set[str], text: str) -> str:
    """Return a text without any of the passwords."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "…")
    return text
