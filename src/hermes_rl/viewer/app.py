"""The viewer's web app: a JSON API over the service, and the front end's files for every other path.

Always true: it only reads, and only sources with a known id; an error is JSON with a message and a next step.
"""

import math
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, Response, StreamingResponse
from starlette.routing import Route

from hermes_rl.core.errors import HermesRLError
from hermes_rl.viewer.auth import ViewerAuth, error_response, json_response
from hermes_rl.viewer.catalog import NotFoundError
from hermes_rl.viewer.index.pagination import BadQueryError
from hermes_rl.viewer.index.queries import MAX_ROWS, RolloutFilter
from hermes_rl.viewer.record_reader import SourceChangedError
from hermes_rl.viewer.responses.conversation import MAX_MESSAGES
from hermes_rl.viewer.responses.rollout import MAX_TOKENS
from hermes_rl.viewer.service import ViewerService

STATIC = Path(__file__).parent / "static"
SOURCE, GROUP, ROLLOUT = "/api/s/{source}", "/api/s/{source}/groups/{group}", "/api/s/{source}/rollouts/{rollout}"
# Not from the machine's mimetypes, which vary: with nosniff, browsers reject a wrong type.
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".ico": "image/x-icon",
    ".woff2": "font/woff2",
}
MAX_INT = 10**12
MAX_LOG_LINES = 5_000
NDJSON = "application/x-ndjson"


def create_app(
    service: ViewerService, *, token: str, hosts: frozenset[str] | None, port: int, static: Path = STATIC
) -> Starlette:
    return Starlette(
        routes=[*_routes(service), *_unknown_api_routes(), Route("/{path:path}", _files(static))],
        middleware=[
            Middleware(ViewerAuth, token=token, hosts=hosts, port=port),
            Middleware(GZipMiddleware, minimum_size=2_000, compresslevel=1),
        ],
        exception_handlers={
            NotFoundError: _error_handler(404, "go back to the list; it may have been deleted"),
            BadQueryError: _error_handler(400, "fix the query parameters"),
            SourceChangedError: _error_handler(409, "reload the page: the source has changed since it was indexed"),
            HermesRLError: _error_handler(409, "fix the cause, then reload the page"),
            HTTPException: _error_handler(404, "go back to the list"),
            # The index is being rebuilt at this moment.
            sqlite3.Error: _error_handler(409, "reload the page: its index is being rebuilt"),
            OSError: _error_handler(409, "check that the source still exists, then reload the page"),
        },
    )


def _routes(service: ViewerService) -> list[Route]:
    def json(path: str, ask: Callable[[Request], Any]) -> Route:
        def endpoint(request: Request) -> Response:
            return json_response(ask(request))

        return Route(path, endpoint, methods=["GET"])

    return [
        json("/api/home", lambda _: service.overviews.home()),
        json("/api/compare", lambda r: service.overviews.compare(_text_param(r, "a") or "", _text_param(r, "b") or "")),
        json(SOURCE, lambda r: service.overviews.source(_source_id(r))),
        json(f"{SOURCE}/curve", lambda r: service.overviews.curve(_source_id(r))),
        json(f"{SOURCE}/live", lambda r: service.overviews.live(_source_id(r))),
        json(
            f"{SOURCE}/logs",
            lambda r: service.overviews.logs(
                _source_id(r), _text_param(r, "part"), _int_param(r, "lines", 200, MAX_LOG_LINES, 1)
            ),
        ),
        json(f"{SOURCE}/commands", lambda r: service.overviews.commands(_source_id(r))),
        json(f"{SOURCE}/metrics", lambda r: service.overviews.metrics(_source_id(r))),
        json(
            f"{SOURCE}/groups",
            lambda r: service.groups(_source_id(r), **_page_params(r), step=_optional_int_param(r, "step")),
        ),
        Route(f"{GROUP}.jsonl", lambda r: _group_line(service, r)),
        json(GROUP, lambda r: service.records.group(_source_id(r), r.path_params["group"])),
        json(f"{SOURCE}/rollouts", lambda r: service.rollouts(_source_id(r), _rollout_filter(r), **_page_params(r))),
        Route(f"{ROLLOUT}.jsonl", lambda r: _rollout_line(service, r)),
        json(ROLLOUT, lambda r: service.records.rollout(*_rollout_ids(r))),
        json(
            f"{ROLLOUT}/messages",
            lambda r: service.records.messages(
                *_rollout_ids(r), _int_param(r, "from", 0), _int_param(r, "limit", 50, MAX_MESSAGES, 1)
            ),
        ),
        json(
            f"{ROLLOUT}/text",
            lambda r: service.records.text(
                *_rollout_ids(r),
                _int_param(r, "message", 0),
                _text_param(r, "part") or "content",
                _int_param(r, "from", 0),
            ),
        ),
        json(
            f"{ROLLOUT}/tokens",
            lambda r: service.records.tokens(
                *_rollout_ids(r),
                _int_param(r, "sequence", 0),
                _int_param(r, "from", 0),
                _int_param(r, "limit", 2_048, MAX_TOKENS, 1),
            ),
        ),
    ]


def _rollout_line(service: ViewerService, request: Request) -> Response:
    source, rollout = _rollout_ids(request)
    return Response(
        service.records.rollout_line(source, rollout), headers=_download(f"rollout-{rollout}"), media_type=NDJSON
    )


def _group_line(service: ViewerService, request: Request) -> Response:
    group = request.path_params["group"]
    pieces = service.records.group_line(_source_id(request), group)
    return StreamingResponse(pieces, headers=_download(f"group-{group}"), media_type=NDJSON)


def _download(name: str) -> dict[str, str]:
    """`name` is a known id: digits and dashes."""
    return {"Content-Disposition": f'attachment; filename="{name}.jsonl"'}


def _files(static: Path) -> Callable[[Request], Response]:
    root = static.resolve()

    def endpoint(request: Request) -> Response:
        path = (root / request.path_params["path"].lstrip("/")).resolve() if "\0" not in request.url.path else root
        if not path.is_file() or not path.is_relative_to(root):
            if path.suffix in MEDIA_TYPES and path.suffix != ".html":
                return error_response(404, "file not found", "reload the page")
            path = root / "index.html"
        if not path.is_file():
            return error_response(
                404, "the pages are not built", "run scripts/front in a checkout, or install the wheel"
            )
        kind = MEDIA_TYPES.get(path.suffix, "application/octet-stream")
        # File names are the same in every version.
        return FileResponse(path, media_type=kind, headers={"Cache-Control": "no-cache"})

    return endpoint


def _unknown_api_routes() -> list[Route]:
    return [Route(path, _unknown_api_path) for path in ("/api", "/api/{rest:path}")]


def _unknown_api_path(_: Request) -> Response:
    return error_response(404, "unknown API path", "see docs/viewer.md for all paths")


def _error_handler(status: int, next_step: str) -> Callable[[Request, Exception], Response]:
    def handle(_: Request, error: Exception) -> Response:
        return error_response(status, str(error) or type(error).__name__, next_step)

    return handle


def _source_id(request: Request) -> str:
    return str(request.path_params["source"])


def _rollout_ids(request: Request) -> tuple[str, str]:
    return _source_id(request), str(request.path_params["rollout"])


def _rollout_filter(request: Request) -> RolloutFilter:
    return RolloutFilter(
        min_score=_float_param(request, "min_score"),
        max_score=_float_param(request, "max_score"),
        stop_reason=_text_param(request, "stop_reason"),
        failure=_text_param(request, "failure"),
        tool=_text_param(request, "tool"),
        text=_text_param(request, "q"),
    )


def _page_params(request: Request) -> dict[str, Any]:
    return {
        "sort": _text_param(request, "sort") or "n",
        "after": _text_param(request, "after"),
        "limit": _int_param(request, "limit", 50, MAX_ROWS, 1),
    }


def _text_param(request: Request, name: str) -> str | None:
    """The parameter, limited in length, with characters that both SQLite and JSON accept."""
    given = request.query_params.get(name, "")[:1_000].replace("\0", "\ufffd")
    return given.encode("utf-8", "replace").decode() or None


def _int_param(request: Request, name: str, default: int, maximum: int = MAX_INT, minimum: int = 0) -> int:
    given = request.query_params.get(name)
    if given is None or given == "":
        return default
    if not (given.isascii() and given.isdecimal() and len(given) < 13):
        raise BadQueryError(f"{name}={given[:40]} is not an integer")
    return max(minimum, min(int(given), maximum))


def _optional_int_param(request: Request, name: str) -> int | None:
    return _int_param(request, name, 0) if request.query_params.get(name) else None


def _float_param(request: Request, name: str) -> float | None:
    given = request.query_params.get(name)
    if given is None or given == "":
        return None
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadQueryError(f"{name}={given[:40]} is not a number")
    return value
