"""The user's token for the Hub: only in the environment, and only during a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from .settings import RunConfig

VARIABLE = "HF_TOKEN"  # `huggingface_hub` reads it, and so do the processes that are started


@contextmanager
def token_in_environment(config: RunConfig) -> Iterator[None]:
    """Put the user's token into the environment for the block.

    The training arguments would be written to a file.
    """
    token = next(iter(config.secrets.values()), None)
    before = os.environ.get(VARIABLE)
    if token is None:
        yield
        return
    os.environ[VARIABLE] = token
    try:
        yield
    finally:
        if before is None:
            del os.environ[VARIABLE]
        else:
            os.environ[VARIABLE] = before
