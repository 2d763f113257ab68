"""Whether an endpoint is there, and what it tells of its model when it is."""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from hermes_rl.errors import EndpointError
from hermes_rl.inference.endpoint import Endpoint, RetryableEndpointError

# Seconds one answer to "are you there" may take, and between two questions.
READY_ANSWER, READY_PAUSE = 5.0, 0.5


async def wait_for(endpoint: Endpoint, timeout: float) -> None:
    """Return when it answers, with its context noted; EndpointError when it does not in time."""
    # /models asks without paying for a completion; vLLM, SGLang, llama.cpp and the hosted APIs all answer it.
    deadline = time.monotonic() + timeout
    while True:
        try:
            answer = await endpoint.get("/models", timeout=min(READY_ANSWER, deadline - time.monotonic()))
        except EndpointError as error:
            if not isinstance(error, RetryableEndpointError) or time.monotonic() + READY_PAUSE >= deadline:
                raise EndpointError(
                    "not_ready",
                    f"{error}. Start the model server, or check --openai.base_url; "
                    "--openai.health_check false skips this question for APIs that have no /models.",
                ) from error
        else:
            endpoint.context_tokens = context_tokens(answer, endpoint.config.model_name)
            return
        await asyncio.sleep(READY_PAUSE)


def context_tokens(models: Any, name: str) -> int | None:
    """The context of a model as its endpoint's list of models tells it; None when it does not."""
    rows = models.get("data") if isinstance(models, Mapping) else None
    known = [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
    for row in sorted(known, key=lambda row: row.get("id") != name)[:1]:
        meta = row.get("meta")
        # vLLM and SGLang, OpenRouter, llama.cpp.
        told = (
            row.get("max_model_len"),
            row.get("context_length"),
            meta.get("n_ctx") if isinstance(meta, Mapping) else 0,
        )
        return next((length for length in told if isinstance(length, int) and length > 0), None)
    return None
