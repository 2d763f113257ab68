"""What spans are called and which attributes they have, after OpenTelemetry's conventions for generative AI.

Always true: a kind of span that is not known here is exported under its own name. The conventions are still in
development (semantic-conventions 1.41 and after); these are the names that hold as of November 2026.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import urlsplit

PORTS = {"http": 80, "https": 443}


class Kind(Enum):
    """By what OpenTelemetry calls it."""

    INTERNAL = "INTERNAL"
    CLIENT = "CLIENT"
    SERVER = "SERVER"


class Told(NamedTuple):
    name: str
    kind: Kind
    attributes: dict[str, Any]


# Of our short names; a name with a dot goes out as it is, all others below `hermes_rl.`.
NAMES = {
    "model": "gen_ai.request.model",
    "provider": "gen_ai.provider.name",
    "temperature": "gen_ai.request.temperature",
    "max_tokens": "gen_ai.request.max_tokens",
    "seed": "gen_ai.request.seed",
    "finish": "gen_ai.response.finish_reasons",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "input": "gen_ai.input.messages",
    "output": "gen_ai.output.messages",
    "tool": "gen_ai.tool.name",
    "call": "gen_ai.tool.call.id",
    "arguments": "gen_ai.tool.call.arguments",
    "result": "gen_ai.tool.call.result",
    "agent": "gen_ai.agent.name",
    "conversation": "gen_ai.conversation.id",
    "score": "gen_ai.evaluation.score.value",
    "method": "http.request.method",
    "route": "http.route",
    "status": "http.response.status_code",
}

# What the values of attributes that come without names are.
FIELDS = {
    "chat": "model provider endpoint temperature max_tokens input_tokens output_tokens finish input output".split(),
    "tool": ["tool", "call"],
    "turn": ["turn"],
}

_CHAT = {"gen_ai.operation.name": "chat"}
_TOOL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.type": "function"}
_AGENT = {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": "hermes-rl"}
_REWARD = {"gen_ai.evaluation.name": "reward"}

_KINDS: Mapping[str, tuple[Kind, Callable[[Mapping[str, Any]], str], Mapping[str, Any]]] = {
    "chat": (Kind.CLIENT, lambda told: f"chat {told.get('model', '')}".rstrip(), _CHAT),
    "tool": (Kind.INTERNAL, lambda told: f"execute_tool {told.get('tool', '')}".rstrip(), _TOOL),
    "rollout": (Kind.INTERNAL, lambda told: f"invoke_agent {told.get('agent', '')}".rstrip(), _AGENT),
    "reward": (Kind.INTERNAL, lambda _: "compute_reward", _REWARD),
    "verify": (Kind.INTERNAL, lambda _: "verify", {}),
    "sandbox": (Kind.INTERNAL, lambda _: "start_sandbox", {}),
    "request": (Kind.SERVER, lambda told: f"{told.get('method', '')} {told.get('route', '')}".strip(), {}),
    "deliver": (Kind.CLIENT, lambda _: "deliver_group", {}),
    "lease": (Kind.CLIENT, lambda _: "lease_batch", {}),
    "acknowledge": (Kind.CLIENT, lambda _: "acknowledge_batch", {}),
    "release": (Kind.CLIENT, lambda _: "release_batch", {}),
    "step": (Kind.INTERNAL, lambda _: "train_step", {}),
}


def told(what: str, attributes: Mapping[str, Any] | Sequence[Any] | None) -> Told:
    """A span as it is exported."""
    if not isinstance(attributes, Mapping):
        attributes = dict(zip(FIELDS.get(what, ()), attributes or (), strict=False))
    kind, name, fixed = _KINDS.get(what, (Kind.INTERNAL, lambda _: what, {}))
    given = {full_name(key): value for key, value in attributes.items() if value is not None}
    if endpoint := given.pop("hermes_rl.endpoint", None):
        # The host and no more: an address may hold a password.
        place = urlsplit(str(endpoint))
        given |= {"server.address": place.hostname or "", "server.port": place.port or PORTS.get(place.scheme, 0)}
    if finish := given.get(NAMES["finish"]):
        given[NAMES["finish"]] = [str(finish)]
    return Told(name(attributes), kind, {**fixed, **given})


def full_name(key: str) -> str:
    return NAMES.get(key) or (key if "." in key else f"hermes_rl.{key}")
