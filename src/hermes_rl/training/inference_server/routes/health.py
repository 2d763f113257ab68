"""Liveness, readiness, model list, held versions and metrics."""

import time

from fastapi import APIRouter
from fastapi.responses import Response

from hermes_rl.http.prometheus import MetricsResponse
from hermes_rl.http.request_metrics import Requests
from hermes_rl.inference.endpoint import RetryableEndpointError
from hermes_rl.training.inference_server.config import InferenceSettings
from hermes_rl.training.inference_server.metrics import TokenCounts, prometheus_text
from hermes_rl.training.inference_server.responses import json_response
from hermes_rl.training.inference_server.schemas import HoldBody
from hermes_rl.training.request_batching import CoalescingPolicy


def health_routes(
    policy: CoalescingPolicy, settings: InferenceSettings, requests: Requests, counts: TokenCounts
) -> APIRouter:
    routes = APIRouter(tags=["watching"])
    created = int(time.time())

    def version() -> int:
        if policy.version is None:
            raise RetryableEndpointError("no_weights", "there are no weights to sample from yet; retry later")
        return policy.version

    @routes.get("/ping")
    async def ping() -> Response:
        """Liveness."""
        return json_response({"status": "alive"})

    @routes.get("/health")
    async def health() -> Response:
        """Readiness: 503 while it cannot sample."""
        return json_response({"status": "ready", "policy_version": version()})

    @routes.get("/v1/models")
    async def models() -> Response:
        """The one model; 503 while it cannot sample, since clients use this route as a readiness check."""
        model = {
            "id": settings.model,
            "object": "model",
            "created": created,
            "owned_by": "hermes-rl",
            "max_model_len": settings.context_tokens,
            "policy_version": version(),
        }
        return json_response({"object": "list", "data": [model]})

    @routes.post("/v1/policy/hold")
    async def hold(body: HoldBody) -> Response:
        """Keep a version, by default the newest, for requests that name it; null if it cannot be kept."""
        wanted = version() if body.version is None else body.version
        return json_response({"policy_version": policy.hold(body.holder, wanted, body.seconds)})

    @routes.get("/metrics", response_class=MetricsResponse)
    async def metrics() -> str:
        """Prometheus metrics."""
        return prometheus_text(requests, counts, policy)

    return routes
