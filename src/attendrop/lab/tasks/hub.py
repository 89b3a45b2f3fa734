"""Access to the Hugging Face Hub without long waits: its libraries retry for half a minute if there is no network."""

from __future__ import annotations

import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def is_path(name: str) -> bool:
    """Return whether a model name is written like a path, which a name on the Hub never is."""
    return name.startswith(("/", ".", "~")) or "\\" in name or name.count("/") > 1


def is_hub_name(name: str) -> bool:
    """Return whether `name` can be a Hub repository: of the right form, no path and no local file or folder."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return not is_path(name) and not Path(name).exists()


def _is_unreachable() -> bool:
    from huggingface_hub import constants

    if urllib.request.getproxies().get("https"):
        return False  # the proxy may reach the Hub even if this machine cannot
    address = urllib.parse.urlsplit(constants.ENDPOINT)
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname or "", port), timeout=5).close()
    except OSError:
        return True
    return False


def is_offline() -> bool:
    """Return whether the Hub cannot be used: the libraries are in their offline mode, or it cannot be reached."""
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE) or _is_unreachable()


@contextmanager
def offline_if_unreachable() -> Iterator[None]:
    """Switch the libraries to their offline mode if the Hub cannot be reached: they use the cache or fail at once."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or not _is_unreachable():
        yield
        return
    modules: list[object] = [constants]
    try:
        import datasets.config as datasets_config

        modules.append(datasets_config)
    except ImportError:
        pass
    before = [vars(module)["HF_HUB_OFFLINE"] for module in modules]
    try:
        for module in modules:
            vars(module)["HF_HUB_OFFLINE"] = True
        yield
    finally:
        for module, value in zip(modules, before, strict=True):
            vars(module)["HF_HUB_OFFLINE"] = value


def error_chain(error: BaseException) -> list[BaseException]:
    """Return the error and the errors that caused it."""
    chain: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in chain:
        chain.append(current)
        current = current.__cause__ or current.__context__
    return chain


@contextmanager
def no_progress_bars() -> Iterator[None]:
    """Switch off the progress bars of `datasets`, and restore the setting afterwards."""
    import datasets

    were_enabled = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if were_enabled:
            datasets.enable_progress_bars()
