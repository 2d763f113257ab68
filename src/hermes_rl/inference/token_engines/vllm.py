"""vLLM: token ids in and out on /inference/v1/generate, or on /v1/completions if the server lacks that route.

Read from the source of vLLM 0.32 and measured: sampled ids always include the token that stopped them, be it the end
token, one of stop_token_ids or the one that completes a stop string. Logprobs are raw unless the server runs with
--logprobs-mode processed_logprobs. Only the first route reports which weights sampled each token; it answers 403
without --enable-scale-out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from hermes_rl.core.errors import EndpointError
from hermes_rl.inference.token_engines.engine import (
    TokenEngine,
    bad_response,
    build_sampled,
    check_count,
    excerpt,
    no_logprobs,
    optional_int,
    parse_finish,
    parse_mapping,
    parse_token_ids,
    span_versions,
)
from hermes_rl.inference.token_engines.sampling import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer, Sampled


class VllmGenerate:
    def request(self, model: str, ids: Sequence[int], sampling: SamplingRequest) -> tuple[str, dict[str, Any]]:
        parameters = _parameters(sampling)
        if sampling.max_tokens is not None:
            parameters["max_tokens"] = sampling.max_tokens
        if not sampling.stop:
            parameters["detokenize"] = False
        body = {"model": model, "token_ids": list(ids), "sampling_params": parameters, "return_token_ids": True}
        return "/inference/v1/generate", body

    def answer(self, raw: Any, ids: Sequence[int], sampling: SamplingRequest) -> EngineAnswer:
        body, choices = _choices(raw, sampling)
        return _answer(body, [_generated(choice, sampling) for choice in choices], body.get("prompt_token_ids"))


class Completions:
    def request(self, model: str, ids: Sequence[int], sampling: SamplingRequest) -> tuple[str, dict[str, Any]]:
        body = {
            "model": model,
            "prompt": list(ids),
            # Only on this route a missing max_tokens means 16; null means as many as fit.
            "max_tokens": sampling.max_tokens,
            "return_token_ids": True,
            # So that each logprob names its token id.
            "return_tokens_as_token_ids": True,
        }
        return "/v1/completions", body | _parameters(sampling)

    def answer(self, raw: Any, ids: Sequence[int], sampling: SamplingRequest) -> EngineAnswer:
        body, choices = _choices(raw, sampling)
        return _answer(body, [_completed(choice, sampling) for choice in choices], choices[0].get("prompt_token_ids"))


VLLM = TokenEngine("vllm", "raw", (VllmGenerate(), Completions()))


def _parameters(sampling: SamplingRequest) -> dict[str, Any]:
    parameters = asdict(sampling)
    del parameters["max_tokens"]
    for name in ("logit_bias", "seed", "stop"):
        if parameters[name] in (None, (), {}):
            del parameters[name]
    return parameters | {"logprobs": 0}


def _choices(raw: Any, sampling: SamplingRequest) -> tuple[Mapping[str, Any], list[Mapping[str, Any]]]:
    body = parse_mapping(raw, "no object:")
    if not isinstance(body.get("choices"), list):
        raise bad_response(f"no choices: {excerpt(raw)}")
    choices = [parse_mapping(choice, "a choice") for choice in body["choices"]]
    check_count(choices, sampling)
    return body, choices


def _generated(choice: Mapping[str, Any], sampling: SamplingRequest) -> Sampled:
    tokens, logprobs = choice.get("token_ids"), choice.get("logprobs")
    finish = parse_finish(choice.get("finish_reason"), tokens, sampling)
    content = logprobs.get("content") if isinstance(logprobs, Mapping) else None
    if not isinstance(content, list):
        raise no_logprobs(f"logprobs {excerpt(logprobs)}")
    entries = [parse_mapping(entry, "a logprob") for entry in content]
    return build_sampled(
        tokens,
        [entry.get("token_id") for entry in entries],
        [entry.get("logprob") for entry in entries],
        span_versions(choice.get("weight_versions"), tokens),
        finish,
    )


def _completed(choice: Mapping[str, Any], sampling: SamplingRequest) -> Sampled:
    tokens, logprobs = choice.get("token_ids"), choice.get("logprobs")
    finish = parse_finish(choice.get("finish_reason"), tokens, sampling)
    if tokens is None:
        raise EndpointError(
            "no_tokens",
            "the server returned text without token ids; use a vLLM that knows return_token_ids, such as 0.32",
        )
    if not isinstance(logprobs, Mapping) or not isinstance(logprobs.get("tokens"), list):
        raise no_logprobs(f"logprobs {excerpt(logprobs)}")
    named = [_parse_token_id(name) for name in logprobs["tokens"]]
    return build_sampled(tokens, named, logprobs.get("token_logprobs"), None, finish)


def _parse_token_id(name: Any) -> int | None:
    number = str(name).removeprefix("token_id:")
    return int(number) if number.isdecimal() else None


def _answer(body: Mapping[str, Any], completions: list[Sampled], prompt: Any) -> EngineAnswer:
    usage = body.get("usage")
    usage = usage if isinstance(usage, Mapping) else {}
    details = usage.get("prompt_tokens_details")
    return EngineAnswer(
        tuple(completions),
        None if prompt is None else parse_token_ids(prompt, "prompt tokens"),
        optional_int(usage.get("prompt_tokens")),
        optional_int(details.get("cached_tokens")) if isinstance(details, Mapping) else None,
    )
