"""The standalone gateway, for external harnesses and trainers: rollouts are opened and closed over HTTP.

    POST   /rollouts       {item_id, item, seed, calls, split, group, group_size}   201 {id, url, base_url, key, model}
    DELETE /rollouts/ID    {score, components}                                      200 a line of a group record

Only the operator's token opens and closes rollouts, and only a rollout's key is answered by the model. Closing one
twice returns the same line twice. A rollout without a score, or with an infrastructure error, is unscored. The line of
a group's last rollout has all of them and is stored; the lines before have one. A group that is incomplete when the
gateway stops is stored as withheld.
"""

import asyncio
import hmac
import platform
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import Failure, FailureSource, InfrastructureError
from hermes_rl.core.messages import tool_name
from hermes_rl.core.trajectory import (
    TOOL_SCHEMAS,
    Group,
    Provenance,
    Reward,
    Rollout,
    StopReason,
    merge_schemas,
    validate_reward,
)
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
SPLITS = ("train", "eval")


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


@dataclass(slots=True)
class _OpenGroup:
    """One line: the rollouts of a group by their index. `name` is the operator's; without one, it has one rollout."""

    id: str
    name: str | None
    size: int
    split: str
    item_id: str
    item: Any
    opened: int = 0
    closed: dict[int, Rollout] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _OpenRollout:
    api_key: ApiKey
    resources: AsyncExitStack
    group: _OpenGroup
    index: int
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
        self._groups: dict[str, _OpenGroup] = {}
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
        """Abandon all open rollouts, and store the groups that have closed ones."""
        for rollout in list(self._open.values()):
            rollout.api_key.close()
            await rollout.resources.aclose()
        self._open.clear()
        for group in self._groups.values():
            if group.closed:
                self._template.save(group_to_record(_record_group(group, group.closed, self._template.model)))
        self._groups.clear()

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
        calls = _integer(body, "calls", template.limits.calls or 0)
        seed = _integer(body, "seed", template.sampling.seed or 0) % SEED_RANGE
        resources = AsyncExitStack()
        policy = await resources.enter_async_context(template.policy())
        try:
            group = self._group_for(body)
        except _RefusedError:
            await resources.aclose()
            raise
        index, group.opened = group.opened, group.opened + 1
        if group.name is not None and "seed" not in body:
            # With one seed, all rollouts of a group would be the same.
            digest = sha256(f"{seed}/{group.name}/{index}".encode()).digest()
            seed = int.from_bytes(digest[:8]) % SEED_RANGE
        api_key = self._keys.open(
            GatewayRollout(
                policy,
                replace(template.sampling, seed=seed, split=group.split),
                replace(template.limits, calls=calls or None),
                model=template.model,
                context_tokens=template.context_tokens(),
            )
        )
        group.id, group.item_id = group.id or api_key.id, group.item_id or api_key.id
        self._open[api_key.id] = _OpenRollout(api_key, resources, group, index, seed)
        url = self.url + api_key.path
        return {"id": api_key.id, "url": url, "base_url": f"{url}/v1", "key": api_key.key, "model": template.model}

    def _group_for(self, body: dict[str, Any]) -> _OpenGroup:
        """The group that a new rollout belongs to: one that is open, or a new one."""
        split, name, item_id = body.get("split", "train"), body.get("group"), str(body.get("item_id") or "")
        if split not in SPLITS:
            raise _RefusedError(400, f"split must be {' or '.join(SPLITS)}, not {split!r}")
        if name is None:
            return _OpenGroup("", None, 1, split, item_id, body.get("item"))
        size = _integer(body, "group_size", 0)
        if not isinstance(name, str) or not name or size < 1:
            raise _RefusedError(400, "a group has a name and a group_size, the number of its rollouts")
        new = _OpenGroup(uuid.uuid4().hex, name, size, split, item_id or name, body.get("item"))
        group = self._groups.setdefault(name, new)
        if group.opened >= group.size:
            raise _RefusedError(409, f"group {name} has {group.size} rollouts, and all of them were opened")
        for field_name in ("size", "split", "item_id", "item"):
            given, known = getattr(new, field_name), getattr(group, field_name)
            if given != known:
                raise _RefusedError(409, f"group {name} was opened with {field_name} {known!r}, not {given!r}")
        return group

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
        group, index = open_rollout.group, open_rollout.index
        group.closed[index] = _rollout(open_rollout, reward)
        complete = len(group.closed) == group.size
        shown = group.closed if complete else {index: group.closed[index]}
        record = group_to_record(_record_group(group, shown, self._template.model))
        try:
            if complete:
                self._template.save(record)
        except OSError as error:
            del group.closed[index]
            raise _RefusedError(
                507, f"the rollout cannot be written: {error}; free some disk space and send this again"
            ) from None
        if complete and group.name is not None:
            del self._groups[group.name]
        await open_rollout.resources.aclose()
        line = self._lines[open_rollout.api_key.id] = fast_json.dumps(record) + b"\n"
        del self._open[open_rollout.api_key.id]
        while len(self._lines) > MAX_STORED_LINES:
            self._lines.popitem(last=False)
        return line


def _rollout(open_rollout: _OpenRollout, reward: Reward | None) -> Rollout:
    gateway_rollout = open_rollout.api_key.rollout
    failure = gateway_rollout.final_failure()
    if failure is None and reward is None:
        failure = Failure(FailureSource.VERIFIER, "no_score", "no score was sent with DELETE /rollouts/ID")
    result = gateway_rollout.transcript()
    tokens = gateway_rollout.policy.checked() if isinstance(gateway_rollout.policy, ManagedServer) else Checked()
    scored = reward if failure is None else None
    return Rollout(
        item_id=open_rollout.group.item_id,
        index=open_rollout.index,
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
            **({TOOL_SCHEMAS: result.tool_schemas} if result.tool_schemas else {}),
            **({"breaches": [breach._asdict() for breach in tokens.breaches]} if tokens.breaches else {}),
        },
    )


def _record_group(group: _OpenGroup, closed: Mapping[int, Rollout], model: str) -> Group:
    """The group with these of its rollouts."""
    schemas, rollouts = merge_schemas((), [closed[index] for index in sorted(closed)])
    versions = {"hermes-rl": __version__, "python": platform.python_version()}
    return Group(
        item_id=group.item_id,
        item=group.item,
        rollouts=tuple(rollouts),
        provenance=Provenance(environment="gateway", environment_hash="", model=model, versions=versions),
        tools=tuple(sorted(map(tool_name, schemas))),
        tool_schemas=tuple(schemas),
        split=group.split,
        id=group.id,
        withheld=None if len(rollouts) == group.size else "too_few_scored",
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
