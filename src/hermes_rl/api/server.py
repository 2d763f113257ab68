"""The trajectory API as one application over one store, and as a process.

The application holds no state between requests that the store does not, so any number of them can share a database.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace

from fastapi import FastAPI
from starlette.middleware import Middleware

from hermes_rl.api.atropos.routes import atropos_routes
from hermes_rl.api.backpressure import Backpressure
from hermes_rl.api.config import ApiSettings
from hermes_rl.api.errors import add_error_handlers
from hermes_rl.api.routes.batches import batch_routes
from hermes_rl.api.routes.environments import environment_routes
from hermes_rl.api.routes.groups import add_group_route
from hermes_rl.api.routes.monitoring import health_routes
from hermes_rl.api.routes.trainers import trainer_routes
from hermes_rl.http.auth import AuthMiddleware
from hermes_rl.http.bodies import BodyLimit, BodyReader
from hermes_rl.http.errors import Problem
from hermes_rl.http.request_metrics import MetricsMiddleware, Requests
from hermes_rl.http.server import allowed_hosts, listen, serve
from hermes_rl.http.tracing import tracing_middleware
from hermes_rl.store.database.errors import StoreError
from hermes_rl.store.database.groups import Retention
from hermes_rl.store.database.store import Store, open_store
from hermes_rl.version import __version__

__all__ = ["ApiSettings", "create_app"]

# Last path segments of the routes that limit their bodies themselves.
UNLIMITED_PATHS = frozenset({"groups", "scored_data", "scored_data_list"})
DISCARD_EVERY = 60.0


def create_app(store: Store, settings: ApiSettings) -> FastAPI:
    """Build the API over an open store; the caller closes the store."""
    requests = Requests()
    backpressure = Backpressure(store, settings)
    bodies = BodyReader(settings)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if settings.retention is None:
            yield
            return
        discarding = asyncio.create_task(_discard(store, settings.retention))
        try:
            yield
        finally:
            discarding.cancel()
            await asyncio.wait([discarding])

    app = FastAPI(
        title="hermes-rl trajectory API",
        version=__version__,
        lifespan=lifespan,
        # These pages would load scripts from other hosts.
        docs_url=None,
        redoc_url=None,
        responses={
            "4XX": {"model": Problem, "description": "The request was refused."},
            "5XX": {"model": Problem, "description": "Retry later."},
        },
        middleware=[
            *tracing_middleware(),
            Middleware(MetricsMiddleware, requests),
            Middleware(AuthMiddleware, settings),
            Middleware(BodyLimit, UNLIMITED_PATHS),
        ],
    )
    add_error_handlers(app)
    add_group_route(app, store, bodies, backpressure)
    app.include_router(environment_routes(store, settings))
    app.include_router(trainer_routes(store))
    app.include_router(batch_routes(store, backpressure))
    app.include_router(health_routes(store, requests))
    app.include_router(atropos_routes(store, settings, bodies, backpressure))
    return app


async def _discard(store: Store, retention: Retention) -> None:
    while True:
        # Posts report a failing store to their callers; this retries anyway.
        with suppress(StoreError):
            await store.discard(retention)
        await asyncio.sleep(DISCARD_EVERY)


def restrict_hosts(settings: ApiSettings, host: str) -> ApiSettings:
    """Limit the Host names of a server without a token; ConfigError if other machines could reach it."""
    return settings if settings.token is not None else replace(settings, hosts=allowed_hosts(host, None))


async def run_api(address: str, settings: ApiSettings, *, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Serve the store at this address; `ready` is called with the URL."""
    settings = restrict_hosts(settings, host)
    with listen(host, port) as listening:
        async with open_store(address) as store:
            await serve(create_app(store, settings), listening, ready=ready)
