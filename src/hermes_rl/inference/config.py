"""How to reach a model: the `openai` section of the configuration, with the seeds' and Atropos' names and defaults."""

import os
from enum import StrEnum
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, field_serializer, field_validator

from hermes_rl.errors import ConfigError

HIDDEN = "**********"


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
        ServerType.OPENAI, description="openai for any OpenAI-compatible API; vllm or sglang for your own server."
    )
    tokenizer_name: str = Field("none", description="Tokenizer of this model; 'none' means the model's own name.")


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
        if not self.api_key:
            return None
        if self.api_key.startswith("env:"):
            name = self.api_key.removeprefix("env:")
            if name not in os.environ:
                raise ConfigError(f"--openai.api_key names the variable {name}, which is not set; export it first")
            return _one_word(os.environ[name], f"the variable {name}")
        if self.api_key.startswith("file:"):
            path = self.api_key.removeprefix("file:")
            try:
                text = Path(path).expanduser().read_text()
            except (OSError, UnicodeError) as error:
                raise ConfigError(f"--openai.api_key names the file {path}, which cannot be read: {error}") from None
            return _one_word(text, f"the file {path}")
        return _one_word(self.api_key, "the value")

    @property
    def key_is_literal(self) -> bool:
        return bool(self.api_key) and not str(self.api_key).startswith(("env:", "file:"))


def _one_word(text: str, where: str) -> str:
    """The key without the space around it; ConfigError, which never shows it, for what no header can carry."""
    key = text.strip()
    if not key or not key.isprintable() or " " in key:
        raise ConfigError(f"--openai.api_key: {where} does not hold a key on one line without spaces")
    return key
