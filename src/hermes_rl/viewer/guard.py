"""Who may look: the token's owner, from this machine's browser, on the viewer's own pages.

Always true: no answer of the API leaves without the token; no other origin can read one; a page runs only scripts of
the viewer's own files. A name that was made to point here (DNS rebinding) is refused by its name.
"""

import hmac
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_rl import jsontext

POLICY = (
    "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'; "
    "img-src 'self' data:"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
OWN = {"same-origin", "none"}
TELL = "see what `hermes-rl view` has printed, and please report it"
API = "/api"


class Guard:
    """ASGI middleware. `hosts` are the names it may be called by, None for any; the cookie is named by the port."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: frozenset[str] | None, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = hosts
        # Cookies know no ports: two viewers on one machine would take each other's.
        self._cookie = f"hermes_rl_view_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if str(scope["path"]).startswith(API):
                    headers["Cache-Control"] = "no-store"
            await send(message)

        refusal = self._refusal(scope) or self._welcome(scope)
        try:
            await (refusal or self._app)(scope, receive, sending)
        except Exception:
            # The server's own answer to it would come from outside of here, without the headers.
            if not begun:
                await problem(500, "the viewer has a bug here", TELL)(scope, receive, sending)
            raise

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").rpartition(":")
        name = (host[0] if host[2].isdecimal() else headers.get("host", "")).lower()
        if self._hosts is not None and name not in self._hosts:
            return problem(
                400, "this viewer is not called by that name", "open the address that `hermes-rl view` printed"
            )
        if scope["method"] not in {"GET", "HEAD"}:
            return problem(405, "the viewer only shows", "ask with GET")
        if not str(scope["path"]).startswith(API):
            return None
        origin = headers.get("origin")
        if headers.get("sec-fetch-site", "none") not in OWN or (origin and origin != f"http://{headers.get('host')}"):
            return problem(403, "another site asked", "open the address that `hermes-rl view` printed")
        if not self._has_token(headers):
            return problem(401, "the token is missing or another one", "open the address that `hermes-rl view` printed")
        return None

    def _welcome(self, scope: Scope) -> Response | None:
        """The link that was printed: its token becomes a cookie, and leaves the address bar."""
        if str(scope["path"]).startswith(API):
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        if given is None:
            return None
        if not self._same(given[0]):
            return problem(401, "the token in the address is another one", "open the address that was printed last")
        response = RedirectResponse("/" + str(scope["path"]).lstrip("/\\"), status_code=303)
        response.set_cookie(self._cookie, given[0], httponly=True, samesite="strict", path="/")
        return response

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._same(given.strip())
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return cookie is not None and self._same(cookie.value)

    def _same(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token)


def problem(status: int, message: str, next_step: str) -> Response:
    return answer({"error": {"message": message, "next_step": next_step}}, status)


def answer(value: Any, status: int = 200) -> Response:
    return Response(jsontext.dumps(value), status, media_type="application/json")
