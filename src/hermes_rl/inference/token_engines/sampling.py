"""SamplingRequest: sampling parameters, under their OpenAI names.

Every field has a value, and the defaults sample from the model's own distribution. All fields are sent, because servers
have other defaults: vLLM's completions use the model's generation_config, SGLang its start-up settings.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.trajectory import Sampling

# The distribution of the logprobs: the model's own, or the one that was sampled from.
Logprobs: TypeAlias = Literal["raw", "processed"]

# Below this temperature vLLM samples greedily.
GREEDY = 1e-5

# Used to render the prompt or to parse the answer; logprobs are always requested.
NOT_SAMPLING = {"chat_template_kwargs", "logprobs", "tools", "top_logprobs", "user"}
# Fields that have no effect at this value.
NO_EFFECT: Mapping[str, Any] = {
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "stream": False,
    "tool_choice": "auto",
}

Ratio: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]


def _as_tuple(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(allow_inf_nan=False))
class SamplingRequest:
    max_tokens: int | None = Field(default=None, ge=1)
    """None: as many as fit the context."""
    temperature: float = Field(default=1.0, ge=0)
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=-1, ge=-1)
    """-1 and 0: all."""
    min_p: Ratio = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: float = Field(default=1.0, gt=0)
    logit_bias: dict[int, float] = Field(default_factory=dict)
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    seed: int | None = None
    n: int = Field(default=1, ge=1)
    stop: Annotated[tuple[str, ...], BeforeValidator(_as_tuple)] = ()
    stop_token_ids: tuple[int, ...] = ()

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, Any], stop_token_ids: Sequence[int] = ()) -> "SamplingRequest":
        """Parse the parameters of a chat call and its extra_body; ConfigError names one that is not supported."""
        given = {name: value for name, value in parameters.items() if value is not None and name not in NOT_SAMPLING}
        for name, default in NO_EFFECT.items():
            if given.pop(name, default) != default:
                raise ConfigError(
                    f"{name}={parameters[name]!r} is not supported with exact tokens; leave it out, "
                    "or sample in chat mode, which cannot be trained on"
                )
        if "max_completion_tokens" in given:
            given["max_tokens"] = given.pop("max_completion_tokens")
        known = [field.name for field in fields(cls)]
        unknown = sorted(given.keys() - known)
        if unknown:
            raise ConfigError(
                f"{', '.join(unknown)}: not a sampling parameter for exact tokens; leave it out, or use one of "
                f"{', '.join(known)}"
            )
        try:
            request = cls(**given)
        except ValidationError as error:
            [first, *_] = error.errors(include_url=False)
            name = str(first["loc"][0])
            raise ConfigError(f"{name}={given[name]!r}: {first['msg'].lower()}") from None
        return replace(request, stop_token_ids=tuple(dict.fromkeys((*request.stop_token_ids, *stop_token_ids))))

    def sampling(self, logprobs: str) -> Sampling:
        """The settings that are recorded with each sequence."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p if self.top_p < 1 else None,
            top_k=self.top_k if self.top_k > 0 else None,
            logprobs=logprobs,
        )


def uncorrectable_reason(request: SamplingRequest, logprobs: str) -> str | None:
    """Why importance weights cannot correct for this sampling, and what to change; None when they can.

    A weight is the ratio of a token's probability under the current policy to that at sampling time. So the logprobs
    must come from the distribution that was sampled, and that distribution must exclude no token.

    A penalty or a bias also leaves a ratio under processed logprobs, but training would undo it token by token, and no
    record shows that it was used. Stop strings and `ignore_eos` only decide where to end: every sampled token is
    kept, including the one that completes a stop string; only the text is cut.
    """
    if request.temperature < GREEDY:
        return "temperature 0 samples greedily, which leaves no probability to weight by; set temperature to 1"
    cut = [
        f"{name}={value:g}"
        for name, value, off in (
            ("top_p", request.top_p, 1.0),
            ("top_k", max(request.top_k, 0), 0),
            ("min_p", request.min_p, 0.0),
            ("min_tokens", request.min_tokens, 0),
        )
        if value != off
    ]
    if cut:
        return f"{', '.join(cut)} excludes tokens that the policy could sample; leave it out of the sampling"
    biased = [
        name
        for name, changed in (
            ("presence_penalty", request.presence_penalty != 0),
            ("frequency_penalty", request.frequency_penalty != 0),
            ("repetition_penalty", request.repetition_penalty != 1),
            ("logit_bias", bool(request.logit_bias)),
        )
        if changed
    ]
    if biased:
        return f"{', '.join(biased)} samples from another distribution than the policy's; leave it out of the sampling"
    if logprobs == "raw" and request.temperature != 1:
        return (
            f"temperature {request.temperature:g} with raw logprobs: they are not of the sampled distribution; "
            "set temperature to 1, or have the server return processed logprobs "
            "(vLLM: --logprobs-mode processed_logprobs; SGLang: unset SGLANG_RETURN_ORIGINAL_LOGPROB)"
        )
    return None
