"""Waits until an endpoint answers; its answer says whether it serves the model, and the model's context size."""

import asyncio
import time
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from hermes_rl.console.live_display import warn
from hermes_rl.core.errors import EndpointError
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.endpoint import Endpoint, RetryableEndpointError

# Timeout of one readiness request and pause between two, in seconds.
READY_ANSWER, READY_PAUSE = 5.0, 0.5
# How long to wait while nothing answers at all, unless ready_timeout is set: the address is probably wrong.
UNREACHABLE_SECONDS = 10.0
REPORT_SECONDS = 3.0
SHOWN_MODELS = 8
NEXT_STEP = "Start the model server, or check --openai.base_url"


async def wait_for_endpoint(endpoint: Endpoint, timeout: float) -> None:
    """Wait until the endpoint answers and store its context size.

    EndpointError when it does not in time, or when it does not serve the model.
    """
    # /models is free; vLLM, SGLang, llama.cpp and the hosted APIs all answer it.
    began = reported = time.monotonic()
    silent_timeout = timeout if "ready_timeout" in endpoint.config.model_fields_set else UNREACHABLE_SECONDS
    limit = min(timeout, silent_timeout)
    while True:
        try:
            answer = await endpoint.get("/models", timeout=min(READY_ANSWER, began + limit - time.monotonic()))
        except EndpointError as error:
            if error.cause.startswith("http_"):
                limit = timeout
            if not isinstance(error, RetryableEndpointError) or time.monotonic() + READY_PAUSE >= began + limit:
                raise EndpointError("not_ready", _not_ready_text(error, time.monotonic() - began)) from error
            if (now := time.monotonic()) - reported >= REPORT_SECONDS:
                reported = now
                warn(
                    f"waiting for {endpoint.base_url} for {now - began:.0f} s of {limit:g} s ({error.cause}); "
                    "check that the model server runs and has loaded its model, and --openai.base_url"
                )
        else:
            check_model_is_served(answer, endpoint.config, endpoint.base_url)
            endpoint.context_tokens = context_tokens(answer, endpoint.config.model_name)
            return
        await asyncio.sleep(READY_PAUSE)


def _not_ready_text(error: EndpointError, seconds: float) -> str:
    if error.cause.startswith("http_"):
        return f"{error}. {NEXT_STEP}; --openai.health_check false skips this check for APIs that have no /models."
    return (
        f"{error}; waited {seconds:.0f} s. {NEXT_STEP}, its port too; for a server that takes longer to start, set "
        "--openai.ready_timeout SECONDS."
    )


def check_model_is_served(models: Any, config: APIServerConfig, base_url: str) -> None:
    """EndpointError, with the names that are served, if the endpoint lists models and this is none of them."""
    # The trainer's inference and the gateway have one policy, under any name.
    served = [str(row["id"]) for row in _rows(models) if row.get("id") and row.get("owned_by") != "hermes-rl"]
    name = config.model_name
    named = "model_name" in config.model_fields_set
    # A server of one model often takes any name, as llama.cpp does; if not, its first answer says so.
    if not served or name in served or (len(served) == 1 and not named):
        return
    # Ollama lists `name:latest` and takes `name`.
    if any(one.startswith(f"{name}:") for one in served):
        return
    shown = ", ".join(served[:SHOWN_MODELS])
    if len(served) > SHOWN_MODELS:
        shown += f" and {len(served) - SHOWN_MODELS} more"
    close = get_close_matches(name, served, n=1)
    asked = f"no model {name!r}" if named else "no model was named"
    raise EndpointError(
        "unknown_model",
        f"{base_url}: {asked}; it serves {shown}. Pass --openai.model_name {(close or served)[0]}, or "
        "--openai.health_check false to ask for the model anyway",
    )


def context_tokens(models: Any, name: str) -> int | None:
    """The context size of a model according to the endpoint's model list; None when it has none."""
    for row in sorted(_rows(models), key=lambda row: row.get("id") != name)[:1]:
        meta = row.get("meta")
        # vLLM and SGLang, OpenRouter, llama.cpp.
        lengths = (
            row.get("max_model_len"),
            row.get("context_length"),
            meta.get("n_ctx") if isinstance(meta, Mapping) else 0,
        )
        return next((length for length in lengths if isinstance(length, int) and length > 0), None)
    return None


def _rows(models: Any) -> list[Mapping[str, Any]]:
    rows = models.get("data") if isinstance(models, Mapping) else None
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []
