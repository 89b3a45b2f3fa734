"""Requests that a service refuses before it reads them: bodies that are too large, and hosts that are not its own."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any

from fastapi.responses import JSONResponse

_DRAINED = 16  # times the limit that is read and thrown away, before the connection is closed
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class OwnHosts:
    """Refuse requests to another host: a page of the web could reach a service of this machine under a name of its own.

    Args:
        app: The application.
        hosts: The names of the service.
    """

    def __init__(self, app: Any, hosts: Sequence[str]) -> None:
        self.app, self.hosts = app, {host.encode() for host in hosts}

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        host = dict(scope.get("headers", ())).get(b"host", b"")
        if scope["type"] == "http" and re.sub(rb":\d+$", b"", host) not in self.hosts:
            error = "this service is reached as localhost only; start it with --host to open it."
            return await JSONResponse({"error": error}, 421)(scope, receive, send)
        return await self.app(scope, receive, send)


class BodyLimit:
    """Answer 413 to a body with more than `most` bytes, whether its length was announced or not.

    Args:
        app: The application.
        most: The limit.
    """

    def __init__(self, app: Any, most: int) -> None:
        self.app, self.most = app, most

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        body, size, more = b"", 0, True
        while more and size <= _DRAINED * self.most:
            message = await receive()
            if message["type"] != "http.request":  # the client is gone
                return None
            part, more = message.get("body", b""), message.get("more_body", False)
            size += len(part)
            body = body + part if size <= self.most else b""
        if size > self.most:  # what was sent has been read, so that the client reads the answer
            error = (
                f"the body has more than {self.most:,} bytes, the limit of this service; send fewer or shorter texts."
            )
            return await JSONResponse({"error": error}, 413, {"connection": "close"})(scope, receive, send)
        is_read = False

        async def read() -> Message:
            nonlocal is_read
            if is_read:
                return await receive()
            is_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        return await self.app(scope, read, send)
