"""Reading a request to OpenAI's Responses.

Always true: the items of one answer are read as one message, whether the agent sends them or only names them.
"""

import re
from typing import Any

from hermes_rl.gateway.asked import Asked, BadRequestError
from hermes_rl.gateway.dialects import fields
from hermes_rl.gateway.dialects.chat_requests import only_functions, refuse_schema
from hermes_rl.gateway.dialects.earlier import Earlier
from hermes_rl.gateway.dialects.said import assistant, opened
from hermes_rl.messages import Message

TEXTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
SPEAKERS = {"user": "user", "system": "system", "developer": "system"}
# What only the provider could do or know.
PROVIDERS_OWN = ("background", "conversation", "prompt")
ITEM_ID = re.compile(r"(rs|msg|fc)_hrl_(.+?)_([0-9]{1,4})")
SEALED = "reasoning.encrypted_content"
# What the provider repeats of a request, and what it says of those that were not given.
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


def read(body: Any, earlier: Earlier | None) -> Asked:
    body = fields.mapping(body, "body")
    for field in PROVIDERS_OWN:
        if body.get(field):
            raise BadRequestError("this is not supported with this model", field)
    written = fields.mapping(body.get("text") or {}, "text").get("format")
    if written is not None:
        fields.within(written, "text.format", refuse_schema)
    tools = fields.each(body.get("tools"), "tools", _declared)
    instructions = fields.optional_text(body.get("instructions"), "instructions")
    told: list[Message] = [{"role": "system", "content": instructions}] if instructions else []
    messages = [*told, *_previous(body, earlier), *_Reading(earlier).messages(body.get("input"))]
    if len(messages) == len(told):
        raise BadRequestError("expected at least one item", "input")
    return Asked(
        messages=messages,
        tools=tools,
        stream=fields.flag(body.get("stream"), "stream"),
        model=fields.optional_text(body.get("model"), "model") or "",
        tool_choice=_choice(body.get("tool_choice"), tools),
        max_tokens=fields.count(body.get("max_output_tokens"), "max_output_tokens"),
        keep=body.get("store") is None or fields.flag(body["store"], "store"),
        # Instructions hold for one answer; the next that goes on from it brings its own.
        begin=len(told),
        echo={
            "repeated": {name: other if body.get(name) is None else body[name] for name, other in REPEATED.items()},
            "seal_thinking": SEALED in fields.texts(body.get("include"), "include"),
        },
    )


def _previous(body: dict[str, Any], earlier: Earlier | None) -> list[Message]:
    name = fields.optional_text(body.get("previous_response_id"), "previous_response_id")
    if name is None:
        return []
    kept = earlier.find(name.removeprefix("resp_")) if earlier is not None else None
    if kept is None:
        raise BadRequestError(f"Previous response with id {name!r} not found", "previous_response_id")
    return list(kept.messages)


# --- items ---


class _Reading:
    """Items become messages one after the other; what an assistant said in several of them is gathered."""

    def __init__(self, earlier: Earlier | None) -> None:
        self._earlier = earlier
        self._messages: list[Message] = []
        self._answer: str | None = None
        """The mark of the answer that the assistant's message still open came from, if the items tell."""

    def messages(self, raw: Any) -> list[Message]:
        if isinstance(raw, str):
            return [{"role": "user", "content": raw}]
        fields.each(raw, "input", self._take)
        return self._messages

    def _take(self, item: dict[str, Any]) -> None:
        kind = fields.optional_text(item.get("type"), "type")
        if kind is None:
            # The SDK's own types leave it out in these two.
            kind = "message" if "role" in item else "item_reference"
        match kind:
            case "message":
                self._message(item)
            case "function_call":
                self._say(item, assistant("", "", [_call(item)]))
            case "function_call_output":
                call, output = fields.text(item.get("call_id"), "call_id"), content(item.get("output"), "output")
                self._messages.append({"role": "tool", "tool_call_id": call, "content": output})
            case "reasoning":
                self._say(item, assistant("", _thinking(item)))
            case "item_reference":
                self._say(item, self._named(item))
            case _:
                raise BadRequestError(f"items of type {kind!r} are not supported with this model", "type")

    def _message(self, item: dict[str, Any]) -> None:
        role = fields.text(item.get("role"), "role")
        if role == "assistant":
            self._say(item, assistant(content(item.get("content"), "content", between="")))
        elif role in SPEAKERS:
            self._messages.append({"role": SPEAKERS[role], "content": content(item.get("content"), "content")})
        else:
            raise BadRequestError(f"expected user, assistant, system or developer, but got {role!r}", "role")

    def _say(self, item: dict[str, Any], part: Message) -> None:
        """Join a part of what an assistant said to what came right before it, where both are of one answer."""
        _, answer, _ = _item(item.get("id"))
        last = self._messages[-1] if self._messages else {}
        others = answer is not None and self._answer is not None and answer != self._answer
        if last.get("role") != "assistant" or others or not _follows(last, part):
            self._messages.append(part)
            self._answer = answer
            return
        self._answer = answer or self._answer
        last["content"] += part["content"]
        for field in ("reasoning_content", "tool_calls"):
            if field in part:
                last[field] = last[field] + part[field] if field in last else part[field]

    def _named(self, item: dict[str, Any]) -> Message:
        kind, answer, place = _item(fields.text(item.get("id"), "id"))
        kept = self._earlier.find(answer) if self._earlier is not None and answer is not None else None
        if kept is None:
            raise BadRequestError(f"Item with id {item['id']!r} not found", "id")
        if kind == "fc":
            return assistant("", "", kept.answer.get("tool_calls", [])[place : place + 1])
        return (
            assistant(kept.answer["content"])
            if kind == "msg"
            else assistant("", kept.answer.get("reasoning_content", ""))
        )


def _follows(last: Message, part: Message) -> bool:
    """The order in an answer: thinking, text, calls; a part that would stand before what is there begins another."""
    return bool(part.get("tool_calls")) or (not last["content"] and not last.get("tool_calls"))


def item_id(kind: str, answer: str, place: int = 0) -> str:
    return f"{kind}_hrl_{answer}_{place}"


def _item(name: Any) -> tuple[str, str | None, int]:
    """The kind of an item of ours, the answer it was in, and its place among those of its kind."""
    found = ITEM_ID.fullmatch(name) if isinstance(name, str) else None
    return ("", None, 0) if found is None else (found[1], found[2], int(found[3]))


def content(raw: Any, param: str, between: str = "\n") -> str:
    """Text, or parts of text as a line each; what is no text cannot be shown to the policy."""
    if isinstance(raw, str):
        return raw
    if not isinstance(raw, list):
        raise fields.expected("a string or an array of parts", raw, param)
    return between.join(fields.each(raw, param, _part))


def _part(part: dict[str, Any]) -> str:
    kind = fields.kind(part)
    if kind not in TEXTS:
        raise BadRequestError(f"content of type {kind!r} is not supported: this model reads text only", "type")
    return fields.text(part.get(TEXTS[kind]), TEXTS[kind])


def _call(item: dict[str, Any]) -> dict[str, Any]:
    called = {field: fields.text(item.get(field), field) for field in ("name", "arguments")}
    return {"id": fields.name(item.get("call_id"), "call_id"), "type": "function", "function": called}


def _thinking(item: dict[str, Any]) -> str:
    """What a reasoning item says: in the open, sealed, or at least in short."""
    said = "".join(fields.each(item.get("content"), "content", _thought)) or opened(item.get("encrypted_content"))
    return "".join(fields.each(item.get("summary"), "summary", _thought)) if said is None else said


def _thought(part: dict[str, Any]) -> str:
    return fields.text(part.get("text"), "text")


# --- tools ---


def _declared(tool: dict[str, Any]) -> dict[str, Any]:
    only_functions(tool)
    return fields.function(tool)


def _choice(raw: Any, tools: list[dict[str, Any]]) -> str | dict[str, Any] | None:
    if raw is None or isinstance(raw, str):
        return fields.mode(raw, "tool_choice")
    kind = fields.within(raw, "tool_choice", fields.kind)
    if kind == "function":
        return fields.chosen(fields.name(raw.get("name"), "tool_choice.name"), tools, "tool_choice.name")
    if kind == "allowed_tools":
        return fields.mode(raw.get("mode"), "tool_choice.mode")
    raise BadRequestError(f"a choice of type {kind!r} is not supported with this model", "tool_choice.type")
