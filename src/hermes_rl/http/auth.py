"""Authentication: a bearer token, or without one only requests that a foreign web page cannot make."""

import hmac
import secrets
from collections.abc import Callable, Mapping
from typing import Protocol

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes_rl.core.secrets import resolve_key
from hermes_rl.http.errors import Problem, error_response
from hermes_rl.http.server import allowed_hosts

# Probes, which reveal nothing of the data.
OPEN_PATHS = frozenset({"/health", "/ready"})


class AccessRule(Protocol):
    """`hosts` are the accepted Host headers of a server without a token; None for any."""

    @property
    def token(self) -> str | None: ...

    @property
    def hosts(self) -> frozenset[str] | None: ...


def require_token(token: str | None, host: str, flag: str = "--token") -> str:
    """The token of a server that never goes without one: the referenced one, else a new one to print.

    ConfigError when none is given and other machines could reach the server.
    """
    allowed_hosts(host, token or None, flag)
    return resolve_key(token, flag) if token else secrets.token_urlsafe(32)


class AuthMiddleware:
    """ASGI middleware that passes the requests that the rule allows; `refuse` builds the response to all others."""

    def __init__(
        self,
        app: ASGIApp,
        rule: AccessRule,
        refuse: Callable[[int, Problem, Mapping[str, str] | None], ASGIApp] = error_response,
        always_open: frozenset[str] = OPEN_PATHS,
    ) -> None:
        self._app = app
        self._rule = rule
        self._refuse = refuse
        self._always_open = always_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_open = scope["path"] in self._always_open
        refusal = None if is_open else check_access(Headers(scope=scope), self._rule)
        if refusal is None:
            await self._app(scope, receive, send)
        else:
            status, problem = refusal
            headers = {"WWW-Authenticate": "Bearer"} if status == 401 else None
            await self._refuse(status, problem, headers)(scope, receive, send)


def check_access(headers: Headers, rule: AccessRule) -> tuple[int, Problem] | None:
    """Why a request is refused; None when it is allowed."""
    if rule.token is not None:
        scheme, _, token = headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or not hmac.compare_digest(token.strip().encode(), rule.token.encode()):
            return 401, Problem(kind="unauthorised", message="send the API's token as `Authorization: Bearer TOKEN`")
        return None
    if headers.get("sec-fetch-site", "none") not in {"none", "same-origin"} or "origin" in headers:
        return 403, Problem(kind="forbidden", message="an API without a token refuses requests from other sites")
    if rule.hosts is not None and _host(headers.get("host", "")) not in rule.hosts:
        names = ", ".join(sorted(rule.hosts))
        return 403, Problem(kind="forbidden", message=f"send a Host of {names}, or start the server with a token")
    return None


def _host(value: str) -> str:
    """The host without the port; an IPv6 address keeps its brackets."""
    name = value[: value.find("]") + 1] if value.startswith("[") else value.partition(":")[0]
    return name.lower()
