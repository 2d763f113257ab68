"""What people and machines look at: is it alive, is it ready, what waits where, and any group."""

from dataclasses import asdict

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response

from hermes_rl.api.measures import Requests, exposition
from hermes_rl.api.problems import RefusedError
from hermes_rl.api.wire import GROUP_TYPE, Outcome, Queued, QueueStatus
from hermes_rl.store.database.store import Store
from hermes_rl.version import __version__


def watching_routes(store: Store, requests: Requests) -> APIRouter:
    routes = APIRouter(tags=["watching"])

    @routes.get("/health")
    async def health() -> dict[str, str]:
        """The process answers."""
        return {"status": "alive", "version": __version__}

    @routes.get("/ready")
    async def ready() -> dict[str, str]:
        """The database answers too; 503 when it does not."""
        await store.version()
        return {"status": "ready"}

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        """All of it for Prometheus."""
        names = {environment.id: environment.name for environment in await store.environments()}
        return exposition(
            requests,
            await store.status(),
            await store.tallies(),
            names,
            intake=store.intake,
            versions=await store.queued_versions(),
        )

    @routes.get("/v1/status")
    async def status() -> QueueStatus:
        """The queue at this moment, and what became of all that left it."""
        now = await store.status()
        return QueueStatus(
            version=now.version,
            capacity=now.capacity,
            total=Queued(**asdict(now.total)),
            environments={number: Queued(**asdict(backlog)) for number, backlog in now.backlog.items()},
            running=dict(now.running),
            outcomes=[Outcome(**asdict(tally)) for tally in await store.tallies()],
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
            raise RefusedError(404, "unknown_group", f"there is no group {group!r}")
        if found.data is None:
            raise RefusedError(410, "gone", f"the bytes of group {group!r} were let go")
        return Response(found.data, media_type=GROUP_TYPE)

    return routes
