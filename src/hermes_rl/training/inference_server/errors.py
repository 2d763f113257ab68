"""Error responses: always JSON in OpenAI's form, `{"error": {message, type, param, code}}`.

Always true: an error that the caller can fix is a 400 that names the field; a temporary one is a 503 with Retry-After.
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

from hermes_rl.core import fast_json
from hermes_rl.core.errors import ConfigError, ContextFullError, EndpointError, EnvironmentCodeError, HermesRLError
from hermes_rl.core.validation import problem_text
from hermes_rl.http.errors import Problem
from hermes_rl.inference.endpoint import RetryableEndpointError

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
INVALID = "invalid_request_error"
TOO_LONG = "context_length_exceeded"
# Causes by which a working engine rejects a request.
CALLER_ERRORS = frozenset({"unsupported", "http_400", "http_422"})


class InvalidRequestError(HermesRLError):
    """The request is invalid; `param` is the offending field."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


def error_response(
    status: int,
    message: str,
    kind: str,
    *,
    param: str | None = None,
    code: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Response:
    body = {"error": {"message": message, "type": kind, "param": param, "code": code}}
    return Response(fast_json.dumps(body), status, headers=dict(headers or {}), media_type="application/json")


def auth_error_response(status: int, problem: Problem, headers: Mapping[str, str] | None) -> Response:
    return error_response(status, problem.message, problem.kind, headers=headers)


def add_handlers(app: FastAPI) -> None:
    """Turn every exception of a route into a response; only unexpected ones are a 500."""

    @app.exception_handler(InvalidRequestError)
    async def refused(_: Request, error: InvalidRequestError) -> Response:
        return error_response(400, str(error), INVALID, param=error.param, code=error.code)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        # For a union, the longest location belongs to the closest match.
        first: Mapping[str, Any] = max(error.errors(), key=lambda each: len(each["loc"]))
        # A location is "body", then the field path, then the union member.
        path = takewhile(lambda part: part.isidentifier() or part.isdecimal(), map(str, first["loc"][1:]))
        field = ".".join(path)
        message = problem_text(first) if first["type"] != "extra_forbidden" else "unknown field"
        return error_response(400, f"{field}: {message}" if field else str(message), INVALID, param=field or None)

    @app.exception_handler(ConfigError)
    @app.exception_handler(EnvironmentCodeError)
    async def unsupported(_: Request, error: HermesRLError) -> Response:
        return error_response(400, str(error), INVALID)

    @app.exception_handler(ContextFullError)
    async def too_long(_: Request, error: ContextFullError) -> Response:
        return error_response(400, str(error), INVALID, code=TOO_LONG)

    @app.exception_handler(EndpointError)
    async def engine_failed(_: Request, error: EndpointError) -> Response:
        if error.cause in CALLER_ERRORS:
            return error_response(400, str(error), INVALID, code=error.cause)
        wait = (error.retry_after if isinstance(error, RetryableEndpointError) else None) or RETRY_SECONDS
        headers = {"Retry-After": str(math.ceil(wait))}
        return error_response(503, str(error), "engine_unavailable", code=error.cause, headers=headers)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        return error_response(error.status_code, str(error.detail), INVALID, headers=error.headers)

    @app.exception_handler(ClientDisconnect)
    async def disconnected(_: Request, __: ClientDisconnect) -> Response:
        # The client is gone.
        return Response(status_code=400)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        return error_response(500, f"{type(error).__name__}: {error}", "server_error")
