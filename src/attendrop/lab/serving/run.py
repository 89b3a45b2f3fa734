"""Serve until Ctrl-C or SIGTERM."""

from __future__ import annotations

import socket
from contextlib import suppress
from typing import Any

import uvicorn

from ...errors import UserError


def listen(host: str, port: int) -> socket.socket:
    """Open the port, before the model is loaded; raise a `UserError` if that is impossible.

    Args:
        host: The address.
        port: The port; 0 = any that is free.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, kind, protocol)
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        opened.bind(address)
        return opened
    except OSError as error:
        raise UserError(
            f"{host} port {port} cannot be opened ({error.strerror or error}); choose another with --host or --port."
        ) from None


def serve(app: Any, opened: socket.socket) -> None:
    """Answer requests until the process is asked to stop.

    Args:
        app: The application.
        opened: The port, from `listen`.
    """
    config = uvicorn.Config(
        app, log_level="error", access_log=False, server_header=False, lifespan="off", timeout_keep_alive=10,
        timeout_graceful_shutdown=10, limit_concurrency=1000,
    )  # fmt: skip
    with suppress(KeyboardInterrupt):
        uvicorn.Server(config).run(sockets=[opened])
