"""Joins calls into conversations: a call whose messages continue an earlier answer belongs to the same one.

Always true: no answer is in two traces, except as the common beginning of two branches; every other call (a subagent, a
compacted context) begins a trace of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import Usage
from hermes_rl.gateway.conversations import Conversations
from hermes_rl.interop.traces.trace import Trace, count, mapping
from hermes_rl.rollout.sampler import content_id


def call(
    messages: Sequence[Message], answer: Message | None, *, call_id: Any = None, tools: Any = None, model: Any = None,
    time: Any = None, finish: Any = None, usage: tuple[Any, Any] = (None, None),
    fields: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """The content of an event: a request with its answer, or without one a whole conversation."""
    if not messages:
        raise ValueError("the record has no messages")
    return {
        "id": call_id,
        "messages": list(messages),
        "answer": answer,
        "tools": [schema for schema in tools or [] if isinstance(schema, Mapping)],
        "model": model if isinstance(model, str) else "",
        "time": time if isinstance(time, str) else "",
        "finish": finish if isinstance(finish, str) else "",
        "usage": [count(part) for part in usage],
        "fields": dict(fields or {}),
    }


def notes(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The content of an event without messages: scores and metadata for the traces of its conversation."""
    return {"fields": dict(fields)}


def beginning(messages: Sequence[Message]) -> str:
    """A conversation id for sources that have none: the messages up to the first of the user."""
    roles = [message.get("role") for message in messages]
    end = roles.index("user") + 1 if "user" in roles else len(roles)
    return content_id(list(messages[:end]))


def traces(contents: Sequence[dict[str, Any]]) -> Iterator[Trace]:
    """The traces of one conversation, from its calls in the order of their time."""
    common: dict[str, Any] = {}
    calls: list[dict[str, Any]] = []
    seen = set()
    for content in contents:
        if "messages" not in content:
            _merge(common, content["fields"])
        elif content["id"] is None or content["id"] not in seen:
            seen.add(content["id"])
            calls.append(content)
    joined = Conversations()
    for index, one in enumerate(calls):
        if one["answer"] is None:
            yield _trace([one], one["messages"], common)
        else:
            joined.add_answer(joined.locate(one["messages"]), one["answer"], index)
    for conversation in joined.all:
        yield _trace([calls[index] for index in conversation.calls], conversation.messages, common)


def _trace(calls: Sequence[dict[str, Any]], messages: list[Message], common: Mapping[str, Any]) -> Trace:
    fields: dict[str, Any] = dict(common)
    usage = Usage()
    for one in calls:
        _merge(fields, one["fields"])
        usage += Usage(*one["usage"])
    last = calls[-1]
    tools: list[Mapping[str, Any]] = next((one["tools"] for one in reversed(calls) if one["tools"]), [])
    return Trace(messages, tools, last["model"], calls[0]["time"], last["finish"], usage, fields)


def _merge(fields: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        known = fields.get(key)
        fields[key] = {**known, **value} if isinstance(known, dict) and isinstance(value, Mapping) else value


def function_schema(name: Any, description: Any, parameters: Any) -> dict[str, Any]:
    """A tool in OpenAI's form."""
    function = {"name": str(name), "description": description, "parameters": mapping(parameters)}
    return {"type": "function", "function": {key: value for key, value in function.items() if value is not None}}
