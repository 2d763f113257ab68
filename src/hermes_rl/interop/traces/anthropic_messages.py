"""Anthropic Messages: a logged `request` with its `response`, or a line with `messages` in blocks."""

from collections.abc import Iterable, Mapping
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.interop.traces import calls
from hermes_rl.interop.traces.trace import Event, Place, count, first, items, mapping, rest, text

_READ = frozenset("request response messages tools system".split())
_PROMPT_TOKENS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
_BLOCKS = frozenset("tool_use tool_result thinking redacted_thinking".split())


class AnthropicMessages:
    name = "anthropic"
    about = "Anthropic Messages: request and response, or messages with blocks"
    traces = staticmethod(calls.traces)

    def matches(self, record: Mapping[str, Any]) -> bool:
        request, response = mapping(record.get("request", record)), mapping(record.get("response"))
        messages = [mapping(one) for one in items(request.get("messages"))]
        blocks = [mapping(block) for one in messages for block in items(one.get("content"))]
        return bool(messages) and (
            response.get("type") == "message"
            or "system" in request
            or any(str(block.get("type")) in _BLOCKS for block in blocks)
            or any("input_schema" in mapping(tool) for tool in items(request.get("tools")))
        )

    def events(self, record: Mapping[str, Any], place: Place) -> Iterable[Event]:
        request, response = mapping(record.get("request", record)), mapping(record.get("response"))
        messages = [
            *read_message("system", request.get("system") or []),
            *(said for one in items(request.get("messages")) for said in read_message(one["role"], one["content"])),
        ]
        answer = None
        if "response" in record:
            if response.get("type") != "message":
                raise ValueError("the response has no answer")
            [answer] = read_message("assistant", response.get("content"))
        content = calls.call(
            messages, answer,
            call_id=response.get("id"),
            tools=[
                calls.function_schema(tool.get("name"), tool.get("description"), tool.get("input_schema"))
                for tool in map(mapping, items(request.get("tools")))
            ],
            model=response.get("model") or request.get("model"),
            time=first(record, "time", "timestamp", "created_at"),
            finish=response.get("stop_reason"),
            usage=read_usage(response.get("usage")),
            fields={
                **rest(record, _READ),
                **({"metadata": request["metadata"]} if request.get("metadata") else {}),
            },
        )  # fmt: skip
        named = first(record, "conversation_id", "session_id", "trace_id")
        conversation = str(named) if named else place.key if answer is None else calls.beginning(messages)
        return [Event(conversation, content["time"], content)]


def read_message(role: str, content: Any) -> list[Message]:
    """A message in blocks as messages in OpenAI's form: the results in a user's message come first, each its own."""
    blocks: list[Mapping[str, Any]] = (
        [{"type": "text", "text": content}] if isinstance(content, str) else [mapping(one) for one in items(content)]
    )
    if role == "assistant":
        return [_answer(blocks)]
    if role not in {"user", "system"}:
        raise ValueError(f"a message has the role {role!r}")
    results: list[Message] = [
        {"role": "tool", "tool_call_id": text(block.get("tool_use_id")), "content": _content(block.get("content"))}
        for block in blocks
        if block.get("type") == "tool_result"
    ]
    others = [block for block in blocks if block.get("type") != "tool_result"]
    return [*results, *([{"role": role, "content": _content(others)}] if others else [])]


def read_usage(raw: Any) -> tuple[int | None, int | None]:
    """The tokens of the prompt, those of the cache included, and of the answer."""
    usage = mapping(raw)
    parts = [count(usage.get(name)) for name in _PROMPT_TOKENS]
    known = [part for part in parts if part is not None]
    return sum(known) if known else None, count(usage.get("output_tokens"))


def _answer(blocks: list[Mapping[str, Any]]) -> Message:
    message: Message = {"role": "assistant", "content": _joined(blocks, "text")}
    if reasoning := _joined(blocks, "thinking"):
        message["reasoning_content"] = reasoning
    made = [
        ToolCall.make(text(block.get("name")), _arguments(block.get("input")), text(block.get("id")))
        for block in blocks
        if block.get("type") == "tool_use"
    ]  # fmt: skip
    if made:
        message["tool_calls"] = [one.as_dict() for one in made]
    return message


def _arguments(sent: Any) -> str:
    return fast_json.dumps(sent or {}).decode()


def _joined(blocks: list[Mapping[str, Any]], kind: str) -> str:
    return "".join(text(block.get(kind)) for block in blocks if block.get("type") == kind)


def _content(content: Any) -> Any:
    """Blocks of text as text; with an image, as parts."""
    if not isinstance(content, list):
        return text(content)
    blocks = [mapping(one) for one in content]
    if any(block.get("type") == "image" for block in blocks):
        return [_part(block) for block in blocks]
    return "\n".join(text(block.get("text")) for block in blocks if "text" in block)


def _part(block: Mapping[str, Any]) -> dict[str, Any]:
    if block.get("type") != "image":
        return {"type": "text", "text": text(block.get("text"))}
    source = mapping(block.get("source"))
    url = source.get("url") or f"data:{source.get('media_type')};base64,{source.get('data')}"
    return {"type": "image_url", "image_url": {"url": url}}
