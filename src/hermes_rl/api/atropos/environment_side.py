"""What Atropos' environments ask: to be known, how the queue stands, and to hand in groups.

Always true: an environment that asked how the queue stands lives; it keeps its number over restarts of the API, so that
it can go on where it was.
"""

import uuid
from typing import Any

from fastapi import APIRouter, Request

from hermes_rl.api.atropos.bodies import EnvIdentifier, RegisterEnv, body_schema, read_small
from hermes_rl.api.atropos.intake import Intake, naming_env_id
from hermes_rl.api.atropos.looking import Looks, living
from hermes_rl.api.atropos.scored_data import read_scored_data, read_scored_data_list
from hermes_rl.api.atropos.standing import LONGEST, told_environment, told_registration
from hermes_rl.store.database.store import Store

# What atroposlib sends by default is null.
NAMELESS = "environment"
LISTS = {"type": "array", "items": {"type": "array"}}
SCORED_DATA = {
    "type": "object",
    "required": ["tokens", "masks", "scores"],
    "properties": {
        "tokens": LISTS,
        "masks": LISTS,
        "scores": {"type": "array"},
        "env_id": {"type": ["integer", "null"]},
    },
}


def environment_side(store: Store, looks: Looks, intake: Intake) -> APIRouter:
    routes = APIRouter()

    @routes.post("/register-env", openapi_extra=body_schema(RegisterEnv.model_json_schema()))
    async def register_env(request: Request) -> dict[str, Any]:
        """Make an environment known; it is told to wait as long as there is no trainer."""
        wish = await read_small(request, RegisterEnv)
        look = await looks.now()
        if look.trainer is None:
            return {"status": "wait for trainer to start"}
        environment = await store.register_environment(
            wish.desired_name or NAMELESS,
            # Each that asks is one more, as its name is all that Atropos' environments say of themselves.
            instance=uuid.uuid4().hex,
            group_size=wish.group_size,
            weight=wish.weight,
            minimum=wish.min_batch_allocation or 0.0,
            settings={LONGEST: wish.max_token_length},
        )
        return told_registration(environment, await store.environments(), look.trainer, look.step)

    @routes.post("/disconnect-env", openapi_extra=body_schema(EnvIdentifier.model_json_schema()))
    async def disconnect_env(request: Request) -> dict[str, Any]:
        number = (await read_small(request, EnvIdentifier)).env_id
        if all(one.id != number for one in await store.environments()):
            return {"status": "failure", "error": f"no environment {number} is registered"}
        await store.disconnect(number)
        looks.unhear(number)
        return {"status": "success"}

    @routes.get("/status-env", openapi_extra=body_schema(EnvIdentifier.model_json_schema()))
    async def status_env(request: Request) -> dict[str, Any]:
        """How the queue stands for one environment, which the body names; it counts as a sign of life."""
        number = (await read_small(request, EnvIdentifier)).env_id
        with naming_env_id():
            await looks.hear(number)
        look = await looks.recent()
        asking = next((one for one in look.environments if one.id == number), None)
        if asking is None:
            look = await looks.now()
            asking = next(one for one in look.environments if one.id == number)
        return told_environment(look, asking, living(look))

    @routes.post("/scored_data", openapi_extra=body_schema(SCORED_DATA))
    async def scored_data(request: Request) -> dict[str, Any]:
        """Hand in one group, packed with gzip or not."""
        await intake.take(request, lambda text: [read_scored_data(text)])
        return {"status": "received"}

    @routes.post("/scored_data_list", openapi_extra=body_schema({"type": "array", "items": SCORED_DATA}))
    async def scored_data_list(request: Request) -> dict[str, Any]:
        """Hand in several; all are refused when one is bad."""
        return {"status": "received", "groups_processed": await intake.take(request, read_scored_data_list)}

    return routes
