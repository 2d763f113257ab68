"""How to reach a model: the `openai` section of the configuration, with the seeds' and Atropos' names and defaults."""

from enum import StrEnum
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator

from hermes_rl import secrets
from hermes_rl.secrets import HIDDEN


class ServerType(StrEnum):
    OPENAI = "openai"
    VLLM = "vllm"
    SGLANG = "sglang"
    TRL = "trl"


class ServerBaseline(BaseModel):
    """What every endpoint of a run has in common."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), hide_input_in_errors=True)

    timeout: float = Field(1200, gt=0, description="Seconds one completion may take, retries and waiting included.")
    max_retries: int = Field(
        3,
        ge=0,
        description="How often a request is tried again after a 429, a 5xx, a lost connection or a broken body.",
    )
    num_max_requests_at_once: int = Field(512, ge=1, description="Requests in flight to one endpoint.")
    num_requests_for_eval: int = Field(64, ge=1, description="Requests in flight to one endpoint during evaluation.")
    model_name: str = Field("default", description="Name of the model, as the endpoint knows it.")
    rolling_buffer_length: int = Field(1000, ge=1, description="Requests that latency figures are taken over.")
    server_type: ServerType = Field(
        ServerType.OPENAI,
        description="openai for any OpenAI-compatible API; vllm or sglang for your own server, with exact tokens.",
    )
    tokenizer_name: str = Field("none", description="Tokenizer of this model; 'none' means the model's own name.")
    logprobs_mode: Literal["raw", "processed"] | None = Field(
        None,
        description="Whether the server's logprobs are the model's own or those after temperature and filters, "
        "if it was started otherwise than its engine does by default (vLLM: --logprobs-mode).",
    )


class APIServerConfig(ServerBaseline):
    """One endpoint."""

    base_url: str | None = Field(None, description="Root of the API, for instance http://localhost:8000/v1.")
    api_key: str | None = Field(
        None, repr=False, description="env:NAME or file:PATH; a literal key works too, with a warning."
    )
    health_check: bool = Field(
        True, description="Wait until the endpoint answers before the first rollout; false for hosted APIs."
    )
    ready_timeout: float = Field(60, gt=0, description="Seconds to wait for that before giving up.")
    prompt_price: float | None = Field(None, ge=0, description="Price of a million prompt tokens, to count spending.")
    completion_price: float | None = Field(None, ge=0, description="Price of a million completion tokens.")
    n_kwarg_is_ignored: bool = Field(False, description="The endpoint ignores n; ask once for each completion.")

    @field_validator("base_url")
    @classmethod
    def _is_a_web_address(cls, value: str | None) -> str | None:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError("a base_url starts with http:// or https://")
        return value

    @field_serializer("api_key", when_used="json")
    def _hide_literal_key(self, value: str | None) -> str | None:
        # What is dumped as JSON is saved or shown; a reference is no secret, a literal is.
        return HIDDEN if self.key_is_literal else value

    def resolved_key(self) -> str | None:
        """The secret itself; it goes into requests and nowhere else."""
        return secrets.resolved_key(self.api_key, "--openai.api_key") if self.api_key else None

    @property
    def key_is_literal(self) -> bool:
        """Whether the key stands in the configuration itself, not as env:NAME or file:PATH."""
        return bool(self.api_key) and secrets.is_literal(str(self.api_key))
