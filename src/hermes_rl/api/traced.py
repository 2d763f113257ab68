"""Requests as spans, inside the span of whoever asked.

Always true: a request whose caller does not trace makes no span, so probes and strangers add nothing to a trace.
"""

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_rl.tracing.span import Keeping, current_scope, remote_span

HEADER = b"traceparent"


def traced() -> list[Middleware]:
    """The middleware of an application that is made where tracing is on; elsewhere there is none."""
    scope = current_scope()
    return [] if scope is None else [Middleware(Traced, scope.keeping)]


class Traced:
    """ASGI middleware; the outermost, so that the time it tells is what the caller waited for."""

    def __init__(self, app: ASGIApp, keeping: Keeping) -> None:
        self._app, self._keeping = app, keeping

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        header = next((value for name, value in scope.get("headers", ()) if name == HEADER), None)
        if scope["type"] != "http" or header is None:
            await self._app(scope, receive, send)
            return
        told = header.decode("latin-1")
        with remote_span(self._keeping, told, "request", {"method": scope["method"]}) as span:

            async def noted(message: Message) -> None:
                if span.on and message["type"] == "http.response.start":
                    span.note(status=message["status"])
                    if message["status"] >= 500:
                        span.error = str(message["status"])
                await send(message)

            try:
                await self._app(scope, receive, noted)
            finally:
                # By the route and never by the path, as in the metrics.
                span.note(route=getattr(scope.get("route"), "path_format", None))
