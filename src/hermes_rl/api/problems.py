"""What a refused request is told: always JSON of one shape, with a kind to act by and the field to blame.

Every error of the store and of the codec has its status here, so that a route only calls them.
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

from hermes_rl.api.wire import Problem
from hermes_rl.errors import ConfigError, HermesRLError
from hermes_rl.store.database.errors import (
    LeaseLostError,
    StoreError,
    StoreFullError,
    StoreUnavailableError,
    UnknownEnvironmentError,
    UnknownTrainerError,
    VersionUsedError,
)
from hermes_rl.store.parts import BadGroupError

log = logging.getLogger(__name__)

RETRY_SECONDS = 1
# Also said of 429 and the like: whoever asks again later may be served.
LATER = {"Retry-After": str(RETRY_SECONDS)}


class RefusedError(HermesRLError):
    """A request that a route refuses by itself."""

    def __init__(self, status: int, kind: str, message: str, *, field: str | None = None, later: bool = False) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.field = field
        self.later = later


# The first that fits counts, so the general ones stand last.
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
KINDS = {401: "unauthorised", 404: "no_such_route", 405: "wrong_method", 413: "too_large"}


def _methods(request: Request) -> str:
    """Those of all routes of the path; Starlette names those of the first."""
    routes = (route for route in request.app.routes if route.matches(request.scope)[0] is not Match.NONE)
    return ", ".join(sorted({method for route in routes for method in getattr(route, "methods", ())}))


def answer(status: int, problem: Problem, headers: Mapping[str, str] | None = None) -> Response:
    return Response(problem.model_dump_json(), status, headers=dict(headers or {}), media_type="application/json")


def add_handlers(app: FastAPI) -> None:
    """Answer every exception of a route; only what nobody foresaw is a 500."""

    @app.exception_handler(RefusedError)
    async def refused(_: Request, error: RefusedError) -> Response:
        problem = Problem(kind=error.kind, message=str(error), field=error.field)
        return answer(error.status, problem, LATER if error.later else None)

    @app.exception_handler(HermesRLError)
    async def ours(_: Request, error: HermesRLError) -> Response:
        for kind, status, word in STATUSES:
            if isinstance(error, kind):
                return answer(status, Problem(kind=word, message=str(error)), LATER if status >= 500 else None)
        log.error("a request failed", exc_info=error)
        return answer(500, Problem(kind="failed", message=str(error)))

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        first: Mapping[str, Any] = error.errors()[0]
        # Where it was looked for (body, path, query), then the way to the field.
        field = ".".join(str(part) for part in first["loc"][1:]) or str(first["loc"][0])
        return answer(422, Problem(kind="invalid", message=f"{field}: {first['msg']}", field=field))

    @app.exception_handler(HTTPException)
    async def told(request: Request, error: HTTPException) -> Response:
        kind = KINDS.get(error.status_code, "refused")
        headers = {"Allow": _methods(request)} if error.status_code == 405 else error.headers
        return answer(error.status_code, Problem(kind=kind, message=str(error.detail)), headers)

    @app.exception_handler(ClientDisconnect)
    async def gone(_: Request, __: ClientDisconnect) -> Response:
        # Nobody reads it.
        return Response(status_code=400)

    @app.exception_handler(Exception)
    async def unforeseen(_: Request, error: Exception) -> Response:
        return answer(500, Problem(kind="failed", message=f"{type(error).__name__}: {error}"))
