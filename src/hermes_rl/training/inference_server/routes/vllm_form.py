"""POST /inference/v1/generate: ids in, ids out, in the form of vLLM 0.32."""

import time
import uuid
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from hermes_rl.training.inference_server.answers import as_json, attended, usage, version_spans
from hermes_rl.training.inference_server.bodies import VLLMBody
from hermes_rl.training.inference_server.completion import Completion
from hermes_rl.training.inference_server.drawing import Drawing
from hermes_rl.training.inference_server.settings import Formats


def vllm_routes(drawing: Drawing, formats: Formats) -> APIRouter:
    routes = APIRouter(tags=["tokens"])

    @routes.post("/inference/v1/generate")
    async def generate(body: VLLMBody, request: Request) -> Response:
        """Each token with its logprob and the version of the weights that drew it."""
        parameters = body.sampling_params.sampling()
        drawn = await attended(request, drawing.draw(body.token_ids, parameters, formats({}), "token_ids"))
        logprobs = body.sampling_params.logprobs is not None
        answer = {
            "request_id": uuid.uuid4().hex,
            "model": drawing.settings.model,
            "created": int(time.time()),
            "output_mode": "tokens",
            "choices": [
                {"index": index, **_choice(one, with_logprobs=logprobs)} for index, one in enumerate(drawn.completions)
            ],
            "usage": usage([drawn]),
            "policy_version": drawn.version,
        }
        if body.return_token_ids:
            answer["prompt_token_ids"] = body.token_ids
        return as_json(answer)

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
