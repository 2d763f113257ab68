"""POST /generate: ids or text in, ids and text out, in the form of SGLang."""

import uuid
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from hermes_rl.tokens.chat_format import ChatFormat
from hermes_rl.training.inference_server.answers import as_json, attended, version_spans
from hermes_rl.training.inference_server.bodies import SGLangBody
from hermes_rl.training.inference_server.completion import Completion
from hermes_rl.training.inference_server.drawing import Drawing, Drawn
from hermes_rl.training.inference_server.prompts import encoded_prompts
from hermes_rl.training.inference_server.settings import Formats


def sglang_routes(drawing: Drawing, formats: Formats) -> APIRouter:
    routes = APIRouter(tags=["tokens"])

    @routes.post("/generate")
    async def generate(body: SGLangBody, request: Request) -> Response:
        """One object for one completion, a list for more."""
        chat_format = formats({})
        field = "input_ids" if body.text is None else "text"
        prompts, alone = encoded_prompts(body.input_ids or body.text or "", chat_format)
        parameters = body.sampling_params.sampling()
        drawn = await attended(request, drawing.draw_each(prompts, parameters, chat_format, field))
        answers = [_completed(one, completion, chat_format, body) for one in drawn for completion in one.completions]
        return as_json(answers[0] if alone and len(answers) == 1 else answers)

    return routes


def _completed(drawn: Drawn, completion: Completion, chat_format: ChatFormat, body: SGLangBody) -> dict[str, Any]:
    sampled = completion.sampled
    stopped = completion.finish_reason == "stop"
    spans = version_spans(sampled)
    meta: dict[str, Any] = {
        "id": uuid.uuid4().hex,
        "finish_reason": {"type": "stop", "matched": completion.matched}
        if stopped
        else {"type": "length", "length": len(sampled.tokens)},
        "prompt_tokens": len(drawn.prompt),
        "completion_tokens": len(sampled.tokens),
        "cached_tokens": 0,
        "weight_version": spans[-1]["version"] if spans else str(drawn.version),
        "weight_versions": spans,
    }
    if body.return_logprob:
        texts = [chat_format.decode([token]) if body.return_text_in_logprobs else None for token in sampled.tokens]
        meta["output_token_logprobs"] = list(zip(sampled.logprobs, sampled.tokens, texts, strict=True))
    answer = {"text": completion.text(chat_format), "output_ids": sampled.tokens, "meta_info": meta}
    if body.return_prompt_token_ids:
        answer["prompt_token_ids"] = drawn.prompt
    return answer
