"""Google's Gemini API: POST /v1beta/models/MODEL:generateContent. google_requests.py parses the requests."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from hermes_rl.core.trajectory import Usage
from hermes_rl.gateway.dialects import openai_refusals
from hermes_rl.gateway.dialects.google_requests import parse_request, signature
from hermes_rl.gateway.dialects.previous_responses import PreviousResponses
from hermes_rl.gateway.dialects.reply import AgentReply, answer_id, arguments_object, chunks
from hermes_rl.gateway.errors import ErrorKind, RequestProblem
from hermes_rl.gateway.request import AgentRequest
from hermes_rl.inference.completion import ChatCompletion

METHOD = re.compile(r"/v1(?:beta|alpha)?/models/([^/]+):(generateContent|streamGenerateContent)")
FINISH_REASONS = {"length": "MAX_TOKENS", "context_full": "MAX_TOKENS", "content_filter": "SAFETY"}
ERROR_FORMATS: dict[ErrorKind, tuple[int, str]] = {
    ErrorKind.BAD_REQUEST: (400, "INVALID_ARGUMENT"),
    ErrorKind.UNAUTHORIZED: (401, "UNAUTHENTICATED"),
    ErrorKind.NOT_FOUND: (404, "NOT_FOUND"),
    ErrorKind.CONTEXT_FULL: (400, "INVALID_ARGUMENT"),
    ErrorKind.TOO_MANY: (429, "RESOURCE_EXHAUSTED"),
    ErrorKind.TOO_LARGE: (413, "INVALID_ARGUMENT"),
    ErrorKind.OVERLOADED: (503, "UNAVAILABLE"),
    ErrorKind.SERVER: (500, "INTERNAL"),
}


class Google:
    name = "google"
    path = "/v1beta/models"

    def match(self, path: str) -> Mapping[str, Any] | None:
        found = METHOD.fullmatch(path)
        return found and {"model": found[1], "stream": found[2].startswith("stream")}

    def key(self, headers: Mapping[str, str]) -> str | None:
        return headers.get("x-goog-api-key") or openai_refusals.bearer_key(headers)

    def parse_request(self, body: Any, previous: PreviousResponses | None = None) -> AgentRequest:
        return parse_request(body, previous)

    def answer(self, request: AgentRequest, completion: ChatCompletion) -> dict[str, Any]:
        candidates = []
        for choice in completion.choices:
            reply = AgentReply.from_choice(request, choice)
            candidates.append(_candidate(choice.index, [*_text_parts(reply, whole=True), *_calls(reply)], reply.finish))
        return {**_head(request, completion), "candidates": candidates, "usageMetadata": _usage(completion.usage)}

    def events(self, request: AgentRequest, completion: ChatCompletion) -> Iterator[bytes]:
        head = _head(request, completion)
        for choice in completion.choices:
            reply = AgentReply.from_choice(request, choice)
            for part in _text_parts(reply, whole=False):
                yield _event({**head, "candidates": [_candidate(choice.index, [part])]})
            last = _candidate(choice.index, _calls(reply), reply.finish)
            yield _event({**head, "candidates": [last], "usageMetadata": _usage(completion.usage)})

    def refusal(self, problem: RequestProblem) -> tuple[int, dict[str, Any]]:
        code, status = ERROR_FORMATS[problem.kind]
        message = problem.message if problem.param is None else f"{problem.param}: {problem.message}"
        if problem.kind is ErrorKind.CONTEXT_FULL and problem.tokens:
            # In the provider's words: agents search for them to know that they must compact.
            sent, limit = problem.tokens
            message = f"The input token count ({sent}) exceeds the maximum number of tokens allowed ({limit})."
        return code, {"error": {"code": code, "message": message, "status": status}}

    def interruption(self, problem: RequestProblem) -> bytes:
        return _event(self.refusal(problem)[1])

    def ping(self) -> bytes:
        # Google's own SDK takes a comment for a broken answer.
        return _event({})


def _event(value: dict[str, Any]) -> bytes:
    """In ASCII: Google's SDK ends a line at each separator of Unicode."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def _head(request: AgentRequest, completion: ChatCompletion) -> dict[str, Any]:
    return {"responseId": answer_id(completion), "modelVersion": request.model or completion.model}


def _candidate(index: int, parts: list[dict[str, Any]], finish: str | None = None) -> dict[str, Any]:
    ended = {} if finish is None else {"finishReason": FINISH_REASONS.get(finish, "STOP")}
    return {"index": index, "content": {"role": "model", "parts": parts}, **ended}


def _text_parts(reply: AgentReply, *, whole: bool) -> Iterator[dict[str, Any]]:
    """Reasoning and text. The first part of the answer itself carries the reasoning, which agents leave out."""
    for text in [reply.reasoning] if whole and reply.reasoning else chunks(reply.reasoning):
        yield {"text": text, "thought": True}
    signed = {"thoughtSignature": signature(reply.reasoning)} if reply.reasoning else {}
    for text in [reply.text] if whole and reply.text else chunks(reply.text):
        yield {"text": text, **signed}
        signed = {}


def _calls(reply: AgentReply) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = [
        {"functionCall": {"id": call.id, "name": call.name, "args": arguments_object(call.arguments)}}
        for call in reply.calls
    ]
    if parts and reply.reasoning and not reply.text:
        parts[0]["thoughtSignature"] = signature(reply.reasoning)
    return parts


def _usage(usage: Usage) -> dict[str, Any]:
    prompt, answer = usage.prompt_tokens or 0, usage.completion_tokens or 0
    return {"promptTokenCount": prompt, "candidatesTokenCount": answer, "totalTokenCount": prompt + answer}
