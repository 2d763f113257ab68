"""What the gateway sends: answers, refusals and the beginnings of streams, as messages of ASGI."""

import asyncio
import time
from collections.abc import Awaitable, Callable, MutableMapping
from contextlib import suppress
from typing import Any, TypeAlias

from hermes_rl import jsontext
from hermes_rl.gateway.dialects import Dialect
from hermes_rl.gateway.problems import Problem
from hermes_rl.gateway.rollout import GatewayRollout

Send: TypeAlias = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive: TypeAlias = Callable[[], Awaitable[MutableMapping[str, Any]]]

JSON, EVENTS = b"application/json", b"text/event-stream; charset=utf-8"
# Both SDKs heed it over the status; there is no standard one.
NEVER_AGAIN = (b"x-should-retry", b"false")
# How long a caller that was refused may go on sending its body.
HEARING_OUT_SECONDS = 10.0


class Ear:
    """What a request's body comes through. `open`: more of it may come."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.open = True

    async def __call__(self) -> MutableMapping[str, Any]:
        message = await self._receive()
        self.open = message["type"] == "http.request" and message.get("more_body", False)
        return message


async def send_refusal(send: Send, dialect: Dialect, problem: Problem, again: float | None, unheard: Ear) -> None:
    status, body = dialect.refusal(problem)
    wait = NEVER_AGAIN if again is None else (b"retry-after", b"%d" % max(round(again), 0))
    await send_json(send, status, jsontext.dumps(body), wait, unheard=unheard)


async def send_json(
    send: Send, status: int, body: bytes, *further: tuple[bytes, bytes], unheard: Ear | None = None
) -> None:
    """Answer; what is still to come of the body of a request that was `unheard` is thrown away."""
    headers = [(b"content-type", JSON), (b"content-length", b"%d" % len(body)), *further]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if unheard is not None and unheard.open:
        await send({"type": "http.response.body", "body": body, "more_body": True})
        body = b""
        # A connection that closes with bytes unread is reset, and a caller that still writes never reads the answer.
        with suppress(TimeoutError):
            async with asyncio.timeout(HEARING_OUT_SECONDS):
                while unheard.open:
                    await unheard()
    await send({"type": "http.response.body", "body": body})


async def send_start_of_events(send: Send) -> None:
    headers = [(b"content-type", EVENTS), (b"cache-control", b"no-cache")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})


def models(rollout: GatewayRollout) -> dict[str, Any]:
    """The one model, in the forms of both providers at once."""
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
