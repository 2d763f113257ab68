"""What a refused request is told: always JSON in OpenAI's form, `{"error": {message, type, param, code}}`.

Always true: what the caller can mend is a 400 that names the field; what only time can mend is a 503 that says when to
ask again.
"""

import logging
import math
from collections.abc import Mapping
from itertools import takewhile
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from hermes_rl import jsontext
from hermes_rl.api.wire import Problem
from hermes_rl.errors import AuthorError, ConfigError, ContextFullError, EndpointError, HermesRLError
from hermes_rl.inference.endpoint import RetryableEndpointError

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
INVALID = "invalid_request_error"
TOO_LONG = "context_length_exceeded"
# How an engine says that it works, but does not do what was asked.
CALLERS_FAULT = frozenset({"unsupported", "http_400", "http_422"})


class RefusedError(HermesRLError):
    """A request that cannot be had; `param` is the field to blame."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def refusal(
    status: int,
    message: str,
    kind: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return Response(jsontext.dumps(body), status, headers=dict(headers or {}), media_type="application/json")


def turned_away(status: int, problem: Problem, headers: Mapping[str, str] | None) -> Response:
    """How the door says it."""
    return refusal(status, problem.message, problem.kind, headers=headers)


def add_handlers(app: FastAPI) -> None:
    """Answer every exception of a route; only what nobody foresaw is a 500."""

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> Response:
        return refusal(400, str(error), INVALID, param=error.param, code=error.code)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        # Of a value that may have several forms, the one it comes closest to.
        first: Mapping[str, Any] = max(error.errors(), key=lambda one: len(one["loc"]))
        # Where it was looked for (the body), then the way to the field, then in which of its forms.
        way = takewhile(lambda part: part.isidentifier() or part.isdecimal(), map(str, first["loc"][1:]))
        field = ".".join(way)
        said = first["msg"] if first["type"] != "extra_forbidden" else "not a field that this server knows"
        return refusal(400, f"{field}: {said}" if field else str(said), INVALID, param=field or None)

    @app.exception_handler(ConfigError)
    @app.exception_handler(AuthorError)
    async def cannot_be_had(_: Request, error: HermesRLError) -> Response:
        return refusal(400, str(error), INVALID)

    @app.exception_handler(ContextFullError)
    async def too_long(_: Request, error: ContextFullError) -> Response:
        return refusal(400, str(error), INVALID, code=TOO_LONG)

    @app.exception_handler(EndpointError)
    async def engine_failed(_: Request, error: EndpointError) -> Response:
        if error.cause in CALLERS_FAULT:
            return refusal(400, str(error), INVALID, code=error.cause)
        wait = (error.retry_after if isinstance(error, RetryableEndpointError) else None) or RETRY_SECONDS
        later = {"Retry-After": str(math.ceil(wait))}
        return refusal(503, str(error), "engine_unavailable", code=error.cause, headers=later)

    @app.exception_handler(HTTPException)
    async def told(_: Request, error: HTTPException) -> Response:
        return refusal(error.status_code, str(error.detail), INVALID, headers=error.headers)

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: ClientDisconnect) -> Response:
        # Nobody reads it.
        return Response(status_code=400)

    @app.exception_handler(Exception)
    async def unforeseen(_: Request, error: Exception) -> Response:
        return refusal(500, f"{type(error).__name__}: {error}", "server_error")
