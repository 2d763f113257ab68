"""The router of all Atropos routes, mounted at the root, and those routes that only read."""

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse

from hermes_rl.api.atropos.batch_json import scored_data_json
from hermes_rl.api.atropos.environment_routes import atropos_environment_routes
from hermes_rl.api.atropos.ingest import LARGEST, AtroposIngest
from hermes_rl.api.atropos.queue_view import int_setting
from hermes_rl.api.atropos.status_cache import StatusCache
from hermes_rl.api.atropos.trainer_routes import atropos_trainer_routes
from hermes_rl.api.backpressure import Backpressure
from hermes_rl.api.config import ApiSettings
from hermes_rl.http.bodies import BodyReader
from hermes_rl.store.container import BadGroupError
from hermes_rl.store.database.store import Store

GREETING = {"message": "AtroposLib API", "server": "hermes-rl trajectory API"}
NO_EXAMPLE = "tokens masks scores advantages ref_logprobs generation_params inference_logprobs messages images".split()


def info_routes(store: Store, status_cache: StatusCache, worker: Executor) -> APIRouter:
    routes = APIRouter()

    @routes.get("/")
    async def root() -> dict[str, str]:
        return GREETING

    @routes.get("/status")
    async def status() -> dict[str, int]:
        view = await status_cache.read()
        return {"current_step": view.step, "queue_size": view.status.total.waiting_groups}

    @routes.get("/info")
    async def info() -> dict[str, int]:
        trainer = await store.trainer()
        if trainer is None:
            return {"batch_size": -1, "max_token_len": -1}
        return {"batch_size": trainer.batch_size, "max_token_len": int_setting(trainer.settings, "max_token_len", -1)}

    @routes.get("/wandb_info")
    async def wandb_info() -> dict[str, Any]:
        trainer = await store.trainer()
        settings = trainer.settings if trainer else {}
        return {"group": settings.get("wandb_group"), "project": settings.get("wandb_project")}

    @routes.get("/latest_example")
    async def latest_example() -> Response:
        """The newest group, if an Atropos trainer could read it."""
        text = await _latest(store, worker)
        if text is None:
            return JSONResponse({name: [] for name in NO_EXAMPLE})
        return Response(text, media_type="application/json")

    return routes


async def _latest(store: Store, worker: Executor) -> bytes | None:
    newest = (await store.rollouts(limit=1)).rollouts
    stored = await store.group(newest[0].place) if newest else None
    if stored is None or stored.data is None:
        return None
    pieces = scored_data_json(stored.data, stored.environment)
    try:
        return await asyncio.get_running_loop().run_in_executor(worker, b"".join, pieces)
    except BadGroupError:
        return None


def atropos_routes(store: Store, settings: ApiSettings, bodies: BodyReader, backpressure: Backpressure) -> APIRouter:
    routes = APIRouter(tags=["atropos"])
    status_cache = StatusCache(store)
    # One thread: JSON is processed in short pieces, and more threads would only contend for the GIL.
    worker = ThreadPoolExecutor(1, "hermes-rl-atropos")
    ingest = AtroposIngest(store, bodies, backpressure, worker, largest=min(settings.max_body, LARGEST))
    routes.include_router(atropos_environment_routes(store, status_cache, ingest))
    routes.include_router(atropos_trainer_routes(store, worker))
    routes.include_router(info_routes(store, status_cache, worker))
    return routes
