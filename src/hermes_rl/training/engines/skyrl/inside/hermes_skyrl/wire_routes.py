"""Routes that speak protobuf with the tinker SDK, and return results as soon as they are ready."""

import time
from typing import Any

import skyrl.tinker.api as upstream
from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import JSONResponse
from skyrl.tinker.db_models import FutureDB, RequestStatus

from .routes import Database
from .wire import PROTOBUF, WireError, read_passes, result_bytes

# The SDK times out after 45 s, and backs off before it asks again.
ANSWER_WITHIN_S = 30.0
CHECK_INTERVAL_S = 1.0

wire_routes = APIRouter(prefix="/api/v1")


@wire_routes.post("/forward_backward")
async def forward_backward(request: Request, database: Database) -> Any:
    if PROTOBUF not in request.headers.get("content-type", ""):
        raise HTTPException(415, "this engine needs tinker 0.25 or newer")
    try:
        forward_only, fields = read_passes(await request.body())
        submit, body = (
            (upstream.forward, upstream.ForwardRequest.model_validate(fields))
            if forward_only
            else (upstream.forward_backward, upstream.ForwardBackwardRequest.model_validate(fields))
        )
    except (WireError, ValueError) as error:
        raise HTTPException(422, str(error)) from error
    passes = body.forward_input if forward_only else body.forward_backward_input
    _check_length(request, max((_tokens(each.model_input) for each in passes.data), default=0))
    key = ("forward_backward", body.model_id, fields["seq_id"])
    return await request.app.state.request_cache.answer(key, lambda: submit(body, database))


@wire_routes.post("/asample")
async def asample(body: upstream.SampleRequest, request: Request, database: Database) -> dict[str, Any]:
    # The last sampled token is not computed with.
    _check_length(request, _tokens(body.prompt) + (body.sampling_params.max_tokens or 1) - 1)
    future = await upstream.asample(body, request, database)
    names = [f"{future.request_id}-{sample}" for sample in range(body.num_samples)]
    return {**future.model_dump(), "sample_sequence_ids": names}


@wire_routes.post("/retrieve_future")
async def retrieve_future(body: upstream.RetrieveFutureRequest, request: Request, database: Database) -> Response:
    number, results = int(body.request_id), request.app.state.results
    deadline = time.monotonic() + ANSWER_WITHIN_S
    while not await results.done(number, CHECK_INTERVAL_S):
        if await request.is_disconnected():
            results.disconnect(number)
            return Response(status_code=499)
        if time.monotonic() > deadline:
            return JSONResponse({"type": "try_again", "queue_state": "active"}, status_code=408)
    future = await database.get(FutureDB, number)
    if future is None:
        raise HTTPException(404, f"request {number} does not exist")
    if future.status == RequestStatus.FAILED:
        return JSONResponse({"error": future.result_data["error"], "category": "server"})
    if PROTOBUF in request.headers.get("accept", "") and (encoded := result_bytes(future.result_data)) is not None:
        return Response(encoded, media_type=PROTOBUF)
    return JSONResponse(future.result_data)


def _tokens(text: upstream.ModelInput) -> int:
    return sum(len(getattr(chunk, "tokens", ())) for chunk in text.chunks)


def _check_length(request: Request, tokens: int) -> None:
    """A sequence beyond the memory that the engine was started for would end its process."""
    limit = request.app.state.max_length
    if limit is not None and tokens > limit:
        raise HTTPException(400, f"a sequence has {tokens:,} tokens; this engine was started with --max-length {limit}")
