"""Error responses: JSON of one shape, with a machine-readable kind and the field at fault.

Store and codec errors are mapped to status codes here, so routes just let them raise.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import Match

from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.http.errors import Problem, RefusedError, error_response
from hermes_rl.store.container import BadGroupError
from hermes_rl.store.database.errors import (
    LeaseLostError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    UnknownEnvironmentError,
    UnknownTrainerError,
    VersionUsedError,
)

log = logging.getLogger(__name__)

RETRY_SECONDS = 1
# Also sent with 429 and similar: a retry may succeed.
RETRY_HEADERS = {"Retry-After": str(RETRY_SECONDS)}


# The first match wins, so base classes come last.
STATUSES: Sequence[tuple[type[HermesRLError], int, str]] = (
    (BadGroupError, 400, "bad_group"),
    (UnknownEnvironmentError, 404, "unknown_environment"),
    (UnknownTrainerError, 404, "unknown_trainer"),
    (LeaseLostError, 409, "lease_lost"),
    (VersionUsedError, 409, "version_used"),
    (StoreFullError, 507, "store_full"),
    (StoreUnavailableError, 503, "store_unavailable"),
    (StoreError, 503, "store_failed"),
    (ConfigError, 422, "invalid"),
)
KIND_BY_STATUS = {401: "unauthorised", 404: "no_such_route", 405: "wrong_method", 413: "too_large"}


def _methods(request: Request) -> str:
    """The methods of all routes on this path; Starlette lists only those of the first."""
    routes = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return ", ".join(sorted({method for route in routes for method in getattr(route, "methods", ())}))


def add_error_handlers(app: FastAPI) -> None:
    """Map exceptions of routes to responses; only unexpected ones become a 500."""

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> Response:
        problem = Problem(kind=error.kind, message=str(error), field=error.field)
        return error_response(error.status, problem, RETRY_HEADERS if error.later else None)

    @app.exception_handler(HermesRLError)
    async def package_error(_: Request, error: HermesRLError) -> Response:
        for error_class, status, kind in STATUSES:
            if isinstance(error, error_class):
                return error_response(
                    status, Problem(kind=kind, message=str(error)), RETRY_HEADERS if status >= 500 else None
                )
        log.error("a request failed", exc_info=error)
        return error_response(500, Problem(kind="failed", message=str(error)))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first: Mapping[str, Any] = error.errors()[0]
        # The first element is the location (body, path, query), the rest is the path to the field.
        field = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        return error_response(422, Problem(kind="invalid", message=f"{field}: {first['msg']}", field=field))

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        kind = KIND_BY_STATUS.get(error.status_code, "refused")
        headers = {"Allow": _methods(request)} if error.status_code == 405 else error.headers
        return error_response(error.status_code, Problem(kind=kind, message=str(error.detail)), headers)

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: ClientDisconnect) -> Response:
        # The client is gone and will not read this.
        return Response(status_code=400)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        return error_response(500, Problem(kind="failed", message=f"{type(error).__name__}: {error}"))
