"""SGLang: ids in and out on /generate, by its documented contract; there is no build of it for machines without a GPU.

From its source (managers/io_struct.py, managers/tokenizer_manager.py, layers/sampler.py): output_ids end in the token
that stopped them. A logprob is log_softmax(logits / temperature), before top_k, top_p and min_p cut it: processed as
far as it can be corrected; with SGLANG_RETURN_ORIGINAL_LOGPROB set on the server it is taken before the temperature:
raw. The prompt's ids come back from servers that know return_prompt_token_ids, else only their number. The version of
each token comes back as spans from servers that know weight_versions; others name the version the request ended with,
which is every token's only when weights are not exchanged under running requests. A prompt that leaves less room than
max_tokens is refused as too long, where vLLM would cut the completion.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_rl.inference.token_engines.engine import (
    TokenEngine,
    bad_response,
    count,
    counted,
    finish_of,
    mapping,
    no_logprobs,
    sampled,
    shown,
    span_versions,
    token_ids,
    version_number,
)
from hermes_rl.inference.token_engines.sampling import SamplingRequest
from hermes_rl.tokens.exchange import Answer, Sampled


class Generate:
    def request(self, model: str, ids: Sequence[int], sampling: SamplingRequest) -> tuple[str, dict[str, Any]]:
        """The body names no model: the server has one."""
        body = {
            "input_ids": list(ids),
            "sampling_params": _parameters(sampling),
            "return_logprob": True,
            "return_prompt_token_ids": True,
        }
        return "/generate", body

    def answer(self, raw: Any, ids: Sequence[int], sampling: SamplingRequest) -> Answer:
        # One object for one completion, a list for more.
        completions = raw if isinstance(raw, list) else [raw]
        completions = [mapping(one, "a completion") for one in completions]
        counted(completions, sampling)
        meta = mapping(completions[0].get("meta_info"), "a meta_info")
        prompt = completions[0].get("prompt_token_ids")
        return Answer(
            tuple(_sampled(one, sampling) for one in completions),
            None if prompt is None else token_ids(prompt, "prompt tokens"),
            count(meta.get("prompt_tokens")),
            count(meta.get("cached_tokens")),
        )


SGLANG = TokenEngine("sglang", "processed", (Generate(),))


def _parameters(sampling: SamplingRequest) -> dict[str, Any]:
    parameters: dict[str, Any] = {
        # Without the field it is 128; null is as many as fit.
        "max_new_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        # 0 is no value here.
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
    # The seed and the place of a token decide what is drawn there: with one seed all n would be the same.
    if sampling.seed is not None and sampling.n == 1:
        parameters["sampling_seed"] = sampling.seed
    return parameters


def _sampled(completion: Mapping[str, Any], sampling: SamplingRequest) -> Sampled:
    tokens, meta = completion.get("output_ids"), mapping(completion.get("meta_info"), "a meta_info")
    ended = mapping(meta.get("finish_reason"), "a finish_reason")
    reason = ended.get("type")
    finish = finish_of(reason if reason in {"stop", "length"} else dict(ended), tokens, sampling)
    rows = meta.get("output_token_logprobs")
    if not isinstance(rows, list):
        raise no_logprobs(f"output_token_logprobs {shown(rows)}")
    if not all(isinstance(row, list) and len(row) >= 2 for row in rows):
        raise bad_response(f"output_token_logprobs {shown(rows)}")
    return sampled(tokens, [row[1] for row in rows], [row[0] for row in rows], _versions(meta, tokens), finish)


def _versions(meta: Mapping[str, Any], tokens: Any) -> Sequence[int | None] | None:
    spans = span_versions(meta.get("weight_versions"), tokens)
    if spans is not None or not isinstance(tokens, list) or "weight_version" not in meta:
        return spans
    return [version_number(meta["weight_version"])] * len(tokens)
