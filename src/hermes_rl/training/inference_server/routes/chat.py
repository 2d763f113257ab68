"""POST /v1/chat/completions: messages in, a message out, with its tool calls and reasoning."""

import time
import uuid
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from hermes_rl.inference.tokens.chat_format import ChatFormat, Reply, Tools
from hermes_rl.training.inference_server.completion import Completion
from hermes_rl.training.inference_server.config import Formats
from hermes_rl.training.inference_server.responses import (
    chat_logprobs,
    json_response,
    requested_version,
    run_until_disconnect,
    sse_response,
    usage,
)
from hermes_rl.training.inference_server.sampling import CompletionSampler
from hermes_rl.training.inference_server.schemas import ChatBody


def chat_routes(sampler: CompletionSampler, formats: Formats) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/chat/completions")
    async def chat_completions(body: ChatBody, request: Request) -> Response:
        """The policy's next message. tool_choice none hides the tools from the prompt."""
        chat_format = formats(body.chat_template_kwargs or {})
        tools = body.tools if body.tools and body.tool_choice != "none" else []
        ids = chat_format.prompt(body.messages, tools)
        version = requested_version(request)
        result = await run_until_disconnect(
            request, sampler.sample(ids, body.sampling(), chat_format, "messages", version)
        )
        answer = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "object": "chat.completion",
            "created": int(time.time()),
            "model": sampler.settings.model,
            "choices": [
                {"index": index, **_choice(completion, ids, tools, chat_format, body)}
                for index, completion in enumerate(result.completions)
            ],
            "usage": usage([result]),
            "policy_version": result.version,
        }
        if body.return_token_ids:
            answer["prompt_token_ids"] = ids
        if not body.stream:
            return json_response(answer)
        return sse_response(_with_deltas(answer), body.stream_options)

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


def _with_deltas(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer in streaming form."""
    answer["object"] = "chat.completion.chunk"
    for choice in answer["choices"]:
        choice["delta"] = delta = choice.pop("message")
        if "tool_calls" in delta:
            delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(delta["tool_calls"])]
    return answer
