"""POST /v1/completions: the text that goes on from a prompt of text or ids."""

import time
import uuid
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from hermes_rl.tokens.chat_format import ChatFormat
from hermes_rl.training.inference_server.answers import as_events, as_json, attended, oldest_version, usage
from hermes_rl.training.inference_server.bodies import CompletionBody
from hermes_rl.training.inference_server.completion import Completion
from hermes_rl.training.inference_server.drawing import Drawing, Drawn
from hermes_rl.training.inference_server.prompts import encoded_prompts
from hermes_rl.training.inference_server.settings import Formats


def completion_routes(drawing: Drawing, formats: Formats) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        """One or more prompts; text is encoded as it stands, with no token before it."""
        chat_format = formats({})
        prompts, _ = encoded_prompts(body.prompt, chat_format)
        drawn = await attended(request, drawing.draw_each(prompts, body.sampling(), chat_format, "prompt"))
        choices = [(one, completion) for one in drawn for completion in one.completions]
        answer = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": drawing.settings.model,
            "choices": [
                {"index": index, **_choice(completion, one, chat_format, body)}
                for index, (one, completion) in enumerate(choices)
            ],
            "usage": usage(drawn),
            "policy_version": oldest_version(drawn),
        }
        if not body.stream:
            return as_json(answer)
        return as_events(_chunks(answer, with_usage=bool(body.stream_options and body.stream_options.include_usage)))

    return routes


def _choice(completion: Completion, drawn: Drawn, chat_format: ChatFormat, body: CompletionBody) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "text": completion.text(chat_format),
        "finish_reason": completion.finish_reason,
        "logprobs": None if body.logprobs is None else _logprobs(completion, chat_format, body),
    }
    if body.return_token_ids:
        choice |= {"token_ids": completion.sampled.tokens, "prompt_token_ids": drawn.prompt}
    return choice


def _logprobs(completion: Completion, chat_format: ChatFormat, body: CompletionBody) -> dict[str, Any]:
    tokens = completion.sampled.tokens
    texts = [chat_format.decode([token]) for token in tokens]
    return {
        "tokens": [f"token_id:{token}" for token in tokens] if body.return_tokens_as_token_ids else texts,
        "token_logprobs": completion.sampled.logprobs,
        # Of the tokens that were not drawn nothing is known.
        "top_logprobs": None,
        "text_offset": list(accumulate(map(len, texts[:-1]), initial=0)) if texts else [],
    }


def _chunks(answer: dict[str, Any], *, with_usage: bool) -> Iterator[dict[str, Any]]:
    """The same as a stream: a chunk for each choice."""
    total = answer.pop("usage")
    for choice in answer["choices"]:
        yield {**answer, "choices": [choice]}
    if with_usage:
        yield {**answer, "choices": [], "usage": total}
