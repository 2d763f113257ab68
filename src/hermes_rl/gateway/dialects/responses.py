"""OpenAI Responses: POST /v1/responses. Requests are read in responses_requests.py."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from hermes_rl.gateway.asked import Asked, Told
from hermes_rl.gateway.dialects import openai_refusals, sse
from hermes_rl.gateway.dialects.earlier import Earlier
from hermes_rl.gateway.dialects.responses_requests import item_id, read
from hermes_rl.gateway.dialects.said import Said, mark, pieces, sealed
from hermes_rl.gateway.problems import Problem
from hermes_rl.trajectory import Usage

CUT = {"length": "max_output_tokens", "context_full": "max_output_tokens", "content_filter": "content_filter"}


class Responses:
    name = "responses"
    path = "/v1/responses"

    def key(self, headers: Mapping[str, str]) -> str | None:
        return openai_refusals.bearer(headers)

    def asked(self, body: Any, earlier: Earlier | None = None) -> Asked:
        return read(body, earlier)

    def answer(self, asked: Asked, told: Told) -> dict[str, Any]:
        said = Said.of(asked, told.choices[0])
        return _ended(_begun(asked, told), said, _items(asked, told, said), told.usage)

    def events(self, asked: Asked, told: Told) -> Iterator[bytes]:
        said = Said.of(asked, told.choices[0])
        begun, items = _begun(asked, told), _items(asked, told, said)
        ended = _ended(begun, said, items, told.usage)
        for number, (name, fields) in enumerate(_steps(begun, items, ended)):
            yield sse.event(name, {"type": name, "sequence_number": number, **fields})

    def refusal(self, problem: Problem) -> tuple[int, dict[str, Any]]:
        return openai_refusals.refusal(problem, "input")

    def interruption(self, problem: Problem) -> bytes:
        """The end of a stream that had begun when the problem arose."""
        error = self.refusal(problem)[1]["error"]
        # The SDK raises on `error`, other clients read the fields beside it.
        told = {name: error[name] for name in ("code", "message", "param")}
        return sse.event("error", {"type": "error", "sequence_number": 0, **told, "error": error})

    def ping(self) -> bytes:
        return sse.COMMENT


def _begun(asked: Asked, told: Told) -> dict[str, Any]:
    return {
        "id": f"resp_{mark(told)}",
        "object": "response",
        "created_at": int(time.time()),
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "model": asked.model or told.model,
        "output": [],
        "usage": None,
        **asked.echo["repeated"],
    }


def _ended(begun: dict[str, Any], said: Said, items: list[dict[str, Any]], usage: Usage) -> dict[str, Any]:
    cut = CUT.get(said.finish)
    given, sampled = usage.prompt_tokens or 0, usage.completion_tokens or 0
    return {
        **begun,
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


def _items(asked: Asked, told: Told, said: Said) -> list[dict[str, Any]]:
    own, items = mark(told), list[dict[str, Any]]()
    status = "incomplete" if said.finish in CUT else "completed"
    if said.thinking:
        thought = {"type": "reasoning", "id": item_id("rs", own), "summary": []}
        sealing = {"encrypted_content": sealed(said.thinking)} if asked.echo.get("seal_thinking") else {}
        items.append({**thought, "content": [{"type": "reasoning_text", "text": said.thinking}], **sealing})
    if said.text or not said.calls:
        content = {"type": "output_text", "text": said.text, "annotations": [], "logprobs": []}
        message = {"type": "message", "id": item_id("msg", own), "status": status, "role": "assistant"}
        items.append({**message, "content": [content]})
    for place, call in enumerate(said.calls):
        called = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
        items.append({"type": "function_call", "id": item_id("fc", own, place), "status": "completed", **called})
    return items


# --- the stream ---

Step = tuple[str, dict[str, Any]]


def _steps(begun: dict[str, Any], items: list[dict[str, Any]], ended: dict[str, Any]) -> Iterator[Step]:
    yield "response.created", {"response": begun}
    yield "response.in_progress", {"response": begun}
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
    """An item as it stands when it begins."""
    if item["type"] == "function_call":
        return {**item, "status": "in_progress", "arguments": ""}
    if item["type"] == "message":
        return {**item, "status": "in_progress", "content": []}
    return {"type": "reasoning", "id": item["id"], "summary": [], "content": []}


def _part(part: dict[str, Any], at: dict[str, Any]) -> Iterator[Step]:
    kind = "output_text" if part["type"] == "output_text" else "reasoning_text"
    logprobs: dict[str, Any] = {"logprobs": []} if kind == "output_text" else {}
    yield "response.content_part.added", {**at, "part": {**part, "text": ""}}
    for piece in pieces(part["text"]):
        yield f"response.{kind}.delta", {**at, "delta": piece, **logprobs}
    yield f"response.{kind}.done", {**at, "text": part["text"], **logprobs}
    yield "response.content_part.done", {**at, "part": part}


def _arguments(item: dict[str, Any], at: dict[str, Any]) -> Iterator[Step]:
    for piece in pieces(item["arguments"]):
        yield "response.function_call_arguments.delta", {**at, "delta": piece}
    done = {"name": item["name"], "arguments": item["arguments"]}
    yield "response.function_call_arguments.done", {**at, **done}
