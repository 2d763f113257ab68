"""The viewer's web server: a JSON API over the desk, and the front end's files for every other path.

Always true: it only reads, and only what is named by an id; an error is JSON with a message and a next step.
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

from hermes_rl.errors import HermesRLError
from hermes_rl.viewer.answers.conversation import MOST_MESSAGES
from hermes_rl.viewer.answers.rollout import MOST_TOKENS
from hermes_rl.viewer.catalog import NotThereError
from hermes_rl.viewer.desk import Desk
from hermes_rl.viewer.guard import Guard, answer, problem
from hermes_rl.viewer.index.asking import MOST_ROWS, Wanted
from hermes_rl.viewer.index.ordering import BadQuestionError
from hermes_rl.viewer.reading import ChangedError

STATIC = Path(__file__).parent / "static"
SOURCE, GROUP, ROLLOUT = "/api/s/{source}", "/api/s/{source}/groups/{group}", "/api/s/{source}/rollouts/{rollout}"
# What mimetypes of the machine says may be anything; with nosniff a wrong one would not run.
TYPES = {
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
BEGINNING = 10**12
LINES = "application/x-ndjson"


def create_app(desk: Desk, *, token: str, hosts: frozenset[str] | None, port: int, static: Path = STATIC) -> Starlette:
    return Starlette(
        routes=[*_routes(desk), *_no_others(), Route("/{path:path}", _files(static))],
        middleware=[
            Middleware(Guard, token=token, hosts=hosts, port=port),
            Middleware(GZipMiddleware, minimum_size=2_000, compresslevel=1),
        ],
        exception_handlers={
            NotThereError: _told(404, "go back to the list; what was there may have been deleted"),
            BadQuestionError: _told(400, "mend the address"),
            ChangedError: _told(409, "load the page again; the source has changed since it was indexed"),
            HermesRLError: _told(409, "mend what the message names, then load the page again"),
            HTTPException: _told(404, "go back to the list"),
            # An index that is being made anew at this very moment.
            sqlite3.Error: _told(409, "load the page again"),
            OSError: _told(409, "see that the source is still there, then load the page again"),
        },
    )


def _routes(desk: Desk) -> list[Route]:
    def json(path: str, ask: Callable[[Request], Any]) -> Route:
        def endpoint(request: Request) -> Response:
            return answer(ask(request))

        return Route(path, endpoint, methods=["GET"])

    return [
        json("/api/home", lambda _: desk.overviews.home()),
        json("/api/compare", lambda r: desk.overviews.compare(_text(r, "a") or "", _text(r, "b") or "")),
        json(SOURCE, lambda r: desk.overviews.source(_name(r))),
        json(f"{SOURCE}/curve", lambda r: desk.overviews.curve(_name(r))),
        json(f"{SOURCE}/live", lambda r: desk.overviews.live(_name(r))),
        json(f"{SOURCE}/metrics", lambda r: desk.overviews.metrics(_name(r))),
        json(f"{SOURCE}/groups", lambda r: desk.groups(_name(r), **_paged(r))),
        Route(f"{GROUP}.jsonl", lambda r: _group_line(desk, r)),
        json(GROUP, lambda r: desk.records.group(_name(r), r.path_params["group"])),
        json(f"{SOURCE}/rollouts", lambda r: desk.rollouts(_name(r), _wanted(r), **_paged(r))),
        Route(f"{ROLLOUT}.jsonl", lambda r: _rollout_line(desk, r)),
        json(ROLLOUT, lambda r: desk.records.rollout(*_names(r))),
        json(
            f"{ROLLOUT}/messages",
            lambda r: desk.records.messages(*_names(r), _whole(r, "from", 0), _whole(r, "limit", 50, MOST_MESSAGES, 1)),
        ),
        json(
            f"{ROLLOUT}/text",
            lambda r: desk.records.text(
                *_names(r), _whole(r, "message", 0), _text(r, "part") or "content", _whole(r, "from", 0)
            ),
        ),
        json(
            f"{ROLLOUT}/tokens",
            lambda r: desk.records.tokens(
                *_names(r),
                _whole(r, "sequence", 0),
                _whole(r, "from", 0),
                _whole(r, "limit", 2_048, MOST_TOKENS, 1),
            ),
        ),
    ]


def _rollout_line(desk: Desk, request: Request) -> Response:
    source, rollout = _names(request)
    return Response(
        desk.records.rollout_line(source, rollout), headers=_download(f"rollout-{rollout}"), media_type=LINES
    )


def _group_line(desk: Desk, request: Request) -> Response:
    group = request.path_params["group"]
    pieces = desk.records.group_line(_name(request), group)
    return StreamingResponse(pieces, headers=_download(f"group-{group}"), media_type=LINES)


def _download(name: str) -> dict[str, str]:
    """Names are ids that were found, so digits and dashes."""
    return {"Content-Disposition": f'attachment; filename="{name}.jsonl"'}


def _files(static: Path) -> Callable[[Request], Response]:
    root = static.resolve()

    def endpoint(request: Request) -> Response:
        path = (root / request.path_params["path"].lstrip("/")).resolve() if "\0" not in request.url.path else root
        if not path.is_file() or not path.is_relative_to(root):
            if path.suffix in TYPES and path.suffix != ".html":
                return problem(404, "there is no such file", "load the page again")
            path = root / "index.html"
        if not path.is_file():
            return problem(404, "the front end was not built", "run scripts/front in a checkout, or install the wheel")
        kind = TYPES.get(path.suffix, "application/octet-stream")
        # Their names stay the same from version to version.
        return FileResponse(path, media_type=kind, headers={"Cache-Control": "no-cache"})

    return endpoint


def _no_others() -> list[Route]:
    return [Route(path, _no_such_question) for path in ("/api", "/api/{rest:path}")]


def _no_such_question(_: Request) -> Response:
    return problem(404, "the viewer's API has no such path", "docs/viewer.md lists all")


def _told(status: int, next_step: str) -> Callable[[Request, Exception], Response]:
    def handle(_: Request, error: Exception) -> Response:
        return problem(status, str(error) or type(error).__name__, next_step)

    return handle


def _name(request: Request) -> str:
    return str(request.path_params["source"])


def _names(request: Request) -> tuple[str, str]:
    return _name(request), str(request.path_params["rollout"])


def _wanted(request: Request) -> Wanted:
    return Wanted(
        min_score=_number(request, "min_score"),
        max_score=_number(request, "max_score"),
        stop_reason=_text(request, "stop_reason"),
        failure=_text(request, "failure"),
        tool=_text(request, "tool"),
        text=_text(request, "q"),
    )


def _paged(request: Request) -> dict[str, Any]:
    return {
        "sort": _text(request, "sort") or "n",
        "after": _text(request, "after"),
        "limit": _whole(request, "limit", 50, MOST_ROWS, 1),
    }


def _text(request: Request, name: str) -> str | None:
    """What SQLite and JSON both take, of a sensible length."""
    given = request.query_params.get(name, "")[:1_000].replace("\0", "\ufffd")
    return given.encode("utf-8", "replace").decode() or None


def _whole(request: Request, name: str, default: int, most: int = BEGINNING, least: int = 0) -> int:
    given = request.query_params.get(name)
    if given is None or given == "":
        return default
    if not (given.isascii() and given.isdecimal() and len(given) < 13):
        raise BadQuestionError(f"{name}={given[:40]} is no whole number")
    return max(least, min(int(given), most))


def _number(request: Request, name: str) -> float | None:
    given = request.query_params.get(name)
    if given is None or given == "":
        return None
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise BadQuestionError(f"{name}={given[:40]} is no number")
    return value
