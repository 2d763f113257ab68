"""Request bodies in the field names of OpenAI, vLLM and SGLang.

Always true: an unsupported field that would change the samples or the response is rejected by name; a field that
affects neither is ignored.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

# Bookkeeping and scheduling of other servers, or options for the text next to token ids.
IGNORED = frozenset(
    "user metadata store service_tier safety_identifier prompt_cache_key request_id rid priority cache_salt "
    "detokenize skip_special_tokens spaces_between_special_tokens output_kind".split()
)
ROLES = ("system", "developer", "user", "assistant", "tool")

Text: TypeAlias = Annotated[str, Field(min_length=1)]
Texts: TypeAlias = Annotated[list[Text], Field(min_length=1, fail_fast=True)]
Id: TypeAlias = Annotated[int, Field(ge=0, lt=2**31)]
# Report only the first of a million invalid ids.
Ids: TypeAlias = Annotated[list[Id], Field(min_length=1, fail_fast=True)]
Prompts: TypeAlias = Annotated[list[Ids], Field(min_length=1, fail_fast=True)]
Seed: TypeAlias = Annotated[int, Field(ge=-(2**63), lt=2**63)]


def _check_message(value: dict[str, Any]) -> dict[str, Any]:
    if value.get("role") not in ROLES:
        raise ValueError(f"the role of a message must be one of {', '.join(ROLES)}")
    match value.get("content"):
        case None | str():
            pass
        case [*parts] if all(_is_text(part) for part in parts):
            pass
        case _:
            raise ValueError('the content of a message must be text, or a list of {"type": "text", "text"}')
    calls = value.get("tool_calls") or []
    if not isinstance(calls, list) or not all(_names_function(call) for call in calls):
        raise ValueError('the tool_calls of a message must be a list of {"function": {"name", "arguments"}}')
    return value


def _is_text(part: Any) -> bool:
    match part:
        case {"text": str()}:
            return True
    return False


def _check_tool(value: dict[str, Any]) -> dict[str, Any]:
    if value.get("type", "function") != "function" or not _names_function(value):
        raise ValueError('a tool must be {"type": "function", "function": {"name", "parameters"}}')
    return value


def _names_function(value: Any) -> bool:
    match value:
        case {"function": {"name": str()}}:
            return True
    return False


class RequestBody(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _drop_ignored(cls, value: Any) -> Any:
        return {name: each for name, each in value.items() if name not in IGNORED} if isinstance(value, dict) else value


class SamplingFields(RequestBody):
    """Sampling parameters; SamplingRequest validates their values."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[int, float] | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    seed: Seed | None = None
    n: int | None = None
    stop: Text | Annotated[list[Text], Field(fail_fast=True)] | None = None
    stop_token_ids: Annotated[list[Id], Field(fail_fast=True)] | None = None

    def sampling(self) -> Mapping[str, Any]:
        """The fields that were set."""
        return {name: value for name in SamplingFields.model_fields if (value := getattr(self, name)) is not None}


class StreamOptions(RequestBody):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class TextFormat(RequestBody):
    type: Literal["text"]


class ChatBody(SamplingFields):
    """POST /v1/chat/completions."""

    messages: Annotated[
        list[Annotated[dict[str, Any], AfterValidator(_check_message)]], Field(min_length=1, fail_fast=True)
    ]
    model: str | None = None
    tools: Annotated[list[Annotated[dict[str, Any], AfterValidator(_check_tool)]], Field(fail_fast=True)] | None = None
    tool_choice: Literal["auto", "none"] | None = None
    parallel_tool_calls: Literal[True] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: Literal[0] | None = None
    response_format: TextFormat | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    return_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    def sampling(self) -> Mapping[str, Any]:
        limit = self.max_completion_tokens
        return {**super().sampling(), **({} if limit is None else {"max_tokens": limit})}


class CompletionBody(SamplingFields):
    """POST /v1/completions. max_tokens defaults to 16; null fills the context."""

    prompt: Text | Ids | Texts | Prompts
    model: str | None = None
    max_tokens: int | None = 16
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None
    echo: Literal[False] | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None
    return_token_ids: bool | None = None
    return_tokens_as_token_ids: bool | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class VLLMSampling(SamplingFields):
    logprobs: Annotated[int, Field(ge=0, le=1)] | None = None
    prompt_logprobs: None = None
    include_stop_str_in_output: Literal[False] | None = None


class VLLMBody(RequestBody):
    """POST /inference/v1/generate, in the form of vLLM 0.32."""

    token_ids: Ids
    sampling_params: VLLMSampling
    model: str | None = None
    return_token_ids: bool | None = None
    output_mode: Literal["tokens"] = "tokens"
    stream: Literal[False] | None = None


class SGLangSampling(SamplingFields):
    """max_new_tokens defaults to 128; null fills the context."""

    max_tokens: int | None = Field(default=128, alias="max_new_tokens")
    min_tokens: int | None = Field(default=None, alias="min_new_tokens")
    seed: Seed | None = Field(default=None, alias="sampling_seed")
    no_stop_trim: bool | None = None


class SGLangBody(RequestBody):
    """POST /generate, in the form of SGLang: ids or text, one prompt or many."""

    input_ids: Ids | Prompts | None = None
    text: Text | Texts | None = None
    sampling_params: SGLangSampling = SGLangSampling()
    return_logprob: bool | None = None
    return_text_in_logprobs: bool | None = None
    return_prompt_token_ids: bool | None = None
    logprob_start_len: Literal[-1] | None = None
    top_logprobs_num: Literal[0] | None = None
    stream: Literal[False] | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "SGLangBody":
        if (self.input_ids is None) == (self.text is None):
            raise ValueError("send either input_ids or text")
        return self


class HoldBody(RequestBody):
    """POST /v1/policy/hold. `holder` identifies the evaluation; 0 seconds end its hold."""

    holder: Annotated[str, Field(min_length=1, max_length=200)]
    seconds: Annotated[float, Field(ge=0, le=3600)]
    version: Annotated[int, Field(ge=0)] | None = None


class LogprobsBody(RequestBody):
    """POST /logprobs: ids or text."""

    token_ids: Ids | None = None
    text: Text | None = None
    model: str | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "LogprobsBody":
        if (self.token_ids is None) == (self.text is None):
            raise ValueError("send either token_ids or text")
        return self
