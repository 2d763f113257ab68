"""The routes that speak protobuf with the tinker SDK, and tell of results as soon as there are any."""

import time
from typing import Any

import skyrl.tinker.api as upstream
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from skyrl.tinker.db_models import FutureDB, RequestStatus

from .routes import Database
from .wire import PROTOBUF, WireError, read_passes, result_bytes

# The SDK gives an answer 45 s, and when none came waits longer and longer before it asks again.
ANSWER_WITHIN_S = 30.0
LOOK_UP_EVERY_S = 1.0

wire_routes = APIRouter(prefix="/api/v1")


@wire_routes.post("/forward_backward")
async def forward_backward(request: Request, database: Database) -> Any:
    if PROTOBUF not in request.headers.get("content-type", ""):
        raise HTTPException(415, "this engine needs tinker 0.25 or newer")
    try:
        forward_only, fields = read_passes(await request.body())
        submit, asked = (
            (upstream.forward, upstream.ForwardRequest.model_validate(fields))
            if forward_only
            else (upstream.forward_backward, upstream.ForwardBackwardRequest.model_validate(fields))
        )
    except (WireError, ValueError) as error:
        raise HTTPException(422, str(error)) from error
    key = ("forward_backward", asked.model_id, fields["seq_id"])
    return await request.app.state.once.answer(key, lambda: submit(asked, database))


@wire_routes.post("/asample")
async def asample(asked: upstream.SampleRequest, request: Request, database: Database) -> dict[str, Any]:
    promise = await upstream.asample(asked, request, database)
    names = [f"{promise.request_id}-{sample}" for sample in range(asked.num_samples)]
    return {**promise.model_dump(), "sample_sequence_ids": names}


@wire_routes.post("/retrieve_future")
async def retrieve_future(asked: upstream.RetrieveFutureRequest, request: Request, database: Database) -> Response:
    number, results = int(asked.request_id), request.app.state.results
    deadline = time.monotonic() + ANSWER_WITHIN_S
    while not await results.done(number, LOOK_UP_EVERY_S):
        if await request.is_disconnected():
            results.leave(number)
            return Response(status_code=499)
        if time.monotonic() > deadline:
            return JSONResponse({"type": "try_again", "queue_state": "active"}, status_code=408)
    future = await database.get(FutureDB, number)
    if future is None:
        raise HTTPException(404, f"there is no request {number}")
    if future.status == RequestStatus.FAILED:
        return JSONResponse({"error": future.result_data["error"], "category": "server"})
    if PROTOBUF in request.headers.get("accept", "") and (body := result_bytes(future.result_data)) is not None:
        return Response(body, media_type=PROTOBUF)
    return JSONResponse(future.result_data)
