"""SGLang: token ids in and out on /generate, by its documented contract; there is no CPU build to test against.

From its source (managers/io_struct.py, managers/tokenizer_manager.py, layers/sampler.py):
- output_ids include the token that stopped them.
- A logprob is log_softmax(logits / temperature), before top_k, top_p and min_p: processed, as far as that can be
  corrected. With SGLANG_RETURN_ORIGINAL_LOGPROB set on the server it is taken before the temperature: raw.
- Prompt ids are returned by servers that know return_prompt_token_ids, else only their count.
- Token versions are returned as spans by servers that know weight_versions. Others return the version at the end of the
  request, which holds for every token only if weights are not swapped under running requests.
- A prompt that leaves less room than max_tokens is refused as too long, where vLLM would cut the completion.
"""

from collections.abc import Mapping, Sequence
from typing import Any

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
    version_number,
)
from hermes_rl.inference.token_engines.sampling import SamplingRequest
from hermes_rl.inference.tokens.sampled import EngineAnswer, Sampled


class SglangGenerate:
    def request(self, model: str, ids: Sequence[int], sampling: SamplingRequest) -> tuple[str, dict[str, Any]]:
        """The body names no model: a server has only one."""
        body = {
            "input_ids": list(ids),
            "sampling_params": _parameters(sampling),
            "return_logprob": True,
            "return_prompt_token_ids": True,
        }
        return "/generate", body

    def answer(self, raw: Any, ids: Sequence[int], sampling: SamplingRequest) -> EngineAnswer:
        # An object for one completion, a list for several.
        completions = raw if isinstance(raw, list) else [raw]
        completions = [parse_mapping(completion, "a completion") for completion in completions]
        check_count(completions, sampling)
        meta = parse_mapping(completions[0].get("meta_info"), "a meta_info")
        prompt = completions[0].get("prompt_token_ids")
        return EngineAnswer(
            tuple(_parse_completion(completion, sampling) for completion in completions),
            None if prompt is None else parse_token_ids(prompt, "prompt tokens"),
            optional_int(meta.get("prompt_tokens")),
            optional_int(meta.get("cached_tokens")),
        )


SGLANG = TokenEngine("sglang", "processed", (SglangGenerate(),))


def _parameters(sampling: SamplingRequest) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        # The default is 128; null means as many as fit.
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        # 0 is not allowed here.
        "top_k": sampling.top_k or -1,
        "min_p": sampling.min_p,
        "presence_penalty": sampling.presence_penalty,
        "frequency_penalty": sampling.frequency_penalty,
        "repetition_penalty": sampling.repetition_penalty,
        "min_new_tokens": sampling.min_tokens,
        "ignore_eos": sampling.ignore_eos,
        "n": sampling.n,
        "stop_token_ids": sampling.stop_token_ids,
    }
    if sampling.stop:
        parameters["stop"] = sampling.stop
    if sampling.logit_bias:
        parameters["logit_bias"] = sampling.logit_bias
    # The seed and a token's position determine the sample: with one seed all n would be the same.
    if sampling.seed is not None and sampling.n == 1:
        parameters["sampling_seed"] = sampling.seed
    return parameters


def _parse_completion(completion: Mapping[str, Any], sampling: SamplingRequest) -> Sampled:
    tokens, meta = completion.get("output_ids"), parse_mapping(completion.get("meta_info"), "a meta_info")
    ended = parse_mapping(meta.get("finish_reason"), "a finish_reason")
    reason = ended.get("type")
    finish = parse_finish(reason if reason in {"stop", "length"} else dict(ended), tokens, sampling)
    rows = meta.get("output_token_logprobs")
    if not isinstance(rows, list):
        raise no_logprobs(f"output_token_logprobs {excerpt(rows)}")
    if not all(isinstance(row, list) and len(row) >= 2 for row in rows):
        raise bad_response(f"output_token_logprobs {excerpt(rows)}")
    return build_sampled(tokens, [row[1] for row in rows], [row[0] for row in rows], _versions(meta, tokens), finish)


def _versions(meta: Mapping[str, Any], tokens: Any) -> Sequence[int | None] | None:
    spans = span_versions(meta.get("weight_versions"), tokens)
    if spans is not None or not isinstance(tokens, list) or "weight_version" not in meta:
        return spans
    return [version_number(meta["weight_version"])] * len(tokens)
