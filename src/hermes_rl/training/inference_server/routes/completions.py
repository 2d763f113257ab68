"""POST /v1/completions: continues a prompt of text or ids."""

import time
import uuid
from itertools import accumulate
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from hermes_rl.inference.tokens.chat_format import ChatFormat
from hermes_rl.training.inference_server.completion import Completion
from hermes_rl.training.inference_server.config import Formats
from hermes_rl.training.inference_server.prompts import encode_prompts
from hermes_rl.training.inference_server.responses import (
    json_response,
    oldest_version,
    requested_version,
    run_until_disconnect,
    sse_response,
    usage,
)
from hermes_rl.training.inference_server.sampling import CompletionSampler, PromptSamples
from hermes_rl.training.inference_server.schemas import CompletionBody


def completion_routes(sampler: CompletionSampler, formats: Formats) -> APIRouter:
    routes = APIRouter(tags=["OpenAI"])

    @routes.post("/v1/completions")
    async def completions(body: CompletionBody, request: Request) -> Response:
        """One or more prompts; text is encoded as is, without a BOS token."""
        chat_format = formats({})
        prompts, _ = encode_prompts(body.prompt, chat_format)
        results = await run_until_disconnect(
            request, sampler.sample_each(prompts, body.sampling(), chat_format, "prompt", requested_version(request))
        )
        choices = [(result, completion) for result in results for completion in result.completions]
        answer = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "created": int(time.time()),
            "model": sampler.settings.model,
            "choices": [
                {"index": index, **_choice(completion, result, chat_format, body)}
                for index, (result, completion) in enumerate(choices)
            ],
            "usage": usage(results),
            "policy_version": oldest_version(results),
        }
        if not body.stream:
            return json_response(answer)
        return sse_response(answer, body.stream_options)

    return routes


def _choice(
    completion: Completion, result: PromptSamples, chat_format: ChatFormat, body: CompletionBody
) -> dict[str, Any]:
    choice: dict[str, Any] = {
        "text": completion.text(chat_format),
        "finish_reason": completion.finish_reason,
        "logprobs": None if body.logprobs is None else _logprobs(completion, chat_format, body),
    }
    if body.return_token_ids:
        choice |= {"token_ids": completion.sampled.tokens, "prompt_token_ids": result.prompt}
    return choice


def _logprobs(completion: Completion, chat_format: ChatFormat, body: CompletionBody) -> dict[str, Any]:
    tokens = completion.sampled.tokens
    texts = [chat_format.decode([token]) for token in tokens]
    return {
        "tokens": [f"token_id:{token}" for token in tokens] if body.return_tokens_as_token_ids else texts,
        "token_logprobs": completion.sampled.logprobs,
        # Engines return only the logprob of the sampled token.
        "top_logprobs": None,
        "text_offset": list(accumulate(map(len, texts[:-1]), initial=0)) if texts else [],
    }
