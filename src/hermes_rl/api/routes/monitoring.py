"""Routes for monitoring: health, readiness, metrics, queue status, and single groups."""

import asyncio
from dataclasses import asdict

from fastapi import APIRouter
from fastapi.responses import Response

from hermes_rl.api.metrics import render_metrics
from hermes_rl.api.schemas import GROUP_TYPE, OutcomeCount, Queued, QueueStatus
from hermes_rl.http.errors import RefusedError
from hermes_rl.http.prometheus import MetricsResponse
from hermes_rl.http.request_metrics import Requests
from hermes_rl.store.database.errors import StoreUnavailableError
from hermes_rl.store.database.store import Store
from hermes_rl.version import __version__

READY_SECONDS = 4.0


def health_routes(store: Store, requests: Requests) -> APIRouter:
    routes = APIRouter(tags=["watching"])

    @routes.get("/health")
    async def health() -> dict[str, str]:
        """Answers while the process runs."""
        return {"status": "alive", "version": __version__}

    @routes.get("/ready")
    async def ready() -> dict[str, str]:
        """Answers while the database does; 503 otherwise, and when it takes too long."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                await store.version()
        except TimeoutError:
            raise StoreUnavailableError(
                f"the database did not answer within {READY_SECONDS:g} s; check that it runs and is not overloaded"
            ) from None
        return {"status": "ready"}

    @routes.get("/metrics", response_class=MetricsResponse)
    async def metrics() -> str:
        """Prometheus metrics."""
        names = {environment.id: environment.name for environment in await store.environments()}
        return render_metrics(
            requests,
            await store.status(),
            await store.tallies(),
            names,
            intake=store.ingest_stats,
            versions=await store.queued_versions(),
        )

    @routes.get("/v1/status")
    async def status() -> QueueStatus:
        """The current queue, and the outcomes of groups that left it."""
        now = await store.status()
        return QueueStatus(
            version=now.version,
            capacity=now.capacity,
            total=Queued(**asdict(now.total)),
            environments={number: Queued(**asdict(backlog)) for number, backlog in now.backlog.items()},
            running=dict(now.running),
            outcomes=[OutcomeCount(**asdict(tally)) for tally in await store.tallies()],
        )

    @routes.get(
        "/v1/groups/{group}",
        response_class=Response,
        responses={200: {"content": {GROUP_TYPE: {"schema": {"type": "string", "format": "binary"}}}}},
    )
    async def find_group(group: str) -> Response:
        """A group by its id, in its binary form."""
        found = await store.group(group)
        if found is None:
            raise RefusedError(404, "unknown_group", f"no group {group!r}")
        if found.data is None:
            raise RefusedError(410, "gone", f"the data of group {group!r} was deleted by the retention policy")
        return Response(found.data, media_type=GROUP_TYPE)

    return routes
