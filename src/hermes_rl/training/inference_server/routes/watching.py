"""What people and machines look at: is it alive, can it sample, from which weights, and how much it did."""

import time

from fastapi import APIRouter
from fastapi.responses import PlainTextResponse, Response

from hermes_rl.api.measures import Requests
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.training.coalescing import Coalesced
from hermes_rl.training.inference_server.answers import as_json
from hermes_rl.training.inference_server.measures import Tally, exposition
from hermes_rl.training.inference_server.settings import InferenceSettings


def watching_routes(policy: Coalesced, settings: InferenceSettings, requests: Requests, tally: Tally) -> APIRouter:
    routes = APIRouter(tags=["watching"])
    created = int(time.time())

    def version() -> int:
        if policy.version is None:
            raise RetryableEndpointError("no_weights", "there are no weights to sample from yet; ask again")
        return policy.version

    @routes.get("/ping")
    async def ping() -> Response:
        """The process answers."""
        return as_json({"status": "alive"})

    @routes.get("/health")
    async def health() -> Response:
        """It can sample; 503 while it cannot."""
        return as_json({"status": "ready", "policy_version": version()})

    @routes.get("/v1/models")
    async def models() -> Response:
        """The one model; 503 while it cannot be sampled from, since this is what callers ask to see that it can."""
        model = {
            "id": settings.model,
            "object": "model",
            "created": created,
            "owned_by": "hermes-rl",
            "max_model_len": settings.context_tokens,
            "policy_version": version(),
        }
        return as_json({"object": "list", "data": [model]})

    @routes.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> str:
        """All of it for Prometheus."""
        return exposition(requests, tally, policy)

    return routes
