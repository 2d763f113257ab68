"""Parses requests to OpenAI's Responses API.

The items of one answer are read as one message, whether the agent sends them or only refers to them.
"""

import re
from typing import Any

from hermes_rl.core.messages import Message
from hermes_rl.gateway.dialects import fields
from hermes_rl.gateway.dialects.chat_requests import only_functions, refuse_schema
from hermes_rl.gateway.dialects.previous_responses import PreviousResponses
from hermes_rl.gateway.dialects.reply import assistant_message, unseal
from hermes_rl.gateway.request import AgentRequest, BadRequestError

TEXT_FIELDS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
ROLES = {"user": "user", "system": "system", "developer": "system"}
# Features that only the provider could offer.
UNSUPPORTED = ("background", "conversation", "prompt")
ITEM_ID = re.compile(r"(rs|msg|fc)_hrl_(.+?)_([0-9]{1,4})")
INCLUDE_ENCRYPTED = "reasoning.encrypted_content"
# Request fields that the provider repeats in its answer, with their values when they were not given.
REPEATED: dict[str, Any] = {
    "instructions": None,
    "max_output_tokens": None,
    "metadata": {},
    "parallel_tool_calls": True,
    "previous_response_id": None,
    "reasoning": {"effort": None, "summary": None},
    "store": True,
    "temperature": 1.0,
    "text": {"format": {"type": "text"}},
    "tool_choice": "auto",
    "tools": [],
    "top_p": 1.0,
    "truncation": "disabled",
    "user": None,
}


def parse_request(body: Any, previous: PreviousResponses | None) -> AgentRequest:
    body = fields.mapping(body, "body")
    for field in UNSUPPORTED:
        if body.get(field):
            raise BadRequestError("this is not supported with this model", field)
    written = fields.mapping(body.get("text") or {}, "text").get("format")
    if written is not None:
        fields.read_object(written, "text.format", refuse_schema)
    tools = fields.read_each(body.get("tools"), "tools", _tool_schema)
    instructions = fields.optional_text(body.get("instructions"), "instructions")
    system: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    messages = [*system, *_previous(body, previous), *_RequestReader(previous).messages(body.get("input"))]
    if len(messages) == len(system):
        raise BadRequestError("expected at least one item", "input")
    return AgentRequest(
        messages=messages,
        tools=tools,
        stream=fields.flag(body.get("stream"), "stream"),
        model=fields.optional_text(body.get("model"), "model") or "",
        tool_choice=_choice(body.get("tool_choice"), tools),
        max_tokens=fields.count(body.get("max_output_tokens"), "max_output_tokens"),
        storable=body.get("store") is None or fields.flag(body["store"], "store"),
        # Instructions apply to one answer; a request that continues from it brings its own.
        begin=len(system),
        echo={
            "repeated": {name: other if body.get(name) is None else body[name] for name, other in REPEATED.items()},
            "seal_reasoning": INCLUDE_ENCRYPTED in fields.texts(body.get("include"), "include"),
        },
    )


def _previous(body: dict[str, Any], previous: PreviousResponses | None) -> list[Message]:
    name = fields.optional_text(body.get("previous_response_id"), "previous_response_id")
    if name is None:
        return []
    response = previous.find(name.removeprefix("resp_")) if previous is not None else None
    if response is None:
        raise BadRequestError(f"Previous response with id {name!r} not found", "previous_response_id")
    return list(response.messages)


# --- items ---


class _RequestReader:
    """Turns items into messages; consecutive assistant items of one answer are joined."""

    def __init__(self, previous: PreviousResponses | None) -> None:
        self._earlier = previous
        self._messages: list[Message] = []
        self._answer: str | None = None
        """The id of the answer that the current assistant message came from, if known."""

    def messages(self, raw: Any) -> list[Message]:
        if isinstance(raw, str):
            return [{"role": "user", "content": raw}]
        fields.read_each(raw, "input", self._take)
        return self._messages

    def _take(self, item: dict[str, Any]) -> None:
        kind = fields.optional_text(item.get("type"), "type")
        if kind is None:
            # The SDK's types omit it for these two.
            kind = "message" if "role" in item else "item_reference"
        match kind:
            case "message":
                self._message(item)
            case "function_call":
                self._say(item, assistant_message("", "", [_call(item)]))
            case "function_call_output":
                call, output = fields.text(item.get("call_id"), "call_id"), content(item.get("output"), "output")
                self._messages.append({"role": "tool", "tool_call_id": call, "content": output})
            case "reasoning":
                self._say(item, assistant_message("", _reasoning(item)))
            case "item_reference":
                self._say(item, self._named(item))
            case _:
                raise BadRequestError(f"items of type {kind!r} are not supported with this model", "type")

    def _message(self, item: dict[str, Any]) -> None:
        role = fields.text(item.get("role"), "role")
        if role == "assistant":
            self._say(item, assistant_message(content(item.get("content"), "content", between="")))
        elif role in ROLES:
            self._messages.append({"role": ROLES[role], "content": content(item.get("content"), "content")})
        else:
            raise BadRequestError(f"expected user, assistant, system or developer, but got {role!r}", "role")

    def _say(self, item: dict[str, Any], part: Message) -> None:
        """Join part of an assistant message to the previous one, if both belong to one answer."""
        _, answer, _ = _parse_item_id(item.get("id"))
        last = self._messages[-1] if self._messages else {}
        others = answer is not None and self._answer is not None and answer != self._answer
        if last.get("role") != "assistant" or others or not _can_follow(last, part):
            self._messages.append(part)
            self._answer = answer
            return
        self._answer = answer or self._answer
        last["content"] += part["content"]
        for field in ("reasoning_content", "tool_calls"):
            if field in part:
                last[field] = last[field] + part[field] if field in last else part[field]

    def _named(self, item: dict[str, Any]) -> Message:
        kind, answer, index = _parse_item_id(fields.text(item.get("id"), "id"))
        response = self._earlier.find(answer) if self._earlier is not None and answer is not None else None
        if response is None:
            raise BadRequestError(f"Item with id {item['id']!r} not found", "id")
        if kind == "fc":
            return assistant_message("", "", response.answer.get("tool_calls", [])[index : index + 1])
        if kind == "msg":
            return assistant_message(response.answer["content"])
        return assistant_message("", response.answer.get("reasoning_content", ""))


def _can_follow(last: Message, part: Message) -> bool:
    """Whether a part can follow in one answer, in the order reasoning, text, calls; otherwise it starts another."""
    return bool(part.get("tool_calls")) or (not last["content"] and not last.get("tool_calls"))


def item_id(kind: str, answer: str, index: int = 0) -> str:
    return f"{kind}_hrl_{answer}_{index}"


def _parse_item_id(name: Any) -> tuple[str, str | None, int]:
    """The kind of one of our items, the answer it was in, and its index among those of its kind."""
    found = ITEM_ID.fullmatch(name) if isinstance(name, str) else None
    return ("", None, 0) if found is None else (found[1], found[2], int(found[3]))


def content(raw: Any, param: str, between: str = "\n") -> str:
    """Text, or text parts joined by `between`; the policy can only read text."""
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        raise fields.expected("a string or an array of parts", raw, param)
    return between.join(fields.read_each(raw, param, _part))


def _part(part: dict[str, Any]) -> str:
    kind = fields.kind(part)
    if kind not in TEXT_FIELDS:
        raise BadRequestError(f"content of type {kind!r} is not supported: this model reads text only", "type")
    return fields.text(part.get(TEXT_FIELDS[kind]), TEXT_FIELDS[kind])


def _call(item: dict[str, Any]) -> dict[str, Any]:
    called = {field: fields.text(item.get(field), field) for field in ("name", "arguments")}
    return {"id": fields.name(item.get("call_id"), "call_id"), "type": "function", "function": called}


def _reasoning(item: dict[str, Any]) -> str:
    """The text of a reasoning item: plain, sealed, or at least its summary."""
    text = "".join(fields.read_each(item.get("content"), "content", _text_field)) or unseal(
        item.get("encrypted_content")
    )
    return "".join(fields.read_each(item.get("summary"), "summary", _text_field)) if text is None else text


def _text_field(part: dict[str, Any]) -> str:
    return fields.text(part.get("text"), "text")


# --- tools ---


def _tool_schema(tool: dict[str, Any]) -> dict[str, Any]:
    only_functions(tool)
    return fields.function(tool)


def _choice(raw: Any, tools: list[dict[str, Any]]) -> str | dict[str, Any] | None:
    if raw is None or isinstance(raw, str):
        return fields.mode(raw, "tool_choice")
    kind = fields.read_object(raw, "tool_choice", fields.kind)
    if kind == "function":
        return fields.chosen_tool(fields.name(raw.get("name"), "tool_choice.name"), tools, "tool_choice.name")
    if kind == "allowed_tools":
        return fields.mode(raw.get("mode"), "tool_choice.mode")
    raise BadRequestError(f"a choice of type {kind!r} is not supported with this model", "tool_choice.type")
