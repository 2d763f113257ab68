"""The standalone gateway, for external harnesses and trainers: rollouts are opened and closed over HTTP.

    POST   /rollouts       {item_id, item, seed, calls}   201 {id, url, base_url, key, model}
    DELETE /rollouts/ID    {score, components}            200 the rollout as a line of a group record

Only the operator's token opens and closes rollouts, and only a rollout's key is answered by the model. Closing one
twice returns the same line twice. A rollout without a score, or with an infrastructure error, is unscored.
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

from hermes_rl.core import fast_json
from hermes_rl.core.errors import Failure, FailureSource, InfrastructureError
from hermes_rl.core.trajectory import Group, Provenance, Reward, Rollout, StopReason, validate_reward
from hermes_rl.gateway.api_keys import ApiKey, ApiKeys
from hermes_rl.gateway.app import BODY_SECONDS, GatewayApp, Scope
from hermes_rl.gateway.asgi_responses import BodyReceiver, Receive, Send, send_json
from hermes_rl.gateway.limits import GatewayLimits
from hermes_rl.gateway.rollout import GatewayPolicy, GatewayRollout
from hermes_rl.gateway.run_sampling import SEED_RANGE, RunSampling
from hermes_rl.inference.managed_server import ManagedServer
from hermes_rl.inference.tokens.token_check import Checked
from hermes_rl.store.records import group_to_record
from hermes_rl.version import __version__

MAX_BODY_BYTES = 2**20
MAX_STORED_LINES = 256
ROOT = "/rollouts"


class _RefusedError(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class RolloutTemplate:
    """Settings of every rollout. `policy` creates what answers one; `save` stores its record before it is returned."""

    policy: Callable[[], AbstractAsyncContextManager[GatewayPolicy]]
    model: str
    sampling: RunSampling
    limits: GatewayLimits
    context_tokens: Callable[[], int | None]
    save: Callable[[dict[str, Any]], None] = lambda _: None
    max_rollouts: int = 4096


@dataclass(frozen=True, slots=True)
class _OpenRollout:
    api_key: ApiKey
    resources: AsyncExitStack
    item_id: str
    item: Any
    seed: int
    closing: asyncio.Lock = field(default_factory=asyncio.Lock)


class StandaloneApp:
    """An ASGI application: the operator's two routes, and the gateway for everything else."""

    def __init__(self, keys: ApiKeys, template: RolloutTemplate, token: str) -> None:
        self._keys = keys
        self._template = template
        self._token = token.encode()
        self._gateway = GatewayApp(keys)
        self._open: dict[str, _OpenRollout] = {}
        self._lines: OrderedDict[str, bytes] = OrderedDict()
        self.url = ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        root, _, rollout = scope.get("path", "").rstrip("/").rpartition("/")
        if scope["type"] != "http" or ROOT not in (root, f"{root}/{rollout}"):
            await self._gateway(scope, receive, send)
            return
        request_body = BodyReceiver(receive)
        try:
            status, body = await self._handle_operator(scope, request_body, rollout if root == ROOT else None)
        except _RefusedError as refused:
            status, body = refused.status, fast_json.dumps({"error": {"message": str(refused)}})
        await send_json(send, status, body, unread=request_body)

    async def close(self) -> None:
        """Abandon all open rollouts."""
        for rollout in list(self._open.values()):
            rollout.api_key.close()
            await rollout.resources.aclose()
        self._open.clear()

    async def _handle_operator(self, scope: Scope, receive: Receive, rollout: str | None) -> tuple[int, bytes]:
        given = dict(scope["headers"]).get(b"authorization", b"")
        scheme, _, token = given.partition(b" ")
        if scheme.lower() != b"bearer" or not hmac.compare_digest(token.strip(), self._token):
            raise _RefusedError(401, "send the operator's token as `Authorization: Bearer TOKEN`")
        body = await _read_body(receive)
        match scope["method"], rollout:
            case "POST", None:
                return 201, fast_json.dumps(await self._open_rollout(body))
            case "DELETE", str():
                return 200, await self._close_rollout(rollout, body)
        raise _RefusedError(404, "the routes are POST /rollouts and DELETE /rollouts/ID")

    async def _open_rollout(self, body: dict[str, Any]) -> dict[str, Any]:
        template = self._template
        if len(self._open) >= template.max_rollouts:
            raise _RefusedError(429, f"{template.max_rollouts} rollouts are open; close some with DELETE /rollouts/ID")
        seed = _integer(body, "seed", template.sampling.seed or 0) % SEED_RANGE
        calls = _integer(body, "calls", template.limits.calls or 0)
        resources = AsyncExitStack()
        policy = await resources.enter_async_context(template.policy())
        api_key = self._keys.open(
            GatewayRollout(
                policy,
                replace(template.sampling, seed=seed),
                replace(template.limits, calls=calls or None),
                model=template.model,
                context_tokens=template.context_tokens(),
            )
        )
        self._open[api_key.id] = _OpenRollout(
            api_key, resources, str(body.get("item_id") or api_key.id), body.get("item"), seed
        )
        url = self.url + api_key.path
        return {"id": api_key.id, "url": url, "base_url": f"{url}/v1", "key": api_key.key, "model": template.model}

    async def _close_rollout(self, rollout: str, body: dict[str, Any]) -> bytes:
        if rollout in self._lines:
            return self._lines[rollout]
        open_rollout = self._open.get(rollout)
        if open_rollout is None:
            raise _RefusedError(404, f"no rollout {rollout} is open here")
        reward = _reward(body)
        async with open_rollout.closing:
            return self._lines.get(rollout) or await self._finish(open_rollout, reward)

    async def _finish(self, open_rollout: _OpenRollout, reward: Reward | None) -> bytes:
        """Close it and store its line; if the line cannot be stored the rollout stays open, for another DELETE."""
        open_rollout.api_key.close()
        await open_rollout.api_key.rollout.wait_closed()
        record = group_to_record(_group(open_rollout, reward, self._template.model))
        try:
            self._template.save(record)
        except OSError as error:
            raise _RefusedError(
                507, f"the rollout cannot be written: {error}; free some disk space and send this again"
            ) from None
        await open_rollout.resources.aclose()
        line = self._lines[open_rollout.api_key.id] = fast_json.dumps(record) + b"\n"
        del self._open[open_rollout.api_key.id]
        while len(self._lines) > MAX_STORED_LINES:
            self._lines.popitem(last=False)
        return line


def _group(open_rollout: _OpenRollout, reward: Reward | None, model: str) -> Group:
    """The rollout as a group of one."""
    gateway_rollout = open_rollout.api_key.rollout
    failure = gateway_rollout.final_failure()
    if failure is None and reward is None:
        failure = Failure(FailureSource.VERIFIER, "no_score", "no score was sent with DELETE /rollouts/ID")
    result = gateway_rollout.transcript()
    tokens = gateway_rollout.policy.checked() if isinstance(gateway_rollout.policy, ManagedServer) else Checked()
    scored = reward if failure is None else None
    rollout = Rollout(
        item_id=open_rollout.item_id,
        index=0,
        seed=open_rollout.seed,
        messages=result.messages,
        score=scored.score if scored else None,
        components=scored.components if scored else {},
        stop_reason=result.stop_reason or StopReason.NATURAL,
        failure=failure,
        turns_used=result.turns_used,
        tool_uses=tuple(result.tool_uses),
        usage=result.usage,
        timings=tuple(result.timings),
        seconds=round(gateway_rollout.seconds, 6),
        sequences=tokens.sequences,
        withheld="no_tokens" if scored and tokens.breaches and not tokens.sequences else None,
        metadata={
            "prompt_length": result.prompt_length,
            "contexts": [context.messages for context in gateway_rollout.conversations],
            **({"breaches": [breach._asdict() for breach in tokens.breaches]} if tokens.breaches else {}),
        },
    )
    versions = {"hermes-rl": __version__, "python": platform.python_version()}
    return Group(
        item_id=open_rollout.item_id,
        item=open_rollout.item,
        rollouts=(rollout,),
        provenance=Provenance(environment="gateway", environment_hash="", model=model, versions=versions),
        id=uuid.UUID(open_rollout.api_key.id).hex,
        created_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
    )


def _reward(body: dict[str, Any]) -> Reward | None:
    score, components = body.get("score"), body.get("components") or {}
    if score is None:
        return None
    try:
        return validate_reward(Reward(score, dict(components)))
    except (InfrastructureError, TypeError, ValueError) as error:
        raise _RefusedError(400, f"score and components must be finite numbers: {error}") from None


def _integer(body: dict[str, Any], name: str, default: int) -> int:
    value = body.get(name, default)
    if type(value) is not int or value < 0:
        raise _RefusedError(400, f"{name} must be a whole number, not {value!r}")
    return value


async def _read_body(receive: Receive) -> dict[str, Any]:
    parts, more = [], True
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while more:
                message = await receive()
                if message["type"] != "http.request":
                    # Refuse a partial body: the missing part may have held the score.
                    raise _RefusedError(400, "the connection ended before the body did")
                parts.append(message.get("body", b""))
                more = message.get("more_body", False)
                if sum(map(len, parts)) > MAX_BODY_BYTES:
                    raise _RefusedError(413, f"the body is larger than the limit of {MAX_BODY_BYTES} bytes")
    except TimeoutError:
        raise _RefusedError(400, f"the body did not arrive within {BODY_SECONDS:g} s") from None
    text = b"".join(parts)
    try:
        body = fast_json.loads(text) if text else {}
    except ValueError as error:
        raise _RefusedError(400, f"the body is not JSON: {error}") from None
    if not isinstance(body, dict):
        raise _RefusedError(400, "the body is not a JSON object")
    return body
