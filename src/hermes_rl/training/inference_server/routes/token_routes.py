"""Token routes: POST /inference/v1/generate (vLLM 0.32), POST /generate (SGLang) and POST /logprobs."""

import time
import uuid
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from hermes_rl.inference.tokens.chat_format import ChatFormat
from hermes_rl.training.inference_server.completion import Completion
from hermes_rl.training.inference_server.config import Formats
from hermes_rl.training.inference_server.prompts import encode_prompts
from hermes_rl.training.inference_server.responses import (
    json_response,
    requested_version,
    run_until_disconnect,
    usage,
    version_spans,
)
from hermes_rl.training.inference_server.sampling import CompletionSampler, PromptSamples
from hermes_rl.training.inference_server.schemas import LogprobsBody, SGLangBody, VLLMBody


def sglang_routes(sampler: CompletionSampler, formats: Formats) -> APIRouter:
    routes = APIRouter(tags=["tokens"])

    @routes.post("/generate")
    async def generate(body: SGLangBody, request: Request) -> Response:
        """Returns an object for one completion, a list for several."""
        chat_format = formats({})
        field = "input_ids" if body.text is None else "text"
        prompts, single = encode_prompts(body.input_ids or body.text or "", chat_format)
        parameters = body.sampling_params.sampling()
        results = await run_until_disconnect(
            request, sampler.sample_each(prompts, parameters, chat_format, field, requested_version(request))
        )
        answers = [
            _sglang_answer(result, completion, chat_format, body)
            for result in results
            for completion in result.completions
        ]
        return json_response(answers[0] if single and len(answers) == 1 else answers)

    return routes


def _sglang_answer(
    result: PromptSamples, completion: Completion, chat_format: ChatFormat, body: SGLangBody
) -> dict[str, Any]:
    sampled = completion.sampled
    stopped = completion.finish_reason == "stop"
    spans = version_spans(sampled)
    meta: dict[str, Any] = {
        "id": uuid.uuid4().hex,
        "finish_reason": {"type": "stop", "matched": completion.matched}
        if stopped
        else {"type": "length", "length": len(sampled.tokens)},
        "prompt_tokens": len(result.prompt),
        "completion_tokens": len(sampled.tokens),
        "cached_tokens": 0,
        "weight_version": spans[-1]["version"] if spans else str(result.version),
        "weight_versions": spans,
    }
    if body.return_logprob:
        texts = [chat_format.decode([token]) if body.return_text_in_logprobs else None for token in sampled.tokens]
        meta["output_token_logprobs"] = list(zip(sampled.logprobs, sampled.tokens, texts, strict=True))
    answer = {"text": completion.text(chat_format), "output_ids": sampled.tokens, "meta_info": meta}
    if body.return_prompt_token_ids:
        answer["prompt_token_ids"] = result.prompt
    return answer


def logprob_routes(sampler: CompletionSampler, formats: Formats) -> APIRouter:
    routes = APIRouter(tags=["tokens"])

    @routes.post("/logprobs")
    async def logprobs(body: LogprobsBody, request: Request) -> Response:
        """The logprob of each token given its prefix; null for the first."""
        field = "text" if body.token_ids is None else "token_ids"
        ids = body.token_ids or formats({}).encode(body.text or "")
        version, values = await run_until_disconnect(request, sampler.logprobs(ids, field, requested_version(request)))
        return json_response({"token_ids": ids, "logprobs": values, "policy_version": version})

    return routes


def vllm_routes(sampler: CompletionSampler, formats: Formats) -> APIRouter:
    routes = APIRouter(tags=["tokens"])

    @routes.post("/inference/v1/generate")
    async def generate(body: VLLMBody, request: Request) -> Response:
        """Each token with its logprob and policy version."""
        parameters = body.sampling_params.sampling()
        result = await run_until_disconnect(
            request, sampler.sample(body.token_ids, parameters, formats({}), "token_ids", requested_version(request))
        )
        logprobs = body.sampling_params.logprobs is not None
        answer = {
            "request_id": uuid.uuid4().hex,
            "model": sampler.settings.model,
            "created": int(time.time()),
            "output_mode": "tokens",
            "choices": [
                {"index": index, **_choice(completion, with_logprobs=logprobs)}
                for index, completion in enumerate(result.completions)
            ],
            "usage": usage([result]),
            "policy_version": result.version,
        }
        if body.return_token_ids:
            answer["prompt_token_ids"] = body.token_ids
        return json_response(answer)

    return routes


def _choice(completion: Completion, *, with_logprobs: bool) -> dict[str, Any]:
    sampled = completion.sampled
    content: list[dict[str, Any]] = [
        {"token_id": token, "logprob": logprob, "rank": None, "top_logprobs": []}
        for token, logprob in zip(sampled.tokens, sampled.logprobs, strict=True)
    ]
    return {
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.matched,
        "token_ids": sampled.tokens,
        "logprobs": {"content": content} if with_logprobs else None,
        "weight_versions": version_spans(sampled),
    }
