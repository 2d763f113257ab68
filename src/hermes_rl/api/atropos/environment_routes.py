"""Routes for Atropos environments: register, queue status, posting groups.

A status request counts as a heartbeat. An environment keeps its number across restarts of the API.
"""

import uuid
from typing import Any

from fastapi import APIRouter, Request

from hermes_rl.api.atropos.bodies import EnvIdentifier, RegisterEnv, body_schema, read_body
from hermes_rl.api.atropos.ingest import AtroposIngest, unknown_env_as_404
from hermes_rl.api.atropos.queue_view import LONGEST, environment_status, registration_response
from hermes_rl.api.atropos.scored_data import read_scored_data, read_scored_data_list
from hermes_rl.api.atropos.status_cache import StatusCache, live_environments
from hermes_rl.store.database.store import Store

# atroposlib sends null by default.
DEFAULT_NAME = "environment"
LIST_OF_LISTS = {"type": "array", "items": {"type": "array"}}
SCORED_DATA = {
    "type": "object",
    "required": ["tokens", "masks", "scores"],
    "properties": {
        "tokens": LIST_OF_LISTS,
        "masks": LIST_OF_LISTS,
        "scores": {"type": "array"},
        "env_id": {"type": ["integer", "null"]},
    },
}


def atropos_environment_routes(store: Store, status_cache: StatusCache, ingest: AtroposIngest) -> APIRouter:
    routes = APIRouter()

    @routes.post("/register-env", openapi_extra=body_schema(RegisterEnv.model_json_schema()))
    async def register_env(request: Request) -> dict[str, Any]:
        """Register an environment; it is asked to wait while there is no trainer."""
        body = await read_body(request, RegisterEnv)
        view = await status_cache.read()
        if view.trainer is None:
            return {"status": "wait for trainer to start"}
        environment = await store.register_environment(
            body.desired_name or DEFAULT_NAME,
            # Atropos environments identify themselves only by name, so every registration is a new instance.
            instance=uuid.uuid4().hex,
            group_size=body.group_size,
            weight=body.weight,
            minimum=body.min_batch_allocation or 0.0,
            settings={LONGEST: body.max_token_length},
        )
        return registration_response(environment, await store.environments(), view.trainer, view.step)

    @routes.post("/disconnect-env", openapi_extra=body_schema(EnvIdentifier.model_json_schema()))
    async def disconnect_env(request: Request) -> dict[str, Any]:
        number = (await read_body(request, EnvIdentifier)).env_id
        if all(environment.id != number for environment in await store.environments()):
            return {"status": "failure", "error": f"no environment {number} is registered"}
        await store.disconnect(number)
        status_cache.forget(number)
        return {"status": "success"}

    @routes.get("/status-env", openapi_extra=body_schema(EnvIdentifier.model_json_schema()))
    async def status_env(request: Request) -> dict[str, Any]:
        """Queue status for the environment named in the body; counts as its heartbeat."""
        number = (await read_body(request, EnvIdentifier)).env_id
        with unknown_env_as_404():
            await status_cache.heartbeat(number)
        view = await status_cache.recent()
        asking = next((row for row in view.environments if row.id == number), None)
        if asking is None:
            view = await status_cache.read()
            asking = next(row for row in view.environments if row.id == number)
        return environment_status(view, asking, live_environments(view))

    @routes.post("/scored_data", openapi_extra=body_schema(SCORED_DATA))
    async def scored_data(request: Request) -> dict[str, Any]:
        """Post one group, optionally gzipped."""
        await ingest.take(request, lambda text: [read_scored_data(text)])
        return {"status": "received"}

    @routes.post("/scored_data_list", openapi_extra=body_schema({"type": "array", "items": SCORED_DATA}))
    async def scored_data_list(request: Request) -> dict[str, Any]:
        """Post several groups; all are refused if one is invalid."""
        return {"status": "received", "groups_processed": await ingest.take(request, read_scored_data_list)}

    return routes
