"""Asks the Hub without waiting: where there is no network its libraries would try again for half a minute."""

from __future__ import annotations

import socket
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager


def _unreachable() -> bool:
    from huggingface_hub import constants

    if urllib.request.getproxies().get("https"):
        return False  # the proxy knows the way, this machine need not
    address = urllib.parse.urlsplit(constants.ENDPOINT)
    try:
        port = address.port or (80 if address.scheme == "http" else 443)
        socket.create_connection((address.hostname or "", port), timeout=5).close()
    except OSError:
        return True
    return False


@contextmanager
def reaching() -> Iterator[None]:
    """Inside, the libraries are in their offline mode if the Hub cannot be reached: the cache, or an error at once."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE or not _unreachable():
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


def causes(error: BaseException) -> list[BaseException]:
    """The error and what it came from."""
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or following.__context__
    return found


@contextmanager
def quiet() -> Iterator[None]:
    """Without the progress bars of `datasets`; as they were afterwards."""
    import datasets

    shown = not datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            datasets.enable_progress_bars()
