"""LangSmith exports of runs. Each run of type `llm` is one call; messages in OpenAI's form or in LangChain's."""

from collections.abc import Iterable, Mapping
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.messages import Message, ToolCall
from hermes_rl.interop.traces import calls
from hermes_rl.interop.traces.openai_chat import read_message
from hermes_rl.interop.traces.trace import Event, Place, first, items, mapping, parsed, text

_ROLES = {"human": "user", "ai": "assistant", "system": "system", "tool": "tool", "chat": "user", "function": "tool"}


class LangSmith:
    name = "langsmith"
    about = "LangSmith export of runs"
    traces = staticmethod(calls.traces)

    def matches(self, record: Mapping[str, Any]) -> bool:
        return "run_type" in record and "inputs" in record

    def events(self, record: Mapping[str, Any], place: Place) -> Iterable[Event]:
        metadata = mapping(mapping(record.get("extra")).get("metadata"))
        conversation = text(
            first(metadata, "session_id", "thread_id", "conversation_id")
            or first(record, "trace_id", "id")
            or place.key
        )
        order = text(first(record, "dotted_order", "start_time"))
        feedback = mapping(record.get("feedback_stats"))
        scores = {
            name: mapping(one).get("avg") for name, one in feedback.items() if mapping(one).get("avg") is not None
        }
        noted = {"metadata": dict(metadata)} | ({"scores": scores} if scores else {})
        if record.get("run_type") != "llm":
            return [Event(conversation, order, calls.notes(noted))]
        if record.get("error"):
            raise ValueError(f"the call failed: {text(record['error'])[:100]}")
        inputs, parameters = (
            mapping(parsed(record.get("inputs"))),
            mapping(mapping(record.get("extra")).get("invocation_params")),
        )
        sent = items(inputs.get("messages"))
        if sent and isinstance(sent[0], list):
            sent = sent[0]
        content = calls.call(
            [_message(mapping(one)) for one in sent],
            _answer(mapping(parsed(record.get("outputs")))),
            call_id=record.get("id"),
            tools=items(inputs.get("tools")) or items(parameters.get("tools")),
            model=first(parameters, "model", "model_name") or metadata.get("ls_model_name"),
            time=record.get("start_time"),
            usage=(record.get("prompt_tokens"), record.get("completion_tokens")),
            fields={"name": record.get("name"), **noted},
        )
        return [Event(conversation, order, content)]


def _answer(outputs: Mapping[str, Any]) -> Message:
    if choices := items(outputs.get("choices")):
        return read_message(mapping(choices[0]).get("message"))
    generations = items(outputs.get("generations"))
    if generations:
        one = generations[0][0] if isinstance(generations[0], list) and generations[0] else generations[0]
        made = mapping(one)
        if "message" in made:
            return _message(mapping(made["message"]))
        return {"role": "assistant", "content": text(made.get("text"))}
    if messages := items(outputs.get("messages")):
        return _message(mapping(messages[-1]))
    if "role" in outputs:
        return read_message(outputs)
    raise ValueError("the run has no answer")


def _message(raw: Mapping[str, Any]) -> Message:
    """A message in OpenAI's form, or one of LangChain's (`{lc, id, kwargs}` or `{type, content}`)."""
    if "role" in raw:
        return read_message(raw)
    fields = mapping(raw.get("kwargs")) or mapping(raw.get("data")) or raw
    named = [text(one) for one in items(raw.get("id"))][-1:] or [text(raw.get("type"))]
    kind = text(fields.get("type")) or named[0].removesuffix("Chunk").removesuffix("Message").lower()
    message = {
        "role": _ROLES.get(kind, kind),
        "content": fields.get("content"),
        "tool_call_id": fields.get("tool_call_id"),
        "tool_calls": [_call(mapping(one)) for one in items(fields.get("tool_calls"))]
        or mapping(fields.get("additional_kwargs")).get("tool_calls"),
    }  # fmt: skip
    return read_message(message)


def _call(raw: Mapping[str, Any]) -> dict[str, Any]:
    arguments = fast_json.dumps(raw.get("args") or {}).decode()
    return ToolCall.make(text(raw.get("name")), arguments, text(raw.get("id"))).as_dict()
