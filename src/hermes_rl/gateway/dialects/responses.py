"""OpenAI Responses: POST /v1/responses. responses_requests.py parses the requests."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from hermes_rl.core.trajectory import Usage
from hermes_rl.gateway.dialects import openai_refusals, sse
from hermes_rl.gateway.dialects.previous_responses import PreviousResponses
from hermes_rl.gateway.dialects.reply import AgentReply, answer_id, chunks, seal
from hermes_rl.gateway.dialects.responses_requests import item_id, parse_request
from hermes_rl.gateway.errors import RequestProblem
from hermes_rl.gateway.request import AgentRequest
from hermes_rl.inference.completion import ChatCompletion

INCOMPLETE_REASONS = {
    "length": "max_output_tokens",
    "context_full": "max_output_tokens",
    "content_filter": "content_filter",
}


class Responses:
    name = "responses"
    path = "/v1/responses"

    def match(self, path: str) -> Mapping[str, Any] | None:
        return {} if path == self.path else None

    def key(self, headers: Mapping[str, str]) -> str | None:
        return openai_refusals.bearer_key(headers)

    def parse_request(self, body: Any, previous: PreviousResponses | None = None) -> AgentRequest:
        return parse_request(body, previous)

    def answer(self, request: AgentRequest, completion: ChatCompletion) -> dict[str, Any]:
        reply = AgentReply.from_choice(request, completion.choices[0])
        return _finished(_started(request, completion), reply, _items(request, completion, reply), completion.usage)

    def events(self, request: AgentRequest, completion: ChatCompletion) -> Iterator[bytes]:
        reply = AgentReply.from_choice(request, completion.choices[0])
        started, items = _started(request, completion), _items(request, completion, reply)
        ended = _finished(started, reply, items, completion.usage)
        for number, (name, fields) in enumerate(_events(started, items, ended)):
            yield sse.event(name, {"type": name, "sequence_number": number, **fields})

    def refusal(self, problem: RequestProblem) -> tuple[int, dict[str, Any]]:
        return openai_refusals.refusal(problem, "input")

    def interruption(self, problem: RequestProblem) -> bytes:
        error = self.refusal(problem)[1]["error"]
        # The SDK raises on `error`, other clients read the fields next to it.
        details = {name: error[name] for name in ("code", "message", "param")}
        return sse.event("error", {"type": "error", "sequence_number": 0, **details, "error": error})

    def ping(self) -> bytes:
        return sse.COMMENT


def _started(request: AgentRequest, completion: ChatCompletion) -> dict[str, Any]:
    return {
        "id": f"resp_{answer_id(completion)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": request.model or completion.model,
        "output": [],
        "usage": None,
        **request.echo["repeated"],
    }


def _finished(started: dict[str, Any], reply: AgentReply, items: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
    cut = INCOMPLETE_REASONS.get(reply.finish)
    given, sampled = usage.prompt_tokens or 0, usage.completion_tokens or 0
    return {
        **started,
        "status": "incomplete" if cut else "completed",
        "incomplete_details": {"reason": cut} if cut else None,
        "output": items,
        "usage": {
            "input_tokens": given,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": sampled,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": given + sampled,
        },
    }


def _items(request: AgentRequest, completion: ChatCompletion, reply: AgentReply) -> list[dict[str, Any]]:
    answer, items = answer_id(completion), list[dict[str, Any]]()
    status = "incomplete" if reply.finish in INCOMPLETE_REASONS else "completed"
    if reply.reasoning:
        reasoning = {"type": "reasoning", "id": item_id("rs", answer), "summary": []}
        encrypted = {"encrypted_content": seal(reply.reasoning)} if request.echo.get("seal_reasoning") else {}
        items.append({**reasoning, "content": [{"type": "reasoning_text", "text": reply.reasoning}], **encrypted})
    if reply.text or not reply.calls:
        content = {"type": "output_text", "text": reply.text, "annotations": [], "logprobs": []}
        message = {"type": "message", "id": item_id("msg", answer), "status": status, "role": "assistant"}
        items.append({**message, "content": [content]})
    for index, call in enumerate(reply.calls):
        called = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        items.append({"type": "function_call", "id": item_id("fc", answer, index), "status": "completed", **called})
    return items


# --- the stream ---

Event = tuple[str, dict[str, Any]]


def _events(started: dict[str, Any], items: list[dict[str, Any]], ended: dict[str, Any]) -> Iterator[Event]:
    yield "response.created", {"response": started}
    yield "response.in_progress", {"response": started}
    for index, item in enumerate(items):
        at = {"output_index": index}
        yield "response.output_item.added", {**at, "item": _empty(item)}
        if item["type"] == "function_call":
            yield from _arguments(item, {"item_id": item["id"], **at})
        else:
            yield from _part(item["content"][0], {"item_id": item["id"], **at, "content_index": 0})
        yield "response.output_item.done", {**at, "item": item}
    yield f"response.{ended['status']}", {"response": ended}


def _empty(item: dict[str, Any]) -> dict[str, Any]:
    """An item as it starts."""
    if item["type"] == "function_call":
        return {**item, "status": "in_progress", "arguments": ""}
    if item["type"] == "message":
        return {**item, "status": "in_progress", "content": []}
    return {"type": "reasoning", "id": item["id"], "summary": [], "content": []}


def _part(part: dict[str, Any], at: dict[str, Any]) -> Iterator[Event]:
    kind = "output_text" if part["type"] == "output_text" else "reasoning_text"
    logprobs: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
    yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
    for piece in chunks(part["text"]):
        yield f"response.{kind}.delta", {**at, "delta": piece, **logprobs}
    yield f"response.{kind}.done", {**at, "text": part["text"], **logprobs}
    yield "response.content_part.done", {**at, "part": part}


def _arguments(item: dict[str, Any], at: dict[str, Any]) -> Iterator[Event]:
    for piece in chunks(item["arguments"]):
        yield "response.function_call_arguments.delta", {**at, "delta": piece}
    done = {"name": item["name"], "arguments": item["arguments"]}
    yield "response.function_call_arguments.done", {**at, **done}
