"""Endpoint settings: the `openai` section of the configuration, with the seeds' and Atropos' names and defaults."""

from enum import StrEnum
from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator

from hermes_rl.core import secrets
from hermes_rl.core.help_layout import HelpLayout
from hermes_rl.core.redaction import HIDDEN, redact_urls


class ServerType(StrEnum):
    OPENAI = "openai"
    VLLM = "vllm"
    SGLANG = "sglang"
    TRL = "trl"


class ServerBaseline(BaseModel):
    """Settings that all endpoints of a run share."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=(), hide_input_in_errors=True)

    timeout: float = Field(
        default=1200, gt=0, description="Give a completion at most this many seconds, retries and waiting included."
    )
    max_retries: int = Field(
        default=3,
        ge=0,
        description="Retry a request this many times after a 429, a 5xx, a lost connection or a malformed body.",
    )
    num_max_requests_at_once: int = Field(
        default=512, ge=1, description="Send at most this many requests at once to an endpoint."
    )
    outage_limit: float = Field(
        default=600,
        ge=0,
        description="Pause a run for this many seconds while no endpoint answers, then end it; 0: fail the "
        "rollouts instead.",
    )
    num_requests_for_eval: int = Field(
        default=64, ge=1, description="Send at most this many requests at once to an endpoint during an evaluation."
    )
    model_name: str = Field(default="default", description="Ask for the model of this name, as the endpoint knows it.")
    rolling_buffer_length: int = Field(
        default=1000, ge=1, description="Compute latency figures from this many recent requests."
    )
    server_type: ServerType = Field(
        default=ServerType.OPENAI,
        description="Speak to this kind of server: openai for any OpenAI-compatible API; vllm or sglang for "
        "your own server, with exact tokens.",
    )
    tokenizer_name: str = Field(
        default="none", description="Use this tokenizer of the model; none: the one of the model's name."
    )
    logprobs_mode: Literal["raw", "processed"] | None = Field(
        default=None,
        description="State whether the server returns raw logprobs or those after temperature and filters, if "
        "it was started with another mode than its default (vLLM: --logprobs-mode).",
    )


class APIServerConfig(ServerBaseline):
    """One endpoint."""

    help_layout: ClassVar[HelpLayout] = HelpLayout(
        headings={
            "Model endpoint": (
                "base_url",
                "model_name",
                "api_key",
                "server_type",
                "tokenizer_name",
                "logprobs_mode",
                "health_check",
                "ready_timeout",
                "timeout",
                "max_retries",
                "outage_limit",
                "num_max_requests_at_once",
                "num_requests_for_eval",
                "rolling_buffer_length",
                "prompt_price",
                "completion_price",
                "n_kwarg_is_ignored",
            )
        },
        common=("base_url", "model_name", "api_key", "server_type"),
        flags={"base_url": ("--url",), "model_name": ("-m", "--model")},
    )

    base_url: str | None = Field(
        default=None, repr=False, description="Call the model API at this URL, for instance http://localhost:8000/v1."
    )
    api_key: str | None = Field(
        default=None,
        repr=False,
        description="Authenticate with this key: env:NAME or file:PATH; a literal key works too, with a warning.",
    )
    health_check: bool = Field(
        default=True, description="Wait until the endpoint answers before the first rollout; false for hosted APIs."
    )
    ready_timeout: float = Field(
        default=60,
        gt=0,
        description="Wait at most this many seconds until the endpoint is ready; by default only 10 while nothing "
        "answers at all.",
    )
    prompt_price: float | None = Field(
        default=None, ge=0, description="Count spending with this price of a million prompt tokens."
    )
    completion_price: float | None = Field(
        default=None, ge=0, description="Count spending with this price of a million completion tokens."
    )
    n_kwarg_is_ignored: bool = Field(
        default=False, description="Ask once for each completion, because the endpoint ignores n."
    )

    @field_validator("base_url")
    @classmethod
    def _is_a_web_address(cls, value: str | None) -> str | None:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError("a base_url starts with http:// or https://")
        return value

    @field_serializer("api_key", when_used="json")
    def _hide_literal_key(self, value: str | None) -> str | None:
        # JSON dumps are saved or shown. A reference is not a secret, a literal key is.
        return HIDDEN if self.key_is_literal else value

    @field_serializer("base_url", when_used="json")
    def _hide_password(self, value: str | None) -> str | None:
        return redact_urls(value) if value else value

    @property
    def shown_url(self) -> str:
        """The base_url without a password, to show and to trace."""
        return redact_urls(self.base_url or "")

    def resolved_key(self) -> str | None:
        """The secret itself. Use it in requests only."""
        return secrets.resolve_key(self.api_key, "--openai.api_key") if self.api_key else None

    @property
    def key_is_literal(self) -> bool:
        """Whether the key itself is in the configuration, instead of env:NAME or file:PATH."""
        return bool(self.api_key) and secrets.is_literal(str(self.api_key))
