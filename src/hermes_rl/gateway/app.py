"""The gateway as an ASGI application: who asks, in which dialect, and how the answer is sent.

Always true: every answer, refusals too, is in the provider's form; a request is read only once its rollout has room for
it. An answer is whole before its first event is sent; a stream that waits for it is kept alive by pings.
"""

import asyncio
import logging
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from typing import Any, TypeAlias

from hermes_rl import jsontext
from hermes_rl.errors import failure_of
from hermes_rl.gateway.asked import Asked, BadRequestError
from hermes_rl.gateway.bounds import RefusedError
from hermes_rl.gateway.dialects import DIALECTS, Dialect
from hermes_rl.gateway.passes import Pass, Passes
from hermes_rl.gateway.problems import Kind, Problem
from hermes_rl.gateway.rollout import ENDED, Call, GatewayRollout
from hermes_rl.gateway.sending import Ear, Receive, Send, models, send_json, send_refusal, send_start_of_events

log = logging.getLogger(__name__)

Scope: TypeAlias = MutableMapping[str, Any]

PING_SECONDS = 10.0
BODY_SECONDS = 60.0
# How long whoever floods waits for each refusal.
FLOODED_SECONDS = 1.0
MODELS = "/v1/models"


class _GoneError(Exception):
    """The caller has gone before it was heard out."""


class GatewayApp:
    """`only` in a scope's state is the one pass that may be used on its socket."""

    def __init__(self, passes: Passes, *, ping_seconds: float = PING_SECONDS) -> None:
        self._passes = passes
        self._ping_seconds = ping_seconds
        self._dialects: Mapping[str, Dialect] = {dialect.path: dialect for dialect in DIALECTS}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        prefix, path = _split(scope["path"])
        dialect = self._dialects.get(path) or self._nearest(path, headers)
        only: Pass | None = scope.get("state", {}).get("only")
        rollout = only.rollout if only else None
        ear = Ear(receive)
        try:
            rollout = self._known(dialect.key(headers), prefix, only).rollout
            if scope["method"] == "GET" and path == MODELS:
                await send_json(send, 200, jsontext.dumps(models(rollout)))
            elif scope["method"] == "POST" and path == dialect.path:
                await self._converse(dialect, rollout, headers, ear, send)
            else:
                raise RefusedError(Kind.NOT_FOUND, f"{scope['method']} {path}: there is no such thing here")
        except RefusedError as refused:
            if rollout is not None:
                await _slowly(rollout)
            await send_refusal(send, dialect, refused.problem, refused.again, ear)
        except _GoneError:
            return

    # --- who asks ---

    def _known(self, key: str | None, prefix: str | None, only: Pass | None) -> Pass:
        found = self._passes.find(key)
        if found is None or (prefix is not None and found.id != prefix) or (only is not None and found is not only):
            raise RefusedError(Kind.UNAUTHORIZED, "this key is not valid here, or its rollout has ended")
        return found

    def _nearest(self, path: str, headers: Mapping[str, str]) -> Dialect:
        """Whose words to use for a path that nobody has."""
        for dialect in DIALECTS:
            if path.startswith(dialect.path):
                return dialect
        wanted = "anthropic" if "x-api-key" in headers or "anthropic-version" in headers else "chat"
        return next((dialect for dialect in DIALECTS if dialect.name == wanted), DIALECTS[0])

    # --- one request ---

    async def _converse(
        self, dialect: Dialect, rollout: GatewayRollout, headers: Mapping[str, str], receive: Ear, send: Send
    ) -> None:
        with _caller(rollout):
            body = await _body(rollout, receive)
            held = len(body)
            try:
                call = _joined(dialect, rollout, headers, body)
                if call is None:
                    call = _begun(dialect, rollout, headers, body)
                    held = 0
            finally:
                # What a call holds is let go of with its answer.
                rollout.spent.bytes -= held
            await self._deliver(dialect, rollout, call, receive, send)

    async def _deliver(self, dialect: Dialect, rollout: GatewayRollout, call: Call, receive: Ear, send: Send) -> None:
        asked, started = call.asked, False
        gone = asyncio.ensure_future(_gone(receive))
        try:
            while not call.task.done():
                patience = self._ping_seconds if asked.stream else None
                await asyncio.wait((call.task, gone), timeout=patience, return_when=asyncio.FIRST_COMPLETED)
                if gone.done():
                    break
                if not call.task.done():
                    if not started:
                        started = True
                        await send_start_of_events(send)
                    await send({"type": "http.response.body", "body": dialect.ping(), "more_body": True})
            if gone.done():
                rollout.leave(call)
                return
        except BaseException:
            rollout.leave(call)
            raise
        finally:
            gone.cancel()
        rollout.delivered(call)
        told = _told(dialect, rollout, asked, call)
        if isinstance(told, bytes) and not asked.stream:
            await send_json(send, 200, told)
        elif isinstance(told, Problem) and not started:
            await send_refusal(send, dialect, told, None, receive)
        else:
            if not started:
                await send_start_of_events(send)
            rest = told if isinstance(told, bytes) else dialect.interruption(told)
            await send({"type": "http.response.body", "body": rest})


@contextmanager
def _caller(rollout: GatewayRollout) -> Iterator[None]:
    rollout.admit()
    rollout.spent.callers += 1
    try:
        yield
    finally:
        rollout.spent.callers -= 1


def _joined(dialect: Dialect, rollout: GatewayRollout, headers: Mapping[str, str], body: bytes) -> Call | None:
    """The call that this request tries again."""
    named = "idempotency-key" in headers
    # The SDKs of both providers count their tries in it.
    tries = headers.get("x-stainless-retry-count", "0")
    return rollout.same(_identity(dialect, headers, body), repeated=named or tries != "0")


def _begun(dialect: Dialect, rollout: GatewayRollout, headers: Mapping[str, str], body: bytes) -> Call:
    try:
        try:
            read = jsontext.loads(body)
        except ValueError as error:
            raise BadRequestError(f"the body is not JSON: {error}") from None
        if not isinstance(read, dict):
            raise BadRequestError("the body is not a JSON object")
        asked = dialect.asked(read, rollout.earlier)
    except BadRequestError as error:
        rollout.unreadable()
        raise RefusedError(Kind.BAD_REQUEST, str(error), param=error.param) from None
    except Exception:
        # No Failure: else an agent could choose by it which of its rollouts count.
        log.exception("a request in %s could not be read", dialect.name)
        rollout.unreadable()
        raise RefusedError(Kind.BAD_REQUEST, "the body could not be read") from None
    return rollout.begin(asked, _identity(dialect, headers, body), len(body))


def _identity(dialect: Dialect, headers: Mapping[str, str], body: bytes) -> tuple[str, bytes]:
    """By what a second try is known: the key its caller gave it, else all that it says."""
    key = headers.get("idempotency-key")
    return dialect.path, body if key is None else b"key " + key.encode()


def _told(dialect: Dialect, rollout: GatewayRollout, asked: Asked, call: Call) -> bytes | Problem:
    """The answer in the provider's form; a Problem when there is none."""
    told = ENDED if call.task.cancelled() else call.task.result()
    if isinstance(told, Problem):
        return told
    try:
        return b"".join(dialect.events(asked, told)) if asked.stream else jsontext.dumps(dialect.answer(asked, told))
    except Exception as error:
        log.exception("an answer could not be told in %s", dialect.name)
        rollout.fail(failure_of(error))
        return Problem.of(error)


async def _body(rollout: GatewayRollout, receive: Receive) -> bytes:
    """The whole body, which counts as held from here on."""
    message = await receive()
    body: bytes = message.get("body", b"")
    if message["type"] != "http.request":
        raise _GoneError
    rollout.spent.hold(len(body), 0)
    if not message.get("more_body"):
        return body
    parts, size = [body], len(body)
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while message.get("more_body"):
                message = await receive()
                if message["type"] != "http.request":
                    raise _GoneError
                part = message.get("body", b"")
                rollout.spent.hold(len(part), size)
                size += len(part)
                parts.append(part)
    except BaseException as error:
        rollout.spent.bytes -= size
        if isinstance(error, TimeoutError):
            raise RefusedError(
                Kind.BAD_REQUEST, f"the body did not arrive within {BODY_SECONDS:g} s", again=0.0
            ) from None
        raise
    return b"".join(parts)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _slowly(rollout: GatewayRollout) -> None:
    """Whoever goes on asking though it was refused is refused slowly, so that it costs the others little."""
    rollout.spent.refusals += 1
    if rollout.spent.flooded:
        await asyncio.sleep(FLOODED_SECONDS)


def _split(path: str) -> tuple[str | None, str]:
    """The rollout that a path begins with, if it does, and the path of the provider's."""
    if not path.startswith("/rollouts/"):
        return None, path
    rollout, slash, rest = path.removeprefix("/rollouts/").partition("/")
    return rollout, slash + rest
