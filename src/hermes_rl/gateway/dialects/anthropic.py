"""Anthropic Messages: POST /v1/messages. anthropic_requests.py parses the requests."""

from collections.abc import Iterator, Mapping
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.trajectory import Usage
from hermes_rl.gateway.dialects import openai_refusals, sse
from hermes_rl.gateway.dialects.anthropic_requests import parse_request
from hermes_rl.gateway.dialects.previous_responses import PreviousResponses
from hermes_rl.gateway.dialects.reply import AgentReply, answer_id, arguments_object, chunks, seal
from hermes_rl.gateway.errors import ErrorKind, RequestProblem
from hermes_rl.gateway.request import AgentRequest
from hermes_rl.inference.completion import ChatCompletion

STOP_REASONS = {
    "stop": "end_turn",
    "tool_calls": "tool_use",
    "length": "max_tokens",
    "context_full": "model_context_window_exceeded",
    "content_filter": "refusal",
}
ERROR_FORMATS: dict[ErrorKind, tuple[int, str]] = {
    ErrorKind.BAD_REQUEST: (400, "invalid_request_error"),
    ErrorKind.UNAUTHORIZED: (401, "authentication_error"),
    ErrorKind.NOT_FOUND: (404, "not_found_error"),
    ErrorKind.CONTEXT_FULL: (400, "invalid_request_error"),
    ErrorKind.TOO_MANY: (429, "rate_limit_error"),
    ErrorKind.TOO_LARGE: (413, "request_too_large"),
    ErrorKind.OVERLOADED: (529, "overloaded_error"),
    ErrorKind.SERVER: (500, "api_error"),
}


class Anthropic:
    name = "anthropic"
    path = "/v1/messages"

    def match(self, path: str) -> Mapping[str, Any] | None:
        return {} if path == self.path else None

    def key(self, headers: Mapping[str, str]) -> str | None:
        return headers.get("x-api-key") or openai_refusals.bearer_key(headers)

    def parse_request(self, body: Any, _: PreviousResponses | None = None) -> AgentRequest:
        return parse_request(body)

    def answer(self, request: AgentRequest, completion: ChatCompletion) -> dict[str, Any]:
        reply = AgentReply.from_choice(request, completion.choices[0])
        return {
            **_head(request, completion),
            "content": _blocks(request, reply),
            "stop_reason": _stop_reason(reply),
            "stop_sequence": reply.stopped_by,
            "usage": _usage(completion.usage),
        }

    def events(self, request: AgentRequest, completion: ChatCompletion) -> Iterator[bytes]:
        reply = AgentReply.from_choice(request, completion.choices[0])
        usage = _usage(completion.usage)
        started = {**_head(request, completion), "content": [], "stop_reason": None, "stop_sequence": None}
        yield _event("message_start", {"message": {**started, "usage": {**usage, "output_tokens": 1}}})
        for index, block in enumerate(_blocks(request, reply)):
            empty, deltas = _split_block(block)
            yield _event("content_block_start", {"index": index, "content_block": empty})
            if index == 0:
                yield self.ping()
            for delta in deltas:
                yield _event("content_block_delta", {"index": index, "delta": delta})
            yield _event("content_block_stop", {"index": index})
        ended = {"stop_reason": _stop_reason(reply), "stop_sequence": reply.stopped_by}
        yield _event("message_delta", {"delta": ended, "usage": usage})
        yield _event("message_stop", {})

    def refusal(self, problem: RequestProblem) -> tuple[int, dict[str, Any]]:
        status, kind = ERROR_FORMATS[problem.kind]
        message = problem.message if problem.param is None else f"{problem.param}: {problem.message}"
        if problem.kind is ErrorKind.CONTEXT_FULL:
            tokens = problem.tokens
            # In the provider's words: agents search for them to know that they must compact.
            detail = f"{tokens[0]} tokens > {tokens[1]} maximum" if tokens else problem.message
            message = f"prompt is too long: {detail}"
        return status, {"type": "error", "error": {"type": kind, "message": message}, "request_id": None}

    def interruption(self, problem: RequestProblem) -> bytes:
        return sse.event("error", self.refusal(problem)[1])

    def ping(self) -> bytes:
        return _event("ping", {})


def _event(name: str, fields: Mapping[str, Any]) -> bytes:
    return sse.event(name, {"type": name, **fields})


def _head(request: AgentRequest, completion: ChatCompletion) -> dict[str, Any]:
    return {
        "id": f"msg_{answer_id(completion)}",
        "type": "message",
        "role": "assistant",
        "model": request.model or completion.model,
    }


def _blocks(request: AgentRequest, reply: AgentReply) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    if reply.reasoning:
        shown = "" if request.echo.get("omit_reasoning") else reply.reasoning
        blocks.append({"type": "thinking", "thinking": shown, "signature": seal(reply.reasoning)})
    if reply.text or not reply.calls:
        blocks.append({"type": "text", "text": reply.text})
    for call in reply.calls:
        read_arguments = arguments_object(call.arguments)
        blocks.append({"type": "tool_use", "id": call.id, "name": call.name, "input": read_arguments})
    return blocks


def _split_block(block: dict[str, Any]) -> tuple[dict[str, Any], Iterator[dict[str, Any]]]:
    """A block as it starts, and the deltas that follow."""
    if block["type"] == "text":
        return {"type": "text", "text": ""}, ({"type": "text_delta", "text": text} for text in chunks(block["text"]))
    if block["type"] == "thinking":
        return {"type": "thinking", "thinking": "", "signature": ""}, _reasoning_deltas(block)
    return {**block, "input": {}}, _input_deltas(block)


def _reasoning_deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for piece in chunks(block["thinking"]):
        yield {"type": "thinking_delta", "thinking": piece}
    yield {"type": "signature_delta", "signature": block["signature"]}


def _input_deltas(block: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"type": "input_json_delta", "partial_json": ""}
    for piece in chunks(fast_json.dumps(block["input"]).decode()):
        yield {"type": "input_json_delta", "partial_json": piece}


def _stop_reason(reply: AgentReply) -> str:
    return "stop_sequence" if reply.stopped_by is not None else STOP_REASONS.get(reply.finish, "end_turn")


def _usage(usage: Usage) -> dict[str, Any]:
    return {
        "input_tokens": usage.prompt_tokens or 0,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
        "output_tokens": usage.completion_tokens or 0,
    }
