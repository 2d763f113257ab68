"""The inference server, in the trainer's process and event loop.

Always true: without a token it listens on loopback only.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from fastapi import FastAPI
from starlette.middleware import Middleware

from hermes_rl.http.auth import AuthMiddleware
from hermes_rl.http.bodies import BodyLimit
from hermes_rl.http.request_metrics import MetricsMiddleware, Requests
from hermes_rl.http.server import allowed_hosts, listen, serve_in_background
from hermes_rl.http.tracing import tracing_middleware
from hermes_rl.training.inference_server.config import Formats, InferenceSettings
from hermes_rl.training.inference_server.errors import add_handlers, auth_error_response
from hermes_rl.training.inference_server.metrics import TokenCounts
from hermes_rl.training.inference_server.routes.chat import chat_routes
from hermes_rl.training.inference_server.routes.completions import completion_routes
from hermes_rl.training.inference_server.routes.health import health_routes
from hermes_rl.training.inference_server.routes.token_routes import logprob_routes, sglang_routes, vllm_routes
from hermes_rl.training.inference_server.sampling import CompletionSampler
from hermes_rl.training.policy import Policy
from hermes_rl.training.request_batching import CoalescingPolicy
from hermes_rl.version import __version__

# For health checks, without authentication.
OPEN = frozenset({"/health", "/ping"})


def create_app(policy: Policy, formats: Formats, settings: InferenceSettings) -> FastAPI:
    requests, counts = Requests(), TokenCounts()
    coalescing = CoalescingPolicy(policy, settings.window)
    sampler = CompletionSampler(coalescing, settings, counts)
    app = FastAPI(
        title="hermes-rl inference",
        version=__version__,
        # These pages would load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        middleware=[
            *tracing_middleware(),
            Middleware(MetricsMiddleware, requests),
            Middleware(AuthMiddleware, settings, auth_error_response, OPEN),
            Middleware(BodyLimit, frozenset(), settings.max_body),
        ],
    )
    add_handlers(app)
    for routes in (chat_routes, completion_routes, vllm_routes, sglang_routes, logprob_routes):
        app.include_router(routes(sampler, formats))
    app.include_router(health_routes(coalescing, settings, requests, counts))
    return app


@asynccontextmanager
async def inference_server(
    policy: Policy, formats: Formats, settings: InferenceSettings, *, host: str = "127.0.0.1", port: int = 0
) -> AsyncIterator[str]:
    """Serve the policy at the yielded URL; requests in flight at exit are still answered."""
    names = allowed_hosts(host, settings.token, "--tinker.inference_token")
    app = create_app(policy, formats, replace(settings, hosts=names))
    with listen(host, port) as listening:
        async with serve_in_background(app, listening) as url:
            yield url
