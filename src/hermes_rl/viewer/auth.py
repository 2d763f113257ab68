"""Authentication of the viewer: a token, same origin only.

Always true: the API answers only with the token; no other origin can read a response; a page runs only the viewer's own
scripts. DNS rebinding is refused by the Host header.
"""

import hmac
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_rl.core import fast_json

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
OWN_SITES = {"same-origin", "none"}
REPORT_BUG = "see the output of `hermes-rl view`, and please report it"
API = "/api"


class ViewerAuth:
    """ASGI middleware. `hosts` are the accepted Host headers, None for any; the cookie's name holds the port."""

    def __init__(self, app: ASGIApp, *, token: str, hosts: frozenset[str] | None, port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = hosts
        # Cookies ignore ports: two viewers on one machine would share one.
        self._cookie = f"hermes_rl_view_{port}"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return

        begun = False

        async def send_with_headers(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if str(scope["path"]).startswith(API):
                    headers["Cache-Control"] = "no-store"
            await send(message)

        refusal = self._refusal(scope) or self._login(scope)
        try:
            await (refusal or self._app)(scope, receive, send_with_headers)
        except Exception:
            # The server's own error response would bypass this middleware and lack the headers.
            if not begun:
                await error_response(500, "internal error in the viewer", REPORT_BUG)(scope, receive, send_with_headers)
            raise

    def _refusal(self, scope: Scope) -> Response | None:
        headers = Headers(scope=scope)
        host = headers.get("host", "").rpartition(":")
        name = (host[0] if host[2].isdecimal() else headers.get("host", "")).lower()
        if self._hosts is not None and name not in self._hosts:
            return error_response(
                400, "this host name is not allowed", "open the address that `hermes-rl view` printed"
            )
        if scope["method"] not in {"GET", "HEAD"}:
            return error_response(405, "the viewer is read-only", "use GET")
        if not str(scope["path"]).startswith(API):
            return None
        origin = headers.get("origin")
        if headers.get("sec-fetch-site", "none") not in OWN_SITES or (
            origin and origin != f"http://{headers.get('host')}"
        ):
            return error_response(
                403, "requests from other sites are refused", "open the address that `hermes-rl view` printed"
            )
        if not self._has_token(headers):
            return error_response(
                401, "the token is missing or wrong", "open the address that `hermes-rl view` printed"
            )
        return None

    def _login(self, scope: Scope) -> Response | None:
        """Turn the token of the printed link into a cookie, and remove it from the address bar."""
        if str(scope["path"]).startswith(API):
            return None
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token")
        if given is None:
            return None
        if not self._token_matches(given[0]):
            return error_response(401, "the token in the address is wrong", "open the newest printed address")
        response = RedirectResponse("/" + str(scope["path"]).lstrip("/\\"), status_code=303)
        response.set_cookie(self._cookie, given[0], httponly=True, samesite="strict", path="/")
        return response

    def _has_token(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._token_matches(given.strip())
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self._cookie)
        except CookieError:
            return False
        return cookie is not None and self._token_matches(cookie.value)

    def _token_matches(self, given: str) -> bool:
        return hmac.compare_digest(given.encode("utf-8", "replace"), self._token)


def error_response(status: int, message: str, next_step: str) -> Response:
    return json_response({"error": {"message": message, "next_step": next_step}}, status)


def json_response(value: Any, status: int = 200) -> Response:
    return Response(fast_json.dumps(value), status, media_type="application/json")
