"""The gateway by itself, for a harness and a trainer of somebody else's: rollouts are opened and closed over HTTP.

    POST   /rollouts       {item_id, item, seed, calls}   201 {id, url, base_url, key, model}
    DELETE /rollouts/ID    {score, components}            200 the rollout as a line of a group record

Always true: only the operator's token opens and closes, and only a rollout's key is answered by the model. A rollout
that is closed twice gives the same line twice; one without a score, or that the world failed, has none.
"""

import asyncio
import hmac
import platform
import uuid
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from hermes_rl import jsontext
from hermes_rl.errors import Failure, Whose, WorldError
from hermes_rl.gateway.app import BODY_SECONDS, GatewayApp, Scope
from hermes_rl.gateway.bounds import Bounds
from hermes_rl.gateway.passes import Pass, Passes
from hermes_rl.gateway.rollout import GatewayRollout, Policy
from hermes_rl.gateway.sampling import SEED_RANGE, RunSampling
from hermes_rl.gateway.sending import Ear, Receive, Send, send_json
from hermes_rl.inference.managed_server import ManagedServer
from hermes_rl.store.records import record_of
from hermes_rl.tokens.invariant import Checked
from hermes_rl.trajectory import Group, Provenance, Reward, Rollout, StopReason, validate_reward
from hermes_rl.version import __version__

LARGEST_BODY = 2**20
LINES_KEPT = 256
ROOT = "/rollouts"


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class Terms:
    """What every rollout is opened with. `policy` makes what answers one; `keep` has each record before it is given."""

    policy: Callable[[], AbstractAsyncContextManager[Policy]]
    model: str
    sampling: RunSampling
    bounds: Bounds
    context_tokens: Callable[[], int | None]
    keep: Callable[[dict[str, Any]], None] = lambda _: None
    max_rollouts: int = 4096


@dataclass(frozen=True, slots=True)
class _Open:
    opened: Pass
    held: AsyncExitStack
    item_id: str
    item: Any
    seed: int
    ending: asyncio.Lock = field(default_factory=asyncio.Lock)


class StandaloneApp:
    """An ASGI application: the operator's two routes, and the gateway for all others."""

    def __init__(self, passes: Passes, terms: Terms, token: str) -> None:
        self._passes = passes
        self._terms = terms
        self._token = token.encode()
        self._gateway = GatewayApp(passes)
        self._open: dict[str, _Open] = {}
        self._lines: OrderedDict[str, bytes] = OrderedDict()
        self.url = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root, _, rollout = scope.get("path", "").rstrip("/").rpartition("/")
        if scope["type"] != "http" or ROOT not in (root, f"{root}/{rollout}"):
            await self._gateway(scope, receive, send)
            return
        ear = Ear(receive)
        try:
            status, body = await self._operate(scope, ear, rollout if root == ROOT else None)
        except _RefusedError as refused:
            status, body = refused.status, jsontext.dumps({"error": {"message": str(refused)}})
        await send_json(send, status, body, unheard=ear)

    async def close(self) -> None:
        """Give up what is still open."""
        for one in list(self._open.values()):
            one.opened.close()
            await one.held.aclose()
        self._open.clear()

    async def _operate(self, scope: Scope, receive: Receive, rollout: str | None) -> tuple[int, bytes]:
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, token = given.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
            raise _RefusedError(401, "send the operator's token as `Authorization: Bearer TOKEN`")
        body = await _read(receive)
        match scope["method"], rollout:
            case "POST", None:
                return 201, jsontext.dumps(await self._begin(body))
            case "DELETE", str():
                return 200, await self._end(rollout, body)
        raise _RefusedError(404, "there are POST /rollouts and DELETE /rollouts/ID")

    async def _begin(self, body: dict[str, Any]) -> dict[str, Any]:
        terms = self._terms
        if len(self._open) >= terms.max_rollouts:
            raise _RefusedError(429, f"{terms.max_rollouts} rollouts are open; close some with DELETE /rollouts/ID")
        seed = _whole(body, "seed", terms.sampling.seed or 0) % SEED_RANGE
        calls = _whole(body, "calls", terms.bounds.calls or 0)
        held = AsyncExitStack()
        policy = await held.enter_async_context(terms.policy())
        opened = self._passes.open(
            GatewayRollout(
                policy,
                replace(terms.sampling, seed=seed),
                replace(terms.bounds, calls=calls or None),
                model=terms.model,
                context_tokens=terms.context_tokens(),
            )
        )
        self._open[opened.id] = _Open(opened, held, str(body.get("item_id") or opened.id), body.get("item"), seed)
        url = self.url + opened.path
        return {"id": opened.id, "url": url, "base_url": f"{url}/v1", "key": opened.key, "model": terms.model}

    async def _end(self, rollout: str, body: dict[str, Any]) -> bytes:
        if rollout in self._lines:
            return self._lines[rollout]
        one = self._open.get(rollout)
        if one is None:
            raise _RefusedError(404, f"no rollout {rollout} is open here")
        reward = _reward(body)
        async with one.ending:
            return self._lines.get(rollout) or await self._ended(one, reward)

    async def _ended(self, one: _Open, reward: Reward | None) -> bytes:
        """Close it and keep its line; a rollout whose line cannot be kept stays, for another DELETE."""
        one.opened.close()
        await one.opened.rollout.ended()
        record = record_of(_group(one, reward, self._terms.model))
        try:
            self._terms.keep(record)
        except OSError as error:
            raise _RefusedError(
                507, f"the rollout cannot be written: {error}; make room, and send this again"
            ) from None
        await one.held.aclose()
        line = self._lines[one.opened.id] = jsontext.dumps(record) + b"\n"
        del self._open[one.opened.id]
        while len(self._lines) > LINES_KEPT:
            self._lines.popitem(last=False)
        return line


def _group(one: _Open, reward: Reward | None, model: str) -> Group:
    """The rollout as a group of its own."""
    told = one.opened.rollout
    failure = told.verdict()
    if failure is None and reward is None:
        failure = Failure(Whose.VERIFIER, "no_score", "no score was sent with DELETE /rollouts/ID")
    result = told.transcript()
    tokens = told.policy.checked() if isinstance(told.policy, ManagedServer) else Checked()
    scored = reward if failure is None else None
    rollout = Rollout(
        item_id=one.item_id,
        index=0,
        seed=one.seed,
        messages=result.messages,
        score=scored.score if scored else None,
        components=scored.components if scored else {},
        stop_reason=result.stop_reason or StopReason.NATURAL,
        failure=failure,
        turns_used=result.turns_used,
        tool_uses=tuple(result.tool_uses),
        usage=result.usage,
        timings=tuple(result.timings),
        seconds=round(told.seconds, 6),
        sequences=tokens.sequences,
        withheld="no_tokens" if scored and tokens.breaches and not tokens.sequences else None,
        metadata={
            "prompt_length": result.prompt_length,
            "contexts": [context.messages for context in told.contexts],
            **({"breaches": [breach._asdict() for breach in tokens.breaches]} if tokens.breaches else {}),
        },
    )
    versions = {"hermes-rl": __version__, "python": platform.python_version()}
    return Group(
        item_id=one.item_id,
        item=one.item,
        rollouts=(rollout,),
        provenance=Provenance(environment="gateway", environment_hash="", model=model, versions=versions),
        id=uuid.UUID(one.opened.id).hex,
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


def _reward(body: dict[str, Any]) -> Reward | None:
    score, components = body.get("score"), body.get("components") or {}
    if score is None:
        return None
    try:
        return validate_reward(Reward(score, dict(components)))
    except (WorldError, TypeError, ValueError) as error:
        raise _RefusedError(400, f"score and components are finite numbers: {error}") from None


def _whole(body: dict[str, Any], name: str, default: int) -> int:
    value = body.get(name, default)
    if type(value) is not int or value < 0:
        raise _RefusedError(400, f"{name} is a whole number, not {value!r}")
    return value


async def _read(receive: Receive) -> dict[str, Any]:
    parts, more = [], True
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    # Half a body is none: a score may have been in the other half.
                    raise _RefusedError(400, "the connection ended before the body did")
                parts.append(message.get("body", b""))
                more = message.get("more_body", False)
                if sum(map(len, parts)) > LARGEST_BODY:
                    raise _RefusedError(413, f"a body has {LARGEST_BODY} bytes at most")
    except TimeoutError:
        raise _RefusedError(400, f"the body did not arrive within {BODY_SECONDS:g} s") from None
    text = b"".join(parts)
    try:
        body = jsontext.loads(text) if text else {}
    except ValueError as error:
        raise _RefusedError(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise _RefusedError(400, "the body is not a JSON object")
    return body
