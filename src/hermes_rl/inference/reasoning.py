"""What chat requests ask of a model that reasons, as Atropos' ReasoningConfig sends it.

The wording depends on the provider. Fields that a request already has, from `extra_body`, are left as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from hermes_rl.core.errors import ConfigError
from hermes_rl.inference.config import APIServerConfig

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh"]
OPENAI_HOST = "api.openai.com"


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Providers take one of `effort` and `max_tokens`; effort wins, as in Atropos."""

    effort: Effort | None = None
    max_tokens: int | None = None

    def check(self, endpoint: APIServerConfig) -> None:
        if self.max_tokens and not self.effort and OPENAI_HOST in (endpoint.base_url or ""):
            raise ConfigError(
                f"{OPENAI_HOST} has no limit of reasoning tokens; set reasoning_effort instead of max_reasoning_tokens"
            )

    def apply(self, body: Mapping[str, Any], base_url: str) -> dict[str, Any]:
        """The body of a chat request with the fields that ask for reasoning."""
        if OPENAI_HOST in base_url:
            # Its reasoning models refuse max_tokens and every other temperature.
            rest = {name: value for name, value in body.items() if name != "max_tokens"}
            limit = {"max_completion_tokens": body["max_tokens"]} if "max_tokens" in body else {}
            return {"reasoning_effort": self.effort or "medium", **limit, **rest, "temperature": 1.0}
        reasoning: dict[str, Any] = {"enabled": True}
        if self.effort:
            reasoning["effort"] = self.effort
        elif self.max_tokens:
            reasoning["max_tokens"] = self.max_tokens
        return {"reasoning": reasoning, **body}
