"""OpenAI chat JSONL: a line with `messages` (as for fine-tuning), or a logged `request` with its `response`."""

from collections.abc import Iterable, Mapping
from typing import Any

from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.interop.traces import calls
from hermes_rl.interop.traces.trace import Event, Place, first, items, mapping, rest, text

_READ = frozenset("request response messages tools".split())
_ROLES = frozenset("system developer user assistant tool function".split())


class OpenAIChat:
    name = "openai"
    about = "OpenAI chat JSONL: messages, or request and response"
    traces = staticmethod(calls.traces)

    def matches(self, record: Mapping[str, Any]) -> bool:
        request = mapping(record.get("request", record))
        messages = items(request.get("messages"))
        return bool(messages) and all(str(mapping(one).get("role")) in _ROLES for one in messages)

    def events(self, record: Mapping[str, Any], place: Place) -> Iterable[Event]:
        request = mapping(record.get("request", record))
        messages = read_messages(request.get("messages"))
        response = mapping(record.get("response"))
        choice = mapping(next(iter(items(mapping(response.get("body", response)).get("choices"))), None))
        answer = read_message(choice["message"]) if choice.get("message") else None
        if "response" in record and answer is None:
            raise ValueError("the response has no answer")
        usage = mapping(response.get("usage"))
        content = calls.call(
            messages, answer,
            call_id=response.get("id"),
            tools=request.get("tools") or old_functions(request.get("functions")),
            model=first(response, "model") or request.get("model"),
            time=first(record, "time", "timestamp", "created_at"),
            finish=choice.get("finish_reason"),
            usage=(usage.get("prompt_tokens"), usage.get("completion_tokens")),
            fields=rest(record, _READ),
        )  # fmt: skip
        named = first(record, "conversation_id", "session_id", "trace_id")
        conversation = str(named) if named else place.key if answer is None else calls.beginning(messages)
        return [Event(conversation, content["time"], content)]


def read_messages(raw: Any) -> list[Message]:
    return [read_message(one) for one in items(raw)]


def read_message(raw: Any) -> Message:
    """A message in OpenAI's form as ours; ValueError for anything else."""
    sent = mapping(raw)
    role = sent.get("role")
    if role not in _ROLES:
        raise ValueError(f"a message has the role {role!r}")
    content = sent.get("content")
    if not isinstance(content, str | list | None):
        raise ValueError(  # noqa: TRY004 - a malformed record, like all others
            f"the content of a message is {type(content).__name__}, not text or parts"
        )
    message: Message = {"role": {"developer": "system", "function": "tool"}.get(role, role), "content": content}
    if role == "assistant":
        made = [ToolCall.from_raw(one).as_dict() for one in items(sent.get("tool_calls"))]
        if old := mapping(sent.get("function_call")):
            made.append(
                ToolCall.make(text(old.get("name")), text(old.get("arguments")), text(old.get("name"))).as_dict()
            )
        if made:
            message["tool_calls"] = made
        if reasoning := first(sent, "reasoning_content", "reasoning"):
            message["reasoning_content"] = text(reasoning)
    elif message["role"] == "tool":
        message["tool_call_id"] = text(first(sent, "tool_call_id", "name"))
    return message


def old_functions(raw: Any) -> list[Mapping[str, Any]]:
    """The tools of a request in the form before `tools`."""
    return [{"type": "function", "function": one} for one in items(raw)]
