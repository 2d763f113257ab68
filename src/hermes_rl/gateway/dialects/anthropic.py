"""Anthropic Messages: POST /v1/messages. Requests are read in anthropic_requests.py."""

from collections.abc import Iterator, Mapping
from typing import Any

from hermes_rl import jsontext
from hermes_rl.gateway.asked import Asked, Told
from hermes_rl.gateway.dialects import openai_refusals, sse
from hermes_rl.gateway.dialects.anthropic_requests import read
from hermes_rl.gateway.dialects.earlier import Earlier
from hermes_rl.gateway.dialects.said import Said, arguments_object, mark, pieces, sealed
from hermes_rl.gateway.problems import Kind, Problem
from hermes_rl.trajectory import Usage

STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "context_full": "model_context_window_exceeded",
    "content_filter": "refusal",
}
FORMS: dict[Kind, tuple[int, str]] = {
    Kind.BAD_REQUEST: (400, "invalid_request_error"),
    Kind.UNAUTHORIZED: (401, "authentication_error"),
    Kind.NOT_FOUND: (404, "not_found_error"),
    Kind.CONTEXT_FULL: (400, "invalid_request_error"),
    Kind.TOO_MANY: (429, "rate_limit_error"),
    Kind.TOO_LARGE: (413, "request_too_large"),
    Kind.OVERLOADED: (529, "overloaded_error"),
    Kind.SERVER: (500, "api_error"),
}


class Anthropic:
    name = "anthropic"
    path = "/v1/messages"

    def key(self, headers: Mapping[str, str]) -> str | None:
        return headers.get("x-api-key") or openai_refusals.bearer(headers)

    def asked(self, body: Any, _: Earlier | None = None) -> Asked:
        return read(body)

    def answer(self, asked: Asked, told: Told) -> dict[str, Any]:
        said = Said.of(asked, told.choices[0])
        return {
            **_head(asked, told),
            "content": _blocks(asked, said),
            "stop_reason": _stop_reason(said),
            "stop_sequence": said.stopped_by,
            "usage": _usage(told.usage),
        }

    def events(self, asked: Asked, told: Told) -> Iterator[bytes]:
        said = Said.of(asked, told.choices[0])
        usage = _usage(told.usage)
        begun = {**_head(asked, told), "content": [], "stop_reason": None, "stop_sequence": None}
        yield _event("message_start", {"message": {**begun, "usage": {**usage, "output_tokens": 1}}})
        for index, block in enumerate(_blocks(asked, said)):
            empty, deltas = _in_pieces(block)
            yield _event("content_block_start", {"index": index, "content_block": empty})
            if index == 0:
                yield self.ping()
            for delta in deltas:
                yield _event("content_block_delta", {"index": index, "delta": delta})
            yield _event("content_block_stop", {"index": index})
        ended = {"stop_reason": _stop_reason(said), "stop_sequence": said.stopped_by}
        yield _event("message_delta", {"delta": ended, "usage": usage})
        yield _event("message_stop", {})

    def refusal(self, problem: Problem) -> tuple[int, dict[str, Any]]:
        status, kind = FORMS[problem.kind]
        message = problem.message if problem.param is None else f"{problem.param}: {problem.message}"
        if problem.kind is Kind.CONTEXT_FULL:
            tokens = problem.tokens
            # In the provider's words: agents look for them to know that they must compact.
            told = f"{tokens[0]} tokens > {tokens[1]} maximum" if tokens else problem.message
            message = f"prompt is too long: {told}"
        return status, {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}

    def interruption(self, problem: Problem) -> bytes:
        """The end of a stream that had begun when the problem arose."""
        return sse.event("error", self.refusal(problem)[1])

    def ping(self) -> bytes:
        return _event("ping", {})


def _event(name: str, fields: Mapping[str, Any]) -> bytes:
    return sse.event(name, {"type": name, **fields})


def _head(asked: Asked, told: Told) -> dict[str, Any]:
    return {
        "id": f"msg_{mark(told)}",
        "type": "message",
        "role": "assistant",
        "model": asked.model or told.model,
    }


def _blocks(asked: Asked, said: Said) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if said.thinking:
        shown = "" if asked.echo.get("omit_thinking") else said.thinking
        blocks.append({"type": "thinking", "thinking": shown, "signature": sealed(said.thinking)})
    if said.text or not said.calls:
        blocks.append({"type": "text", "text": said.text})
    for call in said.calls:
        read_arguments = arguments_object(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": read_arguments})
    return blocks


def _in_pieces(block: dict[str, Any]) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """A block as it stands when it begins, and what comes after."""
    if block["type"] == "text":
        return {"type": "text", "text": ""}, ({"type": "text_delta", "text": one} for one in pieces(block["text"]))
    if block["type"] == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}, _thinking_deltas(block)
    return {**block, "input": {}}, _input_deltas(block)


def _thinking_deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for piece in pieces(block["thinking"]):
        yield {"type": "thinking_delta", "thinking": piece}
    yield {"type": "signature_delta", "signature": block["signature"]}


def _input_deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "input_json_delta", "partial_json": ""}
    for piece in pieces(jsontext.dumps(block["input"]).decode()):
        yield {"type": "input_json_delta", "partial_json": piece}


def _stop_reason(said: Said) -> str:
    return "stop_sequence" if said.stopped_by is not None else STOP_REASONS.get(said.finish, "end_turn")


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens or 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": usage.completion_tokens or 0,
    }
