"""Routes for an Atropos trainer: register, batches, reset.

The last registration is the trainer; its earlier batches return to the queue. Without a trainer there is no batch.
delivery.py decides when a batch counts as trained on.
"""

import uuid
from concurrent.futures import Executor

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from hermes_rl.api.atropos.batch_response import BatchResponse, accepts_gzip, next_batch
from hermes_rl.api.atropos.bodies import Registration, body_schema, read_body
from hermes_rl.api.atropos.queue_view import TRAINER
from hermes_rl.store.database.errors import UnknownTrainerError
from hermes_rl.store.database.registrations import TrainerRow
from hermes_rl.store.database.store import Store

# Atropos' default `max_batches_offpolicy`. Its trainers set no versions, so it limits the queue of native environments.
STALENESS = 3
NO_TRAINER = {"status": "error", "message": "Trainer not registered. Call /register first.", "batch": []}


def atropos_trainer_routes(store: Store, worker: Executor) -> APIRouter:
    routes = APIRouter()

    @routes.post("/register", openapi_extra=body_schema(Registration.model_json_schema()))
    async def register(request: Request) -> Response:
        """Register the trainer. Registering again replaces its settings and returns its batches to the queue."""
        body = await read_body(request, Registration)
        settings = body.model_dump(exclude={"batch_size"})
        before = await store.open_batches(TRAINER)
        await store.register_trainer(TrainerRow(TRAINER, body.batch_size, STALENESS, ("one_sequence",), settings))
        await store.release(*before)
        # More than 64 bits, which orjson cannot write.
        return JSONResponse({"uuid": uuid.uuid4().int})

    @routes.get("/batch")
    async def batch(request: Request) -> Response:
        """The next batch, or `null` if there is none. The request acknowledges the previous batch."""
        try:
            leased = await next_batch(store)
        except UnknownTrainerError:
            return JSONResponse(NO_TRAINER)
        if leased is None:
            return JSONResponse({"batch": None})
        return BatchResponse(store, leased, worker, packed=accepts_gzip(request.headers.get("accept-encoding", "")))

    @routes.get("/reset_data", response_class=PlainTextResponse)
    async def reset_data() -> Response:
        """Clear the queue and the trainer; environments keep their numbers."""
        await store.forget_trainer(TRAINER)
        await store.drop_all("reset")
        return PlainTextResponse("Reset successful")

    return routes
