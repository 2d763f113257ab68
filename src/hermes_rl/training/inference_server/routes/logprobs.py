"""POST /logprobs: how likely the policy finds the tokens of a sequence."""

from fastapi import APIRouter, Request
from fastapi.responses import Response

from hermes_rl.training.inference_server.answers import as_json, attended
from hermes_rl.training.inference_server.bodies import LogprobsBody
from hermes_rl.training.inference_server.drawing import Drawing
from hermes_rl.training.inference_server.settings import Formats


def logprob_routes(drawing: Drawing, formats: Formats) -> APIRouter:
    routes = APIRouter(tags=["tokens"])

    @routes.post("/logprobs")
    async def logprobs(body: LogprobsBody, request: Request) -> Response:
        """Of each token after those before it; null for the first, which follows nothing."""
        field = "text" if body.token_ids is None else "token_ids"
        ids = body.token_ids or formats({}).encode(body.text or "")
        version, found = await attended(request, drawing.logprobs(ids, field))
        return as_json({"token_ids": ids, "logprobs": found, "policy_version": version})

    return routes
