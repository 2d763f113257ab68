"""Langfuse exports: observations, or traces with their observations. Each generation is one call."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from hermes_rl.core.messages import Message
from hermes_rl.interop.traces import calls
from hermes_rl.interop.traces.openai_chat import read_message
from hermes_rl.interop.traces.trace import Event, Place, first, items, mapping, parsed, text

_TYPES = frozenset("GENERATION TOOL SPAN EVENT AGENT CHAIN RETRIEVER EVALUATOR EMBEDDING GUARDRAIL".split())
_CONTENTS = frozenset("input output observations scores".split())


class Langfuse:
    name = "langfuse"
    about = "Langfuse export of observations or traces"
    traces = staticmethod(calls.traces)

    def matches(self, record: Mapping[str, Any]) -> bool:
        is_observation = str(record.get("type")) in _TYPES and bool(record.keys() & {"traceId", "trace_id"})
        return is_observation or isinstance(record.get("observations"), list)

    def events(self, record: Mapping[str, Any], place: Place) -> Iterable[Event]:
        if "observations" not in record:
            yield from _events(record, place)
            return
        conversation = text(first(record, "sessionId", "session_id", "id") or place.key)
        for one in map(mapping, record["observations"]):
            for event in _events(one, place):
                yield event._replace(conversation=conversation)
        yield Event(conversation, "", calls.notes({**_fields(record), **_scores(record)}))


def _events(record: Mapping[str, Any], place: Place) -> Iterator[Event]:
    conversation = text(first(record, "sessionId", "session_id", "traceId", "trace_id") or place.key)
    order = text(first(record, "startTime", "start_time"))
    if record.get("type") != "GENERATION":
        if scores := _scores(record):
            yield Event(conversation, order, calls.notes(scores))
        return
    sent, answered = parsed(record.get("input")), parsed(record.get("output"))
    inner = mapping(sent)
    messages = [read_message(one) for one in _listed(inner.get("messages", sent), "user")]
    answers = [read_message(one) for one in _listed(answered, "assistant")]
    if not answers:
        raise ValueError("the generation has no output")
    usage = mapping(first(record, "usageDetails", "usage_details", "usage"))
    yield Event(
        conversation,
        order,
        calls.call(
            messages,
            answers[-1],
            call_id=record.get("id"),
            tools=items(inner.get("tools")),
            model=record.get("model"),
            time=order,
            usage=(usage.get("input"), usage.get("output")),
            fields={**_fields(record), **_scores(record)},
        ),
    )


def _fields(record: Mapping[str, Any]) -> dict[str, Any]:
    fields = {key: value for key, value in record.items() if key not in _CONTENTS and value is not None}
    if "metadata" in fields:
        fields["metadata"] = parsed(fields["metadata"])
    return fields


def _scores(record: Mapping[str, Any]) -> dict[str, Any]:
    scores = {
        text(one.get("name")): one["value"] for one in map(mapping, items(record.get("scores"))) if "value" in one
    }
    return {"scores": scores} if scores else {}


def _listed(value: Any, role: str) -> list[Message]:
    """What was logged as messages: a list of them, one, the choices of an answer, or only its text."""
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    if isinstance(value, Mapping):
        choices = [mapping(one).get("message") for one in items(value.get("choices"))]
        return [{**mapping(one), "role": role} for one in choices] if choices else [{"role": role, **value}]
    return [{"role": role, **mapping(one)} for one in items(value)]
