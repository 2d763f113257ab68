"""OpenAI Chat Completions: POST /v1/chat/completions. chat_requests.py parses the requests."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from hermes_rl.core.trajectory import Usage
from hermes_rl.gateway.dialects import openai_refusals, sse
from hermes_rl.gateway.dialects.chat_requests import parse_request
from hermes_rl.gateway.dialects.previous_responses import PreviousResponses
from hermes_rl.gateway.dialects.reply import AgentReply, answer_id, chunks
from hermes_rl.gateway.errors import RequestProblem
from hermes_rl.gateway.request import AgentRequest
from hermes_rl.inference.completion import ChatCompletion


class Chat:
    name = "chat"
    path = "/v1/chat/completions"

    def match(self, path: str) -> Mapping[str, Any] | None:
        return {} if path == self.path else None

    def key(self, headers: Mapping[str, str]) -> str | None:
        return openai_refusals.bearer_key(headers)

    def parse_request(self, body: Any, previous: PreviousResponses | None = None) -> AgentRequest:
        return parse_request(body, previous)

    def answer(self, request: AgentRequest, completion: ChatCompletion) -> dict[str, Any]:
        choices = []
        for choice in completion.choices:
            reply = AgentReply.from_choice(request, choice)
            choices.append(
                {
                    "index": choice.index,
                    "message": _message(request, reply),
                    "logprobs": None,
                    "finish_reason": _finish(request, reply),
                }
            )
        return {**_head(request, completion, "chat.completion"), "choices": choices, "usage": _usage(completion.usage)}

    def events(self, request: AgentRequest, completion: ChatCompletion) -> Iterator[bytes]:
        head = _head(request, completion, "chat.completion.chunk")
        usage = {"usage": None} if request.want_usage else {}

        def chunk(index: int, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
            return sse.data({**head, "choices": [choice], **usage})

        for choice in completion.choices:
            reply = AgentReply.from_choice(request, choice)
            yield chunk(choice.index, {"role": "assistant", "content": "", "refusal": None})
            for delta in _deltas(request, reply):
                yield chunk(choice.index, delta)
            yield chunk(choice.index, {}, _finish(request, reply))
        if request.want_usage:
            yield sse.data({**head, "choices": [], "usage": _usage(completion.usage)})
        yield sse.DONE

    def refusal(self, problem: RequestProblem) -> tuple[int, dict[str, Any]]:
        return openai_refusals.refusal(problem, "messages")

    def interruption(self, problem: RequestProblem) -> bytes:
        return sse.data(self.refusal(problem)[1])

    def ping(self) -> bytes:
        return sse.COMMENT


def _head(request: AgentRequest, completion: ChatCompletion, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{answer_id(completion)}",
        "object": kind,
        "created": int(time.time()),
        "model": request.model or completion.model,
        "system_fingerprint": None,
    }


def _message(request: AgentRequest, reply: AgentReply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None if reply.calls else reply.text}
    message["refusal"] = None
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls and request.echo.get("functions"):
        message["function_call"] = {"name": reply.calls[0].name, "arguments": reply.calls[0].arguments}
    elif reply.calls:
        message["tool_calls"] = [call.as_dict() for call in reply.calls]
    return message


def _deltas(request: AgentRequest, reply: AgentReply) -> Iterator[dict[str, Any]]:
    for piece in chunks(reply.reasoning):
        yield {"reasoning_content": piece}
    for piece in chunks(reply.text):
        yield {"content": piece}
    if reply.calls and request.echo.get("functions"):
        yield {"function_call": {"name": reply.calls[0].name, "arguments": ""}}
        for piece in chunks(reply.calls[0].arguments):
            yield {"function_call": {"arguments": piece}}
        return
    for index, call in enumerate(reply.calls):
        started = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        yield {"tool_calls": [{"index": index, **started}]}
        for piece in chunks(call.arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _finish(request: AgentRequest, reply: AgentReply) -> str:
    if reply.finish == "tool_calls" and request.echo.get("functions"):
        return "function_call"
    return "length" if reply.finish == "context_full" else reply.finish


def _usage(usage: Usage) -> dict[str, Any]:
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
