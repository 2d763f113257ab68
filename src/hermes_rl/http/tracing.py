"""Records requests as spans, as children of the caller's span.

Always true: a request without a `traceparent` header creates no span, so probes add nothing to a trace.
"""

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes_rl.tracing.span import SpanSink, current_trace, remote_span

HEADER = b"traceparent"


def tracing_middleware() -> list[Middleware]:
    """The tracing middleware; none when tracing is off."""
    trace = current_trace()
    return [] if trace is None else [Middleware(TracingMiddleware, trace.sink)]


class TracingMiddleware:
    """ASGI middleware. Make it the outermost, so that the span covers the caller's whole wait."""

    def __init__(self, app: ASGIApp, sink: SpanSink) -> None:
        self._app, self._sink = app, sink

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        header = next((value for name, value in scope.get("headers", ()) if name == HEADER), None)
        if scope["type"] != "http" or header is None:
            await self._app(scope, receive, send)
            return
        traceparent = header.decode("latin-1")
        with remote_span(self._sink, traceparent, "request", {"method": scope["method"]}) as span:

            async def recording_send(message: Message) -> None:
                if span.on and message["type"] == "http.response.start":
                    span.set_attributes(status=message["status"])
                    if message["status"] >= 500:
                        span.error = str(message["status"])
                await send(message)

            try:
                await self._app(scope, receive, recording_send)
            finally:
                # The route, never the path, as in the metrics.
                span.set_attributes(route=getattr(scope.get("route"), "path_format", None))
