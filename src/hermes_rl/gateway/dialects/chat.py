"""OpenAI Chat Completions: POST /v1/chat/completions. Requests are read in chat_requests.py."""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from hermes_rl.gateway.asked import Asked, Told
from hermes_rl.gateway.dialects import openai_refusals, sse
from hermes_rl.gateway.dialects.chat_requests import read
from hermes_rl.gateway.dialects.earlier import Earlier
from hermes_rl.gateway.dialects.said import Said, mark, pieces
from hermes_rl.gateway.problems import Problem
from hermes_rl.trajectory import Usage


class Chat:
    name = "chat"
    path = "/v1/chat/completions"

    def key(self, headers: Mapping[str, str]) -> str | None:
        return openai_refusals.bearer(headers)

    def asked(self, body: Any, earlier: Earlier | None = None) -> Asked:
        return read(body, earlier)

    def answer(self, asked: Asked, told: Told) -> dict[str, Any]:
        choices = []
        for choice in told.choices:
            said = Said.of(asked, choice)
            choices.append(
                {
                    "index": choice.index,
                    "message": _message(asked, said),
                    "logprobs": None,
                    "finish_reason": _finish(asked, said),
                }
            )
        return {**_head(asked, told, "chat.completion"), "choices": choices, "usage": _usage(told.usage)}

    def events(self, asked: Asked, told: Told) -> Iterator[bytes]:
        head = _head(asked, told, "chat.completion.chunk")
        usage = {"usage": None} if asked.want_usage else {}

        def chunk(index: int, delta: Mapping[str, Any], finish: str | None = None) -> bytes:
            choice = {"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}
            return sse.data({**head, "choices": [choice], **usage})

        for choice in told.choices:
            said = Said.of(asked, choice)
            yield chunk(choice.index, {"role": "assistant", "content": "", "refusal": None})
            for delta in _deltas(asked, said):
                yield chunk(choice.index, delta)
            yield chunk(choice.index, {}, _finish(asked, said))
        if asked.want_usage:
            yield sse.data({**head, "choices": [], "usage": _usage(told.usage)})
        yield sse.DONE

    def refusal(self, problem: Problem) -> tuple[int, dict[str, Any]]:
        return openai_refusals.refusal(problem, "messages")

    def interruption(self, problem: Problem) -> bytes:
        """The end of a stream that had begun when the problem arose."""
        return sse.data(self.refusal(problem)[1])

    def ping(self) -> bytes:
        return sse.COMMENT


def _head(asked: Asked, told: Told, kind: str) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{mark(told)}",
        "object": kind,
        "created": int(time.time()),
        "model": asked.model or told.model,
        "system_fingerprint": None,
    }


def _message(asked: Asked, said: Said) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": said.text or None if said.calls else said.text}
    message["refusal"] = None
    if said.thinking:
        message["reasoning_content"] = said.thinking
    if said.calls and asked.echo.get("functions"):
        message["function_call"] = {"name": said.calls[0].name, "arguments": said.calls[0].arguments}
    elif said.calls:
        message["tool_calls"] = [call.as_dict() for call in said.calls]
    return message


def _deltas(asked: Asked, said: Said) -> Iterator[dict[str, Any]]:
    for piece in pieces(said.thinking):
        yield {"reasoning_content": piece}
    for piece in pieces(said.text):
        yield {"content": piece}
    if said.calls and asked.echo.get("functions"):
        yield {"function_call": {"name": said.calls[0].name, "arguments": ""}}
        for piece in pieces(said.calls[0].arguments):
            yield {"function_call": {"arguments": piece}}
        return
    for index, call in enumerate(said.calls):
        begun = {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": ""}}
        yield {"tool_calls": [{"index": index, **begun}]}
        for piece in pieces(call.arguments):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _finish(asked: Asked, said: Said) -> str:
    if said.finish == "tool_calls" and asked.echo.get("functions"):
        return "function_call"
    return "length" if said.finish == "context_full" else said.finish


def _usage(usage: Usage) -> dict[str, Any]:
    prompt, completion = usage.prompt_tokens or 0, usage.completion_tokens or 0
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    }
