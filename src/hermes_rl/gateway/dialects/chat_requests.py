"""Parses requests to OpenAI's Chat Completions API."""

from collections.abc import Callable, Sequence
from typing import Any

from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.gateway.dialects import fields
from hermes_rl.gateway.dialects.previous_responses import PreviousResponses
from hermes_rl.gateway.dialects.reply import assistant_message
from hermes_rl.gateway.request import AgentRequest, BadRequestError

MAX_CHOICES = 16
MAX_STOPS = 4
# Features that only the provider could offer, with its network access or another kind of model.
UNSUPPORTED = ("web_search_options", "audio")


def parse_request(body: Any, previous: PreviousResponses | None) -> AgentRequest:
    body = fields.mapping(body, "body")
    _refuse_unsupported(body)
    functions = body.get("functions") is not None and body.get("tools") is None
    tools = fields.read_each(body.get("functions"), "functions", fields.function) if functions else _tools(body)
    options = fields.mapping(body.get("stream_options") or {}, "stream_options")
    stops = fields.texts(body.get("stop"), "stop")
    if len(stops) > MAX_STOPS:
        raise BadRequestError(f"expected at most {MAX_STOPS} stop sequences, but got {len(stops)}", "stop")
    length = "max_completion_tokens" if body.get("max_completion_tokens") is not None else "max_tokens"
    return AgentRequest(
        messages=_messages(body.get("messages"), previous),
        tools=tools,
        stream=fields.flag(body.get("stream"), "stream"),
        model=fields.optional_text(body.get("model"), "model") or "",
        want_usage=fields.flag(options.get("include_usage"), "stream_options.include_usage"),
        tool_choice=_legacy_choice(body.get("function_call"), tools) if functions else _choice(body, tools),
        stop=stops,
        n=fields.count(body.get("n"), "n", maximum=MAX_CHOICES) or 1,
        max_tokens=fields.count(body.get(length), length),
        # A legacy function call has no id; the answer is stored to find it.
        storable=functions,
        echo={"functions": True} if functions else {},
    )


def _refuse_unsupported(body: dict[str, Any]) -> None:
    for field in UNSUPPORTED:
        if body.get(field) is not None:
            raise BadRequestError("this is not supported with this model", field)
    if "audio" in fields.texts(body.get("modalities"), "modalities"):
        raise BadRequestError("this model answers with text only", "modalities")
    if body.get("response_format") is not None:
        fields.read_object(body["response_format"], "response_format", refuse_schema)


def refuse_schema(asked_format: dict[str, Any]) -> None:
    """Refuse a schema: it is not in the prompt, and enforcing it would change the sampling distribution."""
    kind = fields.kind(asked_format)
    if kind not in {"text", "json_object"}:
        raise BadRequestError(f"a format of type {kind!r} is not supported with this model", "type")


# --- messages ---


def _messages(raw: Any, previous: PreviousResponses | None) -> list[Message]:
    messages: list[Message] = []

    def take(sent: dict[str, Any]) -> None:
        role = fields.text(sent.get("role"), "role")
        reader = READERS.get(role)
        if reader is None:
            raise BadRequestError(f"expected one of {', '.join(READERS)}, but got {role!r}", "role")
        message = reader(sent, messages, previous)
        named = fields.optional_text(sent.get("name"), "name")
        if named:
            message["name"] = named
        messages.append(message)

    fields.read_each(raw, "messages", take)
    if not messages:
        raise BadRequestError("expected at least one message", "messages")
    return messages


Reader = Callable[[dict[str, Any], Sequence[Message], PreviousResponses | None], Message]


def _system(sent: dict[str, Any], _: Sequence[Message], __: PreviousResponses | None) -> Message:
    return {"role": "system", "content": content(sent.get("content"))}


def _user(sent: dict[str, Any], _: Sequence[Message], __: PreviousResponses | None) -> Message:
    return {"role": "user", "content": content(sent.get("content"))}


def _tool(sent: dict[str, Any], _: Sequence[Message], __: PreviousResponses | None) -> Message:
    call = fields.text(sent.get("tool_call_id"), "tool_call_id")
    return {"role": "tool", "tool_call_id": call, "content": content(sent.get("content"))}


def _function(sent: dict[str, Any], before: Sequence[Message], _: PreviousResponses | None) -> Message:
    """The result of a legacy function, which belongs to the call before it."""
    calls = before[-1].get("tool_calls") if before else None
    if not calls:
        raise BadRequestError("a function's result must follow the message that calls it", "role")
    return {"role": "tool", "tool_call_id": calls[-1]["id"], "content": content(sent.get("content") or "")}


def _assistant(sent: dict[str, Any], before: Sequence[Message], previous: PreviousResponses | None) -> Message:
    text = sent.get("content")
    if text is None:
        text = fields.optional_text(sent.get("refusal"), "refusal")
    calls = fields.read_each(sent.get("tool_calls"), "tool_calls", _call)
    if sent.get("function_call") is not None and not calls:
        name, arguments = fields.read_object(sent["function_call"], "function_call", _named)
        known = previous.call_id(before, name, arguments) if previous is not None else None
        calls = [ToolCall.make(name, arguments, known or f"call_{len(before)}").as_dict()]
    return assistant_message("" if text is None else content(text, between=""), _reasoning(sent), calls)


READERS: dict[str, Reader] = {
    "system": _system,
    "developer": _system,
    "user": _user,
    "assistant": _assistant,
    "tool": _tool,
    "function": _function,
}


def content(raw: Any, between: str = "\n") -> str:
    """Text, or text parts joined by `between`; the policy can only read text."""
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        raise fields.expected("a string or an array of parts", raw, "content")
    return between.join(fields.read_each(raw, "content", _part))


def _part(part: dict[str, Any]) -> str:
    kind = fields.kind(part)
    if kind not in {"text", "refusal"}:
        raise BadRequestError(f"content of type {kind!r} is not supported: this model reads text only", "type")
    return fields.text(part.get(kind), kind)


def _call(call: dict[str, Any]) -> dict[str, Any]:
    if call.get("type", "function") != "function":
        raise BadRequestError("only calls of type 'function' are supported with this model", "type")
    name, arguments = fields.read_object(call.get("function"), "function", _named)
    call_id = fields.name(call.get("id"), "id")
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _named(called: dict[str, Any]) -> tuple[str, str]:
    return fields.text(called.get("name"), "name"), fields.text(called.get("arguments"), "arguments")


def _reasoning(sent: dict[str, Any]) -> str:
    """Reasoning from any of the fields that agents use for it."""
    for field in ("reasoning_content", "reasoning"):
        if sent.get(field):
            return fields.text(sent[field], field)
    details = sent.get("reasoning_details")
    texts = [detail.get("text") for detail in details if isinstance(detail, dict)] if isinstance(details, list) else []
    return "".join(text for text in texts if isinstance(text, str))


# --- tools ---


def _tools(body: dict[str, Any]) -> list[dict[str, Any]]:
    return fields.read_each(body.get("tools"), "tools", _tool_schema)


def _tool_schema(tool: dict[str, Any]) -> dict[str, Any]:
    only_functions(tool)
    return fields.read_object(tool.get("function"), "function", fields.function)


def only_functions(tool: dict[str, Any]) -> None:
    kind = fields.kind(tool)
    if kind != "function":
        raise BadRequestError(f"tools of type {kind!r} are not supported with this model; declare a function", "type")


def _choice(body: dict[str, Any], tools: list[dict[str, Any]]) -> str | dict[str, Any] | None:
    choice = body.get("tool_choice")
    if choice is None or isinstance(choice, str):
        return fields.mode(choice, "tool_choice")
    kind = fields.read_object(choice, "tool_choice", fields.kind)
    if kind == "function":
        name = fields.read_object(choice.get("function"), "tool_choice.function", _name)
        return fields.chosen_tool(name, tools, "tool_choice")
    if kind == "allowed_tools":
        return fields.read_object(choice.get("allowed_tools"), "tool_choice.allowed_tools", _mode)
    raise BadRequestError(f"a choice of type {kind!r} is not supported with this model", "tool_choice.type")


def _legacy_choice(choice: Any, tools: list[dict[str, Any]]) -> str | dict[str, Any] | None:
    if choice is None or isinstance(choice, str):
        return fields.mode(choice, "function_call")
    return fields.chosen_tool(fields.read_object(choice, "function_call", _name), tools, "function_call")


def _name(named: dict[str, Any]) -> str:
    return fields.name(named.get("name"), "name")


def _mode(allowed: dict[str, Any]) -> str | None:
    return fields.mode(allowed.get("mode"), "mode")
