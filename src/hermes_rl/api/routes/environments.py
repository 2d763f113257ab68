"""Routes for environments: register, request work, leave. Groups are posted in groups.py."""

from dataclasses import asdict
from typing import Annotated

from fastapi import APIRouter, Query

from hermes_rl.api.config import ApiSettings
from hermes_rl.api.routes.path_params import Number
from hermes_rl.api.schemas import (
    MAX_SAFE_INTEGER,
    Draws,
    EnvironmentRegistration,
    GroupScores,
    ItemScores,
    RegisteredEnvironment,
    WorkGrant,
    WorkRequest,
)
from hermes_rl.store.database.registrations import EnvironmentRow
from hermes_rl.store.database.store import Store


def environment_routes(store: Store, settings: ApiSettings) -> APIRouter:
    routes = APIRouter(prefix="/v1/environments", tags=["environments"])

    @routes.post("")
    async def register_environment(registration: EnvironmentRegistration) -> RegisteredEnvironment:
        """Register an environment. The same name and instance keep their number and cursor."""
        return _registered(await store.register_environment(**dict(registration)))

    @routes.get("")
    async def environments() -> list[RegisteredEnvironment]:
        """List all environments that ever registered."""
        return [_registered(environment) for environment in await store.environments()]

    @routes.post("/{environment:int}/work")
    async def work(environment: Number, request: WorkRequest) -> WorkGrant:
        """Report running rollouts, and request more. Granted rollouts count as running."""
        admission = await store.admit(
            environment,
            running=request.running,
            wanted=request.wanted,
            cursor=request.cursor,
            limit=settings.max_queued,
        )
        return WorkGrant(**asdict(admission))

    @routes.get("/{environment:int}/draws")
    async def finished_draws(environment: Number, since: Annotated[int, Query(ge=0, le=MAX_SAFE_INTEGER)] = 0) -> Draws:
        """Draws from `since` on whose groups are stored; a resumed environment skips them."""
        return Draws(draws=await store.finished_draws(environment, since))

    @routes.get("/{environment:int}/scores")
    async def group_scores(
        environment: Number, after: Annotated[int, Query(ge=0, le=MAX_SAFE_INTEGER)] = 0
    ) -> GroupScores:
        """Scores of up to a thousand groups behind the place `after`, from the environment and its replicas."""
        found = await store.group_scores(environment, after=after)
        return GroupScores(
            groups=[ItemScores(place=one.place, item_id=one.item_id, scores=list(one.scores)) for one in found]
        )

    @routes.post("/{environment:int}/leave", status_code=204)
    async def leave(environment: Number) -> None:
        """Disconnect an environment: no batch waits for it any more. It may register again."""
        await store.disconnect(environment)

    return routes


def _registered(environment: EnvironmentRow) -> RegisteredEnvironment:
    fields = asdict(environment)
    del fields["settings"]
    return RegisteredEnvironment(**fields)
