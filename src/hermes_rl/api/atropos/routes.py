"""All of Atropos' routes, as one router to be mounted at the root."""

from concurrent.futures import ThreadPoolExecutor

from fastapi import APIRouter

from hermes_rl.api.atropos.environment_side import environment_side
from hermes_rl.api.atropos.intake import LARGEST, Intake
from hermes_rl.api.atropos.looking import Looks
from hermes_rl.api.atropos.trainer_side import trainer_side
from hermes_rl.api.atropos.watching import watching
from hermes_rl.api.door import Bodies
from hermes_rl.api.fullness import Fullness
from hermes_rl.api.settings import ApiSettings
from hermes_rl.store.database.store import Store


def atropos_routes(store: Store, settings: ApiSettings, bodies: Bodies, fullness: Fullness) -> APIRouter:
    routes = APIRouter(tags=["atropos"])
    looks = Looks(store)
    # One thread: large JSON is read and written in short pieces, and more would only take the interpreter from others.
    worker = ThreadPoolExecutor(1, "hermes-rl-atropos")
    intake = Intake(store, bodies, fullness, worker, largest=min(settings.max_body, LARGEST))
    routes.include_router(environment_side(store, looks, intake))
    routes.include_router(trainer_side(store, worker))
    routes.include_router(watching(store, looks, worker))
    return routes
