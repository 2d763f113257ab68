"""POST /v1/chat/completions: messages in, a message out, with the calls and the thinking that its tokens hold."""

import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from hermes_rl.tokens.chat_format import ChatFormat, Reply, Tools
from hermes_rl.training.inference_server.answers import as_events, as_json, attended, chat_logprobs, usage
from hermes_rl.training.inference_server.bodies import ChatBody
from hermes_rl.training.inference_server.completion import Completion
from hermes_rl.training.inference_server.drawing import Drawing
from hermes_rl.training.inference_server.settings import Formats


def chat_routes(drawing: Drawing, formats: Formats) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/chat/completions")
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        """What the policy says next. tool_choice none: as if there were no tools."""
        chat_format = formats(body.chat_template_kwargs or {})
        tools = body.tools if body.tools and body.tool_choice != "none" else []
        ids = chat_format.prompt(body.messages, tools)
        drawn = await attended(request, drawing.draw(ids, body.sampling(), chat_format, "messages"))
        answer = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": drawing.settings.model,
            "choices": [
                {"index": index, **_choice(one, ids, tools, chat_format, body)}
                for index, one in enumerate(drawn.completions)
            ],
            "usage": usage([drawn]),
            "policy_version": drawn.version,
        }
        if body.return_token_ids:
            answer["prompt_token_ids"] = ids
        if not body.stream:
            return as_json(answer)
        return as_events(_chunks(answer, with_usage=bool(body.stream_options and body.stream_options.include_usage)))

    return routes


def _choice(
    completion: Completion, ids: Sequence[int], tools: Tools, chat_format: ChatFormat, body: ChatBody
) -> dict[str, Any]:
    reply = chat_format.reply(completion.readable(chat_format), ids, tools)
    calls = bool(reply.calls) and completion.finish_reason == "stop"
    choice: dict[str, Any] = {
        "message": _message(reply),
        "finish_reason": "tool_calls" if calls else completion.finish_reason,
        "logprobs": chat_logprobs(completion.sampled, chat_format) if body.logprobs else None,
    }
    if body.return_token_ids:
        choice["token_ids"] = completion.sampled.tokens
    return choice


def _message(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    if reply.reasoning:
        message["reasoning_content"] = reply.reasoning
    if reply.calls:
        message["content"] = reply.content or None
        message["tool_calls"] = [call.as_dict() for call in reply.calls]
    return message


def _chunks(answer: dict[str, Any], *, with_usage: bool) -> Iterator[dict[str, Any]]:
    """The same as a stream: a chunk for each choice."""
    total = answer.pop("usage")
    answer["object"] = "chat.completion.chunk"
    for choice in answer["choices"]:
        delta = choice.pop("message")
        if "tool_calls" in delta:
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
        yield {**answer, "choices": [{**choice, "delta": delta}]}
    if with_usage:
        yield {**answer, "choices": [], "usage": total}
