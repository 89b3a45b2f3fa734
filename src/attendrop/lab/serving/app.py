"""The application: `/predict`, `/health`, the documentation at `/docs`, and a page to try texts at `/`.

The model runs in one thread, one request after the other, as in `attendrop predict`: the answers are the same. A
request waits for those before it; where too many wait, it is refused with 503.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException

from ... import __version__
from ...errors import UserError, on_one_line
from ..runs.predict import Predictor
from ..tasks import kind_of, modality_of
from .limits import BodyLimit, OwnHosts
from .page import CONTENT_POLICY, make_page
from .schema import Answers, Health, Problem, answers_of, request_class

LOOPBACK = ("127.0.0.1", "localhost", "::1", "[::1]")
_log = logging.getLogger("attendrop.serve")


@dataclass(frozen=True)
class Limits:
    """What one request may ask for.

    Attributes:
        texts: The examples of a request.
        bytes: The bytes of its body.
        waiting: The requests that may wait for the model.
    """

    texts: int = 256
    bytes: int = 1_000_000
    waiting: int = 100


def make_app(predictor: Predictor, limits: Limits = Limits(), batch_size: int = 32, hosts: Sequence[str] = ()) -> Any:  # noqa: B008
    """Make the application of a run.

    Args:
        predictor: The run.
        limits: The limits of a request.
        batch_size: The number of examples in a batch.
        hosts: The names under which the service is reached; others are refused, so that no page of the web can read
            from it under a name of its own. Empty = any.
    """
    task = predictor.run.task
    if modality_of(task).reads_files:
        noun = modality_of(task).noun
        raise UserError(f"{str(predictor.run.folder)!r} predicts {noun}s, and only texts can be served.")
    app = FastAPIOffline(
        redoc_url=None, title=f"attendrop: {task.name}", version=__version__, description="Predictions of one model."
    )
    examples_class, width = request_class(task, limits.texts), len(kind_of(task).inputs(task))
    one, waiting = anyio.CapacityLimiter(1), 0

    def columns(texts: list[Any]) -> dict[str, list[Any]]:
        return predictor.columns([text for example in texts for text in example] if width > 1 else texts, batch_size)

    async def predict(examples: Any) -> Any:
        nonlocal waiting
        if waiting >= limits.waiting:
            return _refused(503, f"{waiting} requests are waiting, the limit of this service; try again later.")
        waiting += 1
        try:
            predictions = await anyio.to_thread.run_sync(columns, examples.texts, limiter=one)
            return JSONResponse({"answers": answers_of(task, predictions)})
        except UserError as error:
            return _refused(422, on_one_line(error))
        except Exception as error:
            _log.error("a request failed: %s: %s", type(error).__name__, on_one_line(error))
            return _refused(500, "the model failed on this request; the service says why where it was started.")
        finally:
            waiting -= 1

    predict.__annotations__ = {"examples": examples_class}
    errors: dict[int | str, dict[str, Any]] = {code: {"model": Problem} for code in (413, 422, 500, 503)}
    app.post("/predict", response_model=Answers, response_model_exclude_none=True, responses=errors)(predict)

    @app.get("/health", response_model=Health)
    async def health() -> Any:
        return {
            "status": "ok", "task": task.name, "kind": task.kind, "inputs": list(kind_of(task).inputs(task)),
            "labels": list(task.labels), "max_length": predictor.run.max_length, "attendrop": __version__,
        }  # fmt: skip

    page = make_page(predictor.run, limits.texts)

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def try_texts() -> HTMLResponse:
        return HTMLResponse(page, headers={"content-security-policy": CONTENT_POLICY, "x-frame-options": "DENY"})

    _answer_in_sentences(app)
    app.add_middleware(BodyLimit, most=limits.bytes)
    if hosts:
        app.add_middleware(OwnHosts, hosts=hosts)
    return app


def _refused(code: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, code)


def _answer_in_sentences(app: FastAPI) -> None:
    """Answer every error as JSON with one sentence."""

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return _refused(422, "the body is not JSON.")
        if first["type"] == "model_attributes_type":
            return _refused(422, "the body must be a JSON object, sent with the content-type application/json.")
        place = ".".join(str(part) for part in first["loc"] if part != "body")[:100]
        message = str(first["msg"])[:200]
        sentence = f"{place or 'the body'}: {message[:1].lower()}{message[1:]}; /docs shows what a request is."
        return _refused(422, sentence.encode("ascii", "backslashreplace").decode())

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> JSONResponse:
        if error.status_code == 400:
            return _refused(422, "the body is not JSON.")
        detail = str(error.detail)
        return _refused(error.status_code, f"{detail.lower()}; /docs shows what there is.")
