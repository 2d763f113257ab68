"""Sends the gateway's answers, errors and event streams as ASGI messages."""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, TypeAlias

from hermes_rl.core import fast_json
from hermes_rl.gateway.dialects import Dialect
from hermes_rl.gateway.errors import RequestProblem
from hermes_rl.gateway.rollout import GatewayRollout

Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]

JSON, EVENTS = b"application/json", b"text/event-stream; charset=utf-8"
# Both SDKs respect it over the status code; there is no standard header for this.
NO_RETRY = (b"x-should-retry", b"false")
# How long a refused caller may keep sending its body.
DRAIN_SECONDS = 10.0


class BodyReceiver:
    """Receives a request's body. `open`: more of it may come."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.open = True

    async def __call__(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        self.open = message["type"] == "http.request" and message.get("more_body", False)
        return message


async def send_refusal(
    send: Send, dialect: Dialect, problem: RequestProblem, retry_after: float | None, unread: BodyReceiver
) -> None:
    status, body = dialect.refusal(problem)
    wait = NO_RETRY if retry_after is None else (b"retry-after", b"%d" % max(round(retry_after), 0))
    await send_json(send, status, fast_json.dumps(body), wait, unread=unread)


async def send_json(
    send: Send, status: int, body: bytes, *further: tuple[bytes, bytes], unread: BodyReceiver | None = None
) -> None:
    """Send an answer; the rest of an unread request body is discarded."""
    headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(body)), *further]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if unread is not None and unread.open:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        body = b""
        # Closing a connection with unread bytes resets it, and a caller that still writes never reads the answer.
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_SECONDS):
                while unread.open:
                    await unread()
    await send({"type": "http.response.body", "body": body})


async def send_stream_start(send: Send) -> None:
    headers = [(b"content-type", EVENTS), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


def models_list(rollout: GatewayRollout) -> dict[str, Any]:
    """The model list, in the formats of both providers at once."""
    name, now = rollout.model, int(time.time())
    model: dict[str, Any] = {
        "id": name,
        "object": "model",
        "type": "model",
        "created": now,
        "created_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now)),
        "owned_by": "hermes-rl",
        "display_name": name,
    }
    if rollout.context_tokens is not None:
        model |= {"max_model_len": rollout.context_tokens, "context_length": rollout.context_tokens}
    return {"object": "list", "data": [model], "has_more": False, "first_id": name, "last_id": name}
