"""The API as one application over one store: its own routes, Atropos' beside them, and the door before both.

Always true: between two requests the application holds nothing that the store does not, so any number of them over one
database are alike.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from fastapi import FastAPI
from starlette.middleware import Middleware

from hermes_rl.api.atropos.routes import atropos_routes
from hermes_rl.api.door import Bodies, Door, SmallBodies
from hermes_rl.api.fullness import Fullness
from hermes_rl.api.measures import Measured, Requests
from hermes_rl.api.problems import add_handlers
from hermes_rl.api.routes.batches import batch_routes
from hermes_rl.api.routes.environments import environment_routes
from hermes_rl.api.routes.groups import add_group_route
from hermes_rl.api.routes.trainers import trainer_routes
from hermes_rl.api.routes.watching import watching_routes
from hermes_rl.api.settings import ApiSettings
from hermes_rl.api.traced import traced
from hermes_rl.api.wire import Problem
from hermes_rl.store.database.errors import StoreError
from hermes_rl.store.database.groups import Retention
from hermes_rl.store.database.store import Store
from hermes_rl.version import __version__

__all__ = ["ApiSettings", "create_app"]

# The last words of the paths whose routes bound their bodies themselves.
LARGE = frozenset({"groups", "scored_data", "scored_data_list"})
DISCARD_EVERY = 60.0


def create_app(store: Store, settings: ApiSettings) -> FastAPI:
    """The API over an open store, which outlives it."""
    requests = Requests()
    fullness = Fullness(store, settings)
    bodies = Bodies(settings)

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
        # Of pages that would load scripts from elsewhere there is none.
        docs_url=None,
        redoc_url=None,
        responses={
            "4XX": {"model": Problem, "description": "Refused, and why."},
            "5XX": {"model": Problem, "description": "To be tried again later."},
        },
        middleware=[
            *traced(),
            Middleware(Measured, requests),
            Middleware(Door, settings),
            Middleware(SmallBodies, LARGE),
        ],
    )
    add_handlers(app)
    add_group_route(app, store, bodies, fullness)
    app.include_router(environment_routes(store, settings))
    app.include_router(trainer_routes(store))
    app.include_router(batch_routes(store, fullness))
    app.include_router(watching_routes(store, requests))
    app.include_router(atropos_routes(store, settings, bodies, fullness))
    return app


async def _discard(store: Store, retention: Retention) -> None:
    while True:
        # Whoever posts is told of a store that fails; this is tried again anyway.
        with suppress(StoreError):
            await store.discard(retention)
        await asyncio.sleep(DISCARD_EVERY)
