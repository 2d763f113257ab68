"""SamplingRequest: how tokens are to be drawn, in the names of an OpenAI call.

Always true: every field has a value, and the values nobody set are those of the model's own distribution. All of them
are sent, since servers have defaults of their own: vLLM's completions take the model's generation_config, SGLang what
it was started with.
"""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.dataclasses import dataclass

from hermes_rl.errors import ConfigError
from hermes_rl.trajectory import Sampling

# What logprobs are of: the model's own distribution, or the one that was drawn from.
Logprobs: TypeAlias = Literal["raw", "processed"]

# Below this vLLM takes the likeliest token.
GREEDY = 1e-5

# Used to write the prompt or to read the answer; and logprobs are asked for always.
NOT_SAMPLING = {"chat_template_kwargs", "logprobs", "tools", "top_logprobs", "user"}
# Fields that say nothing as long as they have this value.
SAYS_NOTHING: Mapping[str, Any] = {
    "parallel_tool_calls": True,
    "response_format": {"type": "text"},
    "stream": False,
    "tool_choice": "auto",
}

Ratio: TypeAlias = Annotated[float, Field(ge=0, le=1)]
Penalty: TypeAlias = Annotated[float, Field(ge=-2, le=2)]


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


@dataclass(frozen=True, slots=True, kw_only=True, config=ConfigDict(allow_inf_nan=False))
class SamplingRequest:
    max_tokens: int | None = Field(None, ge=1)
    """None: as many as the context holds."""
    temperature: float = Field(1.0, ge=0)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(-1, ge=-1)
    """-1 and 0: all."""
    min_p: Ratio = 0.0
    presence_penalty: Penalty = 0.0
    frequency_penalty: Penalty = 0.0
    repetition_penalty: float = Field(1.0, gt=0)
    logit_bias: dict[int, float] = Field(default_factory=dict)
    min_tokens: int = Field(0, ge=0)
    ignore_eos: bool = False
    seed: int | None = None
    n: int = Field(1, ge=1)
    stop: Annotated[tuple[str, ...], BeforeValidator(_listed)] = ()
    stop_token_ids: tuple[int, ...] = ()

    @classmethod
    def of(cls, parameters: Mapping[str, Any], stop_token_ids: Sequence[int] = ()) -> "SamplingRequest":
        """The parameters of a chat call with its extra_body; a ConfigError names the one that cannot be had."""
        given = {name: value for name, value in parameters.items() if value is not None and name not in NOT_SAMPLING}
        for name, nothing in SAYS_NOTHING.items():
            if given.pop(name, nothing) != nothing:
                raise ConfigError(
                    f"{name}={parameters[name]!r} cannot be had with exact tokens; leave it out, "
                    "or sample in chat mode, which cannot be trained on"
                )
        if "max_completion_tokens" in given:
            given["max_tokens"] = given.pop("max_completion_tokens")
        known = [field.name for field in fields(cls)]
        unknown = sorted(given.keys() - known)
        if unknown:
            raise ConfigError(
                f"{', '.join(unknown)}: not a sampling parameter that exact tokens know; leave it out, or use one of "
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
        """What is recorded with each sequence."""
        return Sampling(
            temperature=self.temperature,
            top_p=self.top_p if self.top_p < 1 else None,
            top_k=self.top_k if self.top_k > 0 else None,
            logprobs=logprobs,
        )


def cannot_correct(request: SamplingRequest, logprobs: str) -> str | None:
    """Why importance weights cannot make up for how these tokens are drawn, and what to change; None when they can.

    A weight is the ratio of the token's probability now and when it was drawn. So the logprobs must be of the
    distribution drawn from, and that one must leave no token out: what is never drawn has no weight.

    A penalty or a bias also leaves a ratio under processed logprobs, but training would then undo it token by token,
    and no record says that it was there. Stop strings and `ignore_eos` only say where to end: every token drawn is
    kept, also the one that completes a stop string, of which only the text is cut.
    """
    if request.temperature < GREEDY:
        return "temperature 0 draws nothing: the likeliest token has no probability to weigh; set temperature to 1"
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
        return f"{', '.join(cut)} leaves tokens out that the policy could have drawn; leave it out of the sampling"
    bent = [
        name
        for name, changed in (
            ("presence_penalty", request.presence_penalty != 0),
            ("frequency_penalty", request.frequency_penalty != 0),
            ("repetition_penalty", request.repetition_penalty != 1),
            ("logit_bias", bool(request.logit_bias)),
        )
        if changed
    ]
    if bent:
        return f"{', '.join(bent)} draws from another distribution than the policy's; leave it out of the sampling"
    if logprobs == "raw" and request.temperature != 1:
        return (
            f"temperature {request.temperature:g} with logprobs of the raw model: they are not of what was drawn from; "
            "set temperature to 1, or have the server return processed logprobs "
            "(vLLM: --logprobs-mode processed_logprobs; SGLang: unset SGLANG_RETURN_ORIGINAL_LOGPROB)"
        )
    return None
