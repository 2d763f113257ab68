"""Span names and attributes, after OpenTelemetry's conventions for generative AI.

Always true: an unknown operation is exported under its own name. The conventions are still in development
(semantic-conventions 1.41 and later); these names are valid as of November 2026.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple
from urllib.parse import urlsplit

DEFAULT_PORTS = {"http": 80, "https": 443}


class SpanKind(Enum):
    """OpenTelemetry's names."""

    INTERNAL = "INTERNAL"
    CLIENT = "CLIENT"
    SERVER = "SERVER"


class SpanAttributes(NamedTuple):
    name: str
    kind: SpanKind
    attributes: dict[str, Any]


# Short names. A name with a dot is exported as is, any other under `hermes_rl.`.
ATTRIBUTE_NAMES = {
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

# Names of attributes that are passed as bare values.
FIELDS = {
    "chat": "model provider endpoint temperature max_tokens input_tokens output_tokens finish input output".split(),
    "tool": ["tool", "call"],
    "turn": ["turn"],
}

_CHAT = {"gen_ai.operation.name": "chat"}
_TOOL = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.type": "function"}
_AGENT = {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": "hermes-rl"}
_REWARD = {"gen_ai.evaluation.name": "reward"}

_KINDS: Mapping[str, tuple[SpanKind, Callable[[Mapping[str, Any]], str], Mapping[str, Any]]] = {
    "chat": (SpanKind.CLIENT, lambda given: f"chat {given.get('model', '')}".rstrip(), _CHAT),
    "tool": (SpanKind.INTERNAL, lambda given: f"execute_tool {given.get('tool', '')}".rstrip(), _TOOL),
    "rollout": (SpanKind.INTERNAL, lambda given: f"invoke_agent {given.get('agent', '')}".rstrip(), _AGENT),
    "reward": (SpanKind.INTERNAL, lambda _: "compute_reward", _REWARD),
    "verify": (SpanKind.INTERNAL, lambda _: "verify", {}),
    "sandbox": (SpanKind.INTERNAL, lambda _: "start_sandbox", {}),
    "request": (SpanKind.SERVER, lambda given: f"{given.get('method', '')} {given.get('route', '')}".strip(), {}),
    "deliver": (SpanKind.CLIENT, lambda _: "deliver_group", {}),
    "lease": (SpanKind.CLIENT, lambda _: "lease_batch", {}),
    "acknowledge": (SpanKind.CLIENT, lambda _: "acknowledge_batch", {}),
    "release": (SpanKind.CLIENT, lambda _: "release_batch", {}),
    "step": (SpanKind.INTERNAL, lambda _: "train_step", {}),
}


def span_attributes(operation: str, attributes: Mapping[str, Any] | Sequence[Any] | None) -> SpanAttributes:
    """The exported name, kind and attributes of a span."""
    if not isinstance(attributes, Mapping):
        attributes = dict(zip(FIELDS.get(operation, ()), attributes or (), strict=False))
    kind, name, fixed = _KINDS.get(operation, (SpanKind.INTERNAL, lambda _: operation, {}))
    given = {full_name(key): value for key, value in attributes.items() if value is not None}
    if endpoint := given.pop("hermes_rl.endpoint", None):
        # Only the host: an address may contain a password.
        url = urlsplit(str(endpoint))
        given |= {
            "server.address": url.hostname or "",
            "server.port": url.port or DEFAULT_PORTS.get(url.scheme, 0),
        }
    if finish := given.get(ATTRIBUTE_NAMES["finish"]):
        given[ATTRIBUTE_NAMES["finish"]] = [str(finish)]
    return SpanAttributes(name(attributes), kind, {**fixed, **given})


def full_name(key: str) -> str:
    return ATTRIBUTE_NAMES.get(key) or (key if "." in key else f"hermes_rl.{key}")
