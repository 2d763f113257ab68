"""What environments, trainers and people look at: settings, the step, the queue, the latest group.

Always true: these only read.
"""

import asyncio
from concurrent.futures import Executor
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from hermes_rl.api.atropos.batch_json import scored_data_json
from hermes_rl.api.atropos.looking import Looks
from hermes_rl.api.atropos.standing import whole
from hermes_rl.store.database.store import Store
from hermes_rl.store.parts import BadGroupError

GREETING = {"message": "AtroposLib API", "server": "hermes-rl trajectory API"}
NO_EXAMPLE = "tokens masks scores advantages ref_logprobs generation_params inference_logprobs messages images".split()


def watching(store: Store, looks: Looks, worker: Executor) -> APIRouter:
    routes = APIRouter()

    @routes.get("/")
    async def root() -> dict[str, str]:
        return GREETING

    @routes.get("/status")
    async def status() -> dict[str, int]:
        look = await looks.now()
        return {"current_step": look.step, "queue_size": look.status.total.waiting_groups}

    @routes.get("/info")
    async def info() -> dict[str, int]:
        trainer = await store.trainer()
        if trainer is None:
            return {"batch_size": -1, "max_token_len": -1}
        return {"batch_size": trainer.batch_size, "max_token_len": whole(trainer.settings, "max_token_len", -1)}

    @routes.get("/wandb_info")
    async def wandb_info() -> dict[str, Any]:
        trainer = await store.trainer()
        said = trainer.settings if trainer else {}
        return {"group": said.get("wandb_group"), "project": said.get("wandb_project")}

    @routes.get("/latest_example")
    async def latest_example() -> Response:
        """The group that came last, if an Atropos trainer could have it."""
        text = await _latest(store, worker)
        if text is None:
            return JSONResponse({name: [] for name in NO_EXAMPLE})
        return Response(text, media_type="application/json")

    return routes


async def _latest(store: Store, worker: Executor) -> bytes | None:
    newest = (await store.rollouts(most=1)).rollouts
    stored = await store.group(newest[0].place) if newest else None
    if stored is None or stored.data is None:
        return None
    pieces = scored_data_json(stored.data, stored.environment)
    try:
        return await asyncio.get_running_loop().run_in_executor(worker, b"".join, pieces)
    except BadGroupError:
        return None
