"""What an Atropos trainer asks: to be known, for batches, and to begin anew.

Always true: the trainer is the one that registered last, with what it said then, and what it held before goes back to
the queue; there is no batch without a trainer. What became of a batch that was handed out: delivery.py.
"""

import uuid
from concurrent.futures import Executor

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from hermes_rl.api.atropos.bodies import Registration, body_schema, read_small
from hermes_rl.api.atropos.delivery import BatchResponse, accepts_gzip, next_batch
from hermes_rl.api.atropos.standing import TRAINER
from hermes_rl.store.database.errors import UnknownTrainerError
from hermes_rl.store.database.members import Trainer
from hermes_rl.store.database.store import Store

# Atropos' own `max_batches_offpolicy`. Its trainers name no versions, so for environments of ours it bounds the queue.
STALENESS = 3
NO_TRAINER = {"status": "error", "message": "Trainer not registered. Call /register first.", "batch": []}


def trainer_side(store: Store, worker: Executor) -> APIRouter:
    routes = APIRouter()

    @routes.post("/register", openapi_extra=body_schema(Registration.model_json_schema()))
    async def register(request: Request) -> Response:
        """Make a trainer known. When it registers again the new settings count, and its batches return."""
        wish = await read_small(request, Registration)
        settings = wish.model_dump(exclude={"batch_size"})
        before = await store.open_batches(TRAINER)
        await store.register_trainer(Trainer(TRAINER, wish.batch_size, STALENESS, ("one_sequence",), settings))
        await store.release(*before)
        # Beyond 64 bits, which only the standard library's JSON writes.
        return JSONResponse({"uuid": uuid.uuid4().int})

    @routes.get("/batch")
    async def batch(request: Request) -> Response:
        """The next batch, `null` while there is none; asking for it says that the one before was trained on."""
        try:
            leased = await next_batch(store)
        except UnknownTrainerError:
            return JSONResponse(NO_TRAINER)
        if leased is None:
            return JSONResponse({"batch": None})
        return BatchResponse(store, leased, worker, packed=accepts_gzip(request.headers.get("accept-encoding", "")))

    @routes.get("/reset_data", response_class=PlainTextResponse)
    async def reset_data() -> Response:
        """Empty the queue and forget the trainer; environments keep their numbers."""
        await store.forget_trainer(TRAINER)
        await store.drop_all("reset")
        return PlainTextResponse("Reset successful")

    return routes
