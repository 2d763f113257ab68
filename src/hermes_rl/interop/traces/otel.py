"""OpenTelemetry spans with the GenAI conventions: OTLP JSON of a collector, or one span per line from an SDK.

Read are spans of calls that carry their messages, in `gen_ai.input.messages` or in the older attributes, and
evaluations. Recording contents is opt-in, so many spans have none: they are counted as skipped.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.interop.traces import calls
from hermes_rl.interop.traces.openai_chat import read_message
from hermes_rl.interop.traces.trace import Event, Place, first, items, mapping, parsed, text

_OLD = re.compile(r"gen_ai\.(prompt|completion)\.(\d+)\.(.+)")
_CONTENTS = tuple(f"gen_ai.{name}" for name in ("input.", "output.", "prompt", "completion", "system_i", "tool."))
_VALUES = ("stringValue", "intValue", "doubleValue", "boolValue")


class OpenTelemetry:
    name = "otel"
    about = "OpenTelemetry spans with the GenAI conventions"
    traces = staticmethod(calls.traces)

    def matches(self, record: Mapping[str, Any]) -> bool:
        is_span = "attributes" in record and bool(
            record.keys() & {"traceId", "trace_id", "context", "spanId", "span_id"}
        )
        return is_span or "resourceSpans" in record or "resource_spans" in record

    def events(self, record: Mapping[str, Any], place: Place) -> Iterable[Event]:
        for span in _spans(record):
            attributes = _attributes(span.get("attributes"))
            happened = [_attributes(mapping(one).get("attributes")) for one in items(span.get("events"))]
            for more in happened:
                attributes = {**{key: value for key, value in more.items() if key.startswith("gen_ai.")}, **attributes}
            conversation = text(
                first(attributes, "gen_ai.conversation.id", "session.id")
                or first(span, "traceId", "trace_id")
                or first(mapping(span.get("context")), "trace_id")
                or place.key
            )
            order = text(first(span, "startTimeUnixNano", "start_time_unix_nano", "start_time")).zfill(24)
            if (content := _call(attributes, span)) is not None:
                yield Event(conversation, order, content)
            scores = {
                text(one.get("gen_ai.evaluation.name") or "score"): one["gen_ai.evaluation.score.value"]
                for one in (*happened, attributes)
                if "gen_ai.evaluation.score.value" in one
            }
            if scores:
                yield Event(conversation, order, calls.notes({"scores": scores}))


def _spans(record: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    resources = first(record, "resourceSpans", "resource_spans")
    if resources is None:
        yield record
        return
    for resource in map(mapping, items(resources)):
        for scope in map(mapping, items(first(resource, "scopeSpans", "scope_spans"))):
            yield from map(mapping, items(scope.get("spans")))


def _attributes(raw: Any) -> dict[str, Any]:
    """The attributes as an object; OTLP has a list of keys and typed values."""
    if isinstance(raw, Mapping):
        return dict(raw)
    return {text(one.get("key")): _value(one.get("value")) for one in map(mapping, items(raw))}


def _value(raw: Any) -> Any:
    typed = mapping(raw)
    if "arrayValue" in typed:
        return [_value(one) for one in items(mapping(typed["arrayValue"]).get("values"))]
    if "kvlistValue" in typed:
        return _attributes(mapping(typed["kvlistValue"]).get("values"))
    value = next((typed[name] for name in _VALUES if name in typed), None)
    return int(value) if "intValue" in typed and isinstance(value, str) else value


def _call(attributes: Mapping[str, Any], span: Mapping[str, Any]) -> dict[str, Any] | None:
    if (sent := parsed(first(attributes, "gen_ai.input.messages"))) is not None:
        messages = [said for one in items(sent) for said in _messages(mapping(one))]
        answers = [mapping(one) for one in items(parsed(attributes.get("gen_ai.output.messages")))]
        instructions = [mapping(one) for one in items(parsed(attributes.get("gen_ai.system_instructions")))]
        if instructions:
            messages.insert(
                0, {"role": "system", "content": "\n".join(text(one.get("content")) for one in instructions)}
            )
    else:
        messages, answers = _old(attributes, "prompt"), _old(attributes, "completion")
    if not messages:
        return None
    if not answers:
        raise ValueError("the span has a request without an answer")
    [answer] = _messages({**answers[0], "role": "assistant"})
    reasons = items(parsed(attributes.get("gen_ai.response.finish_reasons")))
    return calls.call(
        messages, answer,
        call_id=first(span, "spanId", "span_id") or mapping(span.get("context")).get("span_id"),
        tools=[_tool(mapping(one)) for one in items(parsed(attributes.get("gen_ai.tool.definitions")))],
        model=first(attributes, "gen_ai.response.model", "gen_ai.request.model"),
        finish=next(iter(reasons), None) or answers[0].get("finish_reason"),
        usage=(
            first(attributes, "gen_ai.usage.input_tokens", "gen_ai.usage.prompt_tokens"),
            first(attributes, "gen_ai.usage.output_tokens", "gen_ai.usage.completion_tokens"),
        ),
        fields={
            key: value
            for key, value in attributes.items()
            if not key.startswith(_CONTENTS)
        },
    )  # fmt: skip


def _messages(raw: Mapping[str, Any]) -> list[Message]:
    """A message in parts as messages in OpenAI's form: each result of a tool is its own."""
    if "parts" not in raw:
        return [read_message(raw)]
    parts = [mapping(one) for one in items(raw["parts"])]
    said = "".join(text(part.get("content")) for part in parts if part.get("type") == "text")
    results: list[Message] = [
        {"role": "tool", "tool_call_id": text(part.get("id")), "content": _text(first(part, "response", "result"))}
        for part in parts
        if part.get("type") == "tool_call_response"
    ]
    if raw.get("role") != "assistant":
        return results or [{"role": "system" if raw.get("role") == "system" else "user", "content": said}]
    answer: Message = {"role": "assistant", "content": said}
    if reasoning := "".join(text(part.get("content")) for part in parts if part.get("type") == "reasoning"):
        answer["reasoning_content"] = reasoning
    if made := [part for part in parts if part.get("type") == "tool_call"]:
        answer["tool_calls"] = [
            ToolCall.make(text(one.get("name")), _text(one.get("arguments")) or "{}", text(one.get("id"))).as_dict()
            for one in made
        ]
    return [answer]


def _old(attributes: Mapping[str, Any], which: str) -> list[Any]:
    """Messages of `gen_ai.prompt` and `gen_ai.completion`: whole, or each field as an attribute with an index."""
    if (whole := parsed(attributes.get(f"gen_ai.{which}"))) is not None:
        role = "user" if which == "prompt" else "assistant"
        listed = (
            whole if isinstance(whole, list) else [whole if isinstance(whole, Mapping) else {"content": text(whole)}]
        )
        return [read_message({"role": role, **mapping(one)}) for one in listed]
    fields: dict[int, dict[str, Any]] = {}
    for key, value in attributes.items():
        if (match := _OLD.fullmatch(key)) and match[1] == which:
            fields.setdefault(int(match[2]), {})[match[3]] = value
    return [read_message(_old_message(fields[index])) for index in sorted(fields)]


def _old_message(fields: Mapping[str, Any]) -> dict[str, Any]:
    made: dict[str, dict[str, Any]] = {}
    for key, value in fields.items():
        if key.startswith("tool_calls."):
            _, index, name = key.split(".", 2)
            made.setdefault(index, {})[name] = value
    message = {key: value for key, value in fields.items() if "." not in key}
    if made:
        message["tool_calls"] = [
            {"id": one.get("id"), "function": {"name": one.get("name"), "arguments": text(one.get("arguments"))}}
            for one in made.values()
        ]
    return message


def _tool(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    if "function" in raw:
        return raw
    return calls.function_schema(raw.get("name"), raw.get("description"), raw.get("parameters"))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else fast_json.dumps(value).decode()
