"""Waits until an endpoint answers, and reads the model's context size from its answer."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from hermes_rl.console.live_display import warn
from hermes_rl.core.errors import EndpointError
from hermes_rl.inference.endpoint import Endpoint, RetryableEndpointError

# Timeout of one readiness request and pause between two, in seconds.
READY_ANSWER, READY_PAUSE = 5.0, 0.5
REPORT_SECONDS = 15.0


async def wait_for_endpoint(endpoint: Endpoint, timeout: float) -> None:
    """Wait until the endpoint answers and store its context size; EndpointError when it does not in time."""
    # /models is free; vLLM, SGLang, llama.cpp and the hosted APIs all answer it.
    began = reported = time.monotonic()
    deadline = began + timeout
    while True:
        try:
            answer = await endpoint.get("/models", timeout=min(READY_ANSWER, deadline - time.monotonic()))
        except EndpointError as error:
            if not isinstance(error, RetryableEndpointError) or time.monotonic() + READY_PAUSE >= deadline:
                raise EndpointError(
                    "not_ready",
                    f"{error}. Start the model server, or check --openai.base_url; "
                    "--openai.health_check false skips this check for APIs that have no /models.",
                ) from error
            if (now := time.monotonic()) - reported >= REPORT_SECONDS:
                reported = now
                warn(
                    f"waiting for {endpoint.base_url} for {now - began:.0f} s of {timeout:g} s ({error.cause}); "
                    "check that the model server runs and has loaded its model, and --openai.base_url"
                )
        else:
            endpoint.context_tokens = context_tokens(answer, endpoint.config.model_name)
            return
        await asyncio.sleep(READY_PAUSE)


def context_tokens(models: Any, name: str) -> int | None:
    """The context size of a model according to the endpoint's model list; None when it has none."""
    rows = models.get("data") if isinstance(models, Mapping) else None
    known = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    for row in sorted(known, key=lambda row: row.get("id") != name)[:1]:
        meta = row.get("meta")
        # vLLM and SGLang, OpenRouter, llama.cpp.
        lengths = (
            row.get("max_model_len"),
            row.get("context_length"),
            meta.get("n_ctx") if isinstance(meta, Mapping) else 0,
        )
        return next((length for length in lengths if isinstance(length, int) and length > 0), None)
    return None
