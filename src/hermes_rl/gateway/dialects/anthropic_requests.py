"""Parses requests to Anthropic's Messages API."""

from collections.abc import Callable
from typing import Any, TypeVar

from hermes_rl.core.messages import Message
from hermes_rl.gateway.dialects import fields
from hermes_rl.gateway.dialects.reply import arguments_text, assistant_message, unseal
from hermes_rl.gateway.request import AgentRequest, BadRequestError

T = TypeVar("T")
MODES = {"auto": "auto", "any": "required", "none": "none"}
# Features that only the provider could offer, with its own machines and network access.
UNSUPPORTED = ("mcp_servers", "container")


def parse_request(body: Any) -> AgentRequest:
    body = fields.mapping(body, "body")
    for field in UNSUPPORTED:
        if body.get(field):
            raise BadRequestError("this is not supported with this model", field)
    _refuse_schemas(body)
    length = fields.count(body.get("max_tokens"), "max_tokens")
    if length is None:
        raise BadRequestError("Field required", "max_tokens")
    tools = fields.read_each(body.get("tools"), "tools", _tool_schema)
    thinking = fields.mapping(body.get("thinking") or {}, "thinking")
    return AgentRequest(
        messages=[*_system(body.get("system"), "system"), *_messages(body.get("messages"))],
        tools=tools,
        stream=fields.flag(body.get("stream"), "stream"),
        model=fields.optional_text(body.get("model"), "model") or "",
        tool_choice=_choice(body.get("tool_choice"), tools),
        stop=fields.texts(body.get("stop_sequences"), "stop_sequences"),
        max_tokens=length,
        # An agent that did not ask for reasoning would take such a block for the text it expects.
        show_reasoning=thinking.get("type", "disabled") != "disabled",
        echo={"omit_reasoning": thinking.get("display") == "omitted"},
    )


def _refuse_schemas(body: dict[str, Any]) -> None:
    config = fields.mapping(body.get("output_config") or {}, "output_config")
    for param, asked_format in (
        ("output_config.format", config.get("format")),
        ("output_format", body.get("output_format")),
    ):
        if asked_format is not None:
            raise BadRequestError("structured outputs are not supported with this model", param)


# --- messages ---


def _system(raw: Any, param: str) -> list[Message]:
    if raw is None or raw in ("", []):
        return []
    return [{"role": "system", "content": _text(raw, param)}]


def _messages(raw: Any) -> list[Message]:
    messages: list[Message] = []

    def take(sent: dict[str, Any]) -> None:
        role, content = fields.text(sent.get("role"), "role"), sent.get("content")
        if role == "user":
            messages.extend(_user(content))
        elif role == "assistant":
            messages.append(_assistant(content))
        elif role == "system":
            messages.extend(_system(content, "content"))
        else:
            raise BadRequestError(f"expected one of user, assistant, system, but got {role!r}", "role")

    fields.read_each(raw, "messages", take)
    if not messages:
        raise BadRequestError("at least one message is required", "messages")
    if messages[-1]["role"] == "assistant":
        raise BadRequestError(
            "This model does not support assistant message prefill. The conversation must end with a user message",
            "messages",
        )
    return messages


def _user(raw: Any) -> list[Message]:
    """The user's messages and tool results, in order."""
    if isinstance(raw, str):
        return [{"role": "user", "content": raw}]
    messages: list[Message] = []

    def take(block: dict[str, Any]) -> None:
        if fields.kind(block) == "tool_result":
            call = fields.text(block.get("tool_use_id"), "tool_use_id")
            result = _text(block.get("content") or "", "content")
            messages.append({"role": "tool", "tool_call_id": call, "content": result})
        elif messages and messages[-1]["role"] == "user":
            messages[-1]["content"] += "\n" + _block_text(block)
        else:
            messages.append({"role": "user", "content": _block_text(block)})

    _each_block(raw, "content", take)
    if not messages:
        raise BadRequestError("user messages must have non-empty content", "content")
    return messages


def _assistant(raw: Any) -> Message:
    if isinstance(raw, str):
        return assistant_message(raw)
    texts, reasoning, calls = list[str](), list[str](), list[dict[str, Any]]()

    def take(block: dict[str, Any]) -> None:
        kind = fields.kind(block)
        if kind == "thinking":
            reasoning.append(fields.text(block.get("thinking"), "thinking") or unseal(block.get("signature")) or "")
        elif kind == "redacted_thinking":
            reasoning.append(unseal(block.get("data")) or "")
        elif kind == "tool_use":
            calls.append(_call(block))
        else:
            texts.append(_block_text(block))

    _each_block(raw, "content", take)
    return assistant_message("".join(texts), "".join(reasoning), calls)


def _call(block: dict[str, Any]) -> dict[str, Any]:
    arguments = arguments_text(fields.mapping(block.get("input"), "input"))
    called = {"name": fields.text(block.get("name"), "name"), "arguments": arguments}
    return {"id": fields.name(block.get("id"), "id"), "type": "function", "function": called}


def _text(raw: Any, param: str) -> str:
    """Text, or text blocks joined by newlines."""
    return raw if isinstance(raw, str) else "\n".join(_each_block(raw, param, _block_text))


def _each_block(raw: Any, param: str, read_block: Callable[[dict[str, Any]], T]) -> list[T]:
    if not isinstance(raw, list):
        raise fields.expected("a string or an array of blocks", raw, param)
    return fields.read_each(raw, param, read_block)


def _block_text(block: dict[str, Any]) -> str:
    """The text of a block; the policy can only read text."""
    kind = fields.kind(block)
    if kind == "text":
        return fields.text(block.get("text"), "text")
    if kind == "search_result":
        header = [fields.text(block.get(field), field) for field in ("title", "source")]
        return "\n".join([*header, _text(block.get("content"), "content")])
    if kind == "document":
        source = fields.mapping(block.get("source"), "source")
        if source.get("type") == "text":
            return fields.text(source.get("data"), "source.data")
        if source.get("type") == "content":
            return _text(source.get("content"), "source.content")
    raise BadRequestError(f"blocks of type {kind!r} are not supported: this model reads text only", "type")


# --- tools ---


def _tool_schema(tool: dict[str, Any]) -> dict[str, Any]:
    kind = fields.optional_text(tool.get("type"), "type") or "custom"
    if kind != "custom":
        raise BadRequestError(
            f"tools of type {kind!r} are not supported with this model; declare one with an input_schema", "type"
        )
    if tool.get("input_schema") is None:
        raise BadRequestError("Field required", "input_schema")
    return fields.function(tool, "input_schema")


def _choice(raw: Any, tools: list[dict[str, Any]]) -> str | dict[str, Any] | None:
    if raw is None:
        return None
    kind = fields.read_object(raw, "tool_choice", fields.kind)
    if kind == "tool":
        return fields.chosen_tool(fields.name(raw.get("name"), "tool_choice.name"), tools, "tool_choice.name")
    if kind not in MODES:
        raise BadRequestError(f"expected one of auto, any, tool, none, but got {kind!r}", "tool_choice.type")
    return MODES[kind]
