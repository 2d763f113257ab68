"""The gateway as an ASGI application: authentication, choice of the dialect, and delivery of the answer.

Every answer, including errors, has the provider's format. A request is read only once its rollout has room for it. An
answer is complete before its first event is sent; pings keep a waiting stream alive.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from hermes_rl.core import fast_json
from hermes_rl.core.errors import failure_of
from hermes_rl.gateway.api_keys import ApiKey, ApiKeys
from hermes_rl.gateway.asgi_responses import (
    BodyReceiver,
    Receive,
    Send,
    models_list,
    send_json,
    send_refusal,
    send_stream_start,
)
from hermes_rl.gateway.dialects import ANTHROPIC, CHAT, DIALECTS, GOOGLE, Dialect
from hermes_rl.gateway.errors import ErrorKind, RequestProblem
from hermes_rl.gateway.limits import RequestRefusedError
from hermes_rl.gateway.request import AgentRequest, BadRequestError
from hermes_rl.gateway.rollout import ENDED, Call, GatewayRollout

log = logging.getLogger(__name__)

Scope: TypeAlias = MutableMapping[str, Any]

PING_SECONDS = 10.0
BODY_SECONDS = 60.0
# Delay of each error response to an agent that floods the gateway.
FLOOD_DELAY_SECONDS = 1.0
MODELS = "/v1/models"


class _DisconnectedError(Exception):
    """The caller disconnected before its request was read."""


class GatewayApp:
    """`only` in a scope's state is the one key that may be used on its socket."""

    def __init__(self, keys: ApiKeys, *, ping_seconds: float = PING_SECONDS) -> None:
        self._keys = keys
        self._ping_seconds = ping_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        prefix, path = _split_path(scope["path"])
        dialect, route = _find_dialect(path, headers)
        only: ApiKey | None = scope.get("state", {}).get("only")
        rollout = only.rollout if only else None
        request_body = BodyReceiver(receive)
        try:
            rollout = self._authenticate(dialect.key(headers), prefix, only).rollout
            if scope["method"] == "GET" and path == MODELS:
                await send_json(send, 200, fast_json.dumps(models_list(rollout)))
            elif scope["method"] == "POST" and route is not None:
                await self._handle(dialect, route, rollout, headers, request_body, send)
            else:
                raise RequestRefusedError(ErrorKind.NOT_FOUND, f"{scope['method']} {path}: no such route")
        except RequestRefusedError as refused:
            if rollout is not None:
                await _delay_flood(rollout)
            await send_refusal(send, dialect, refused.problem, refused.retry_after, request_body)
        except _DisconnectedError:
            return

    # --- authentication ---

    def _authenticate(self, key: str | None, prefix: str | None, only: ApiKey | None) -> ApiKey:
        found = self._keys.find(key)
        if found is None or (prefix is not None and found.id != prefix) or (only is not None and found is not only):
            raise RequestRefusedError(ErrorKind.UNAUTHORIZED, "this key is not valid here, or its rollout has ended")
        return found

    # --- one request ---

    async def _handle(
        self,
        dialect: Dialect,
        route: Mapping[str, Any],
        rollout: GatewayRollout,
        headers: Mapping[str, str],
        receive: BodyReceiver,
        send: Send,
    ) -> None:
        with _admitted(rollout):
            body = await _read_body(rollout, receive)
            held = len(body)
            try:
                identity = _identity(dialect, route, headers, body)
                call = _find_retry(rollout, headers, identity)
                if call is None:
                    call = _start_call(dialect, route, rollout, identity, body)
                    held = 0
            finally:
                # A started call releases its bytes with its answer.
                rollout.used.bytes -= held
            await self._deliver(dialect, rollout, call, receive, send)

    async def _deliver(
        self, dialect: Dialect, rollout: GatewayRollout, call: Call, receive: BodyReceiver, send: Send
    ) -> None:
        request, started = call.request, False
        disconnected = asyncio.ensure_future(_wait_for_disconnect(receive))
        try:
            while not call.task.done():
                patience = self._ping_seconds if request.stream else None
                await asyncio.wait((call.task, disconnected), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if disconnected.done():
                    break
                if not call.task.done():
                    if not started:
                        started = True
                        await send_stream_start(send)
                    await send({"type": "http.response.body", "body": dialect.ping(), "more_body": True})
            if disconnected.done():
                rollout.abandon(call)
                return
        except BaseException:
            rollout.abandon(call)
            raise
        finally:
            disconnected.cancel()
        rollout.delivered(call)
        outcome = _encode(dialect, rollout, request, call)
        if isinstance(outcome, bytes) and not request.stream:
            await send_json(send, 200, outcome)
        elif isinstance(outcome, RequestProblem) and not started:
            await send_refusal(send, dialect, outcome, None, receive)
        else:
            if not started:
                await send_stream_start(send)
            rest = outcome if isinstance(outcome, bytes) else dialect.interruption(outcome)
            await send({"type": "http.response.body", "body": rest})


def _find_dialect(path: str, headers: Mapping[str, str]) -> tuple[Dialect, Mapping[str, Any] | None]:
    """The dialect of a path, and what the path adds to the body: None if it is only the dialect for the error."""
    for dialect in DIALECTS:
        route = dialect.match(path)
        if route is not None:
            return dialect, route
    for dialect in DIALECTS:
        if path.startswith(dialect.path):
            return dialect, None
    if "x-goog-api-key" in headers:
        return GOOGLE, None
    return ANTHROPIC if "x-api-key" in headers or "anthropic-version" in headers else CHAT, None


@contextmanager
def _admitted(rollout: GatewayRollout) -> Iterator[None]:
    rollout.admit()
    rollout.used.callers += 1
    try:
        yield
    finally:
        rollout.used.callers -= 1


def _find_retry(rollout: GatewayRollout, headers: Mapping[str, str], identity: tuple[str, bytes]) -> Call | None:
    """The call that this request retries, if any."""
    named = "idempotency-key" in headers
    # The SDKs of both providers count their retries in this header.
    tries = headers.get("x-stainless-retry-count", "0")
    return rollout.find_retry(identity, repeated=named or tries != "0")


def _start_call(
    dialect: Dialect, route: Mapping[str, Any], rollout: GatewayRollout, identity: tuple[str, bytes], body: bytes
) -> Call:
    try:
        try:
            read = fast_json.loads(body)
        except ValueError as error:
            raise BadRequestError(f"the body is not JSON: {error}") from None
        if not isinstance(read, dict):
            raise BadRequestError("the body is not a JSON object")
        request = dialect.parse_request({**read, **route}, rollout.previous)
    except BadRequestError as error:
        rollout.count_unreadable()
        raise RequestRefusedError(ErrorKind.BAD_REQUEST, str(error), param=error.param) from None
    except Exception:
        # Not a Failure: otherwise an agent could choose which of its rollouts count.
        log.exception("a request in %s could not be read", dialect.name)
        rollout.count_unreadable()
        raise RequestRefusedError(ErrorKind.BAD_REQUEST, "the body could not be read") from None
    return rollout.begin(request, identity, len(body))


def _identity(dialect: Dialect, route: Mapping[str, Any], headers: Mapping[str, str], body: bytes) -> tuple[str, bytes]:
    """What identifies a retry: the path, and the caller's idempotency key, else the whole body."""
    key = headers.get("idempotency-key")
    return f"{dialect.path} {route}", body if key is None else b"key " + key.encode()


def _encode(dialect: Dialect, rollout: GatewayRollout, request: AgentRequest, call: Call) -> bytes | RequestProblem:
    """The answer in the provider's format, or the RequestProblem."""
    outcome = ENDED if call.task.cancelled() else call.task.result()
    if isinstance(outcome, RequestProblem):
        return outcome
    try:
        return (
            b"".join(dialect.events(request, outcome))
            if request.stream
            else fast_json.dumps(dialect.answer(request, outcome))
        )
    except Exception as error:
        log.exception("an answer could not be encoded for %s", dialect.name)
        rollout.fail(failure_of(error))
        return RequestProblem.from_error(error)


async def _read_body(rollout: GatewayRollout, receive: Receive) -> bytes:
    """Read the whole body, and count its bytes as held."""
    message = await receive()
    body: bytes = message.get("body", b"")
    if message["type"] != "http.request":
        raise _DisconnectedError
    rollout.used.add_bytes(len(body), 0)
    if not message.get("more_body"):
        return body
    parts, size = [body], len(body)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while message.get("more_body"):
                message = await receive()
                if message["type"] != "http.request":
                    raise _DisconnectedError
                part = message.get("body", b"")
                rollout.used.add_bytes(len(part), size)
                size += len(part)
                parts.append(part)
    except BaseException as error:
        rollout.used.bytes -= size
        if isinstance(error, TimeoutError):
            raise RequestRefusedError(
                ErrorKind.BAD_REQUEST, f"the body did not arrive within {BODY_SECONDS:g} s", retry_after=0.0
            ) from None
        raise
    return b"".join(parts)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _delay_flood(rollout: GatewayRollout) -> None:
    """Delay errors for a caller that keeps sending refused requests, so that it costs the others little."""
    rollout.used.refusals += 1
    if rollout.used.is_flooding:
        await asyncio.sleep(FLOOD_DELAY_SECONDS)


def _split_path(path: str) -> tuple[str | None, str]:
    """The rollout id at the start of a path, if there is one, and the provider's path."""
    if not path.startswith("/rollouts/"):
        return None, path
    rollout, slash, rest = path.removeprefix("/rollouts/").partition("/")
    return rollout, slash + rest
