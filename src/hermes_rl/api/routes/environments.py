"""What environments ask: to be known, to begin work, to leave. Their groups come in by groups.py."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query

from hermes_rl.api.routes.numbers import Number
from hermes_rl.api.settings import ApiSettings
from hermes_rl.api.wire import (
    LARGEST,
    Draws,
    EnvironmentRegistration,
    RegisteredEnvironment,
    WorkGrant,
    WorkRequest,
)
from hermes_rl.store.database.members import Environment
from hermes_rl.store.database.store import Store


def environment_routes(store: Store, settings: ApiSettings) -> APIRouter:
    routes = APIRouter(prefix="/v1/environments", tags=["environments"])

    @routes.post("")
    async def register_environment(registration: EnvironmentRegistration) -> RegisteredEnvironment:
        """Make an environment known. The same name and instance keep their number and their place in the dataset."""
        return _told(await store.register_environment(**dict(registration)))

    @routes.get("")
    async def environments() -> list[RegisteredEnvironment]:
        """All that ever registered."""
        return [_told(environment) for environment in await store.environments()]

    @routes.post("/{environment:int}/work")
    async def work(environment: Number, wish: WorkRequest) -> WorkGrant:
        """Say what runs, and ask how many rollouts may begin. What is granted counts as running."""
        admission = await store.admit(
            environment, running=wish.running, wanted=wish.wanted, cursor=wish.cursor, limit=settings.max_queued
        )
        return WorkGrant(**asdict(admission))

    @routes.get("/{environment:int}/draws")
    async def finished_draws(environment: Number, since: Annotated[int, Query(ge=0, le=LARGEST)] = 0) -> Draws:
        """The draws from `since` on whose groups are here: what a resumed environment leaves out."""
        return Draws(draws=await store.finished_draws(environment, since))

    @routes.post("/{environment:int}/leave", status_code=204)
    async def leave(environment: Number) -> None:
        """Say goodbye: no batch waits for it. It may register again."""
        await store.disconnect(environment)

    return routes


def _told(environment: Environment) -> RegisteredEnvironment:
    said = asdict(environment)
    del said["settings"]
    return RegisteredEnvironment(**said)
