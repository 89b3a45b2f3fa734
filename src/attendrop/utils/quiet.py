"""Keeps transformers from printing while something runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quiet_transformers(hide_warnings: bool = True, hide_progress: bool = True) -> Iterator[None]:
    """Hide the warnings and the progress bars of transformers, and restore the settings at the end.

    Args:
        hide_warnings: Whether only errors are printed.
        hide_progress: Whether there are no bars for loading and saving.
    """
    from transformers.utils import logging

    verbosity, shows_progress = logging.get_verbosity(), logging.is_progress_bar_enabled()
    if hide_warnings:
        logging.set_verbosity_error()
    if hide_progress:
        logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if hide_progress and shows_progress:
            logging.enable_progress_bar()
