"""RunSampling: the run's sampling settings, which override those of the agent.

An agent can end an answer earlier, by fewer tokens or a stop string, and change nothing else. Every token is sampled
with the probability that the run's settings give it, so that a loss can correct for it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_rl.gateway.request import AgentRequest

SEED_RANGE = 2**31


@dataclass(frozen=True, slots=True)
class RunSampling:
    """The run's sampling settings. `seed` is the rollout's; its calls use the numbers after it."""

    temperature: float = 1.0
    max_tokens: int | None = None
    extra_body: Mapping[str, Any] | None = None
    seed: int | None = None
    split: str | None = None

    def parameters(self, request: AgentRequest, call: int) -> dict[str, Any]:
        """Parameters of one call, counted from 1: the run's settings, and where the agent wants the answer to end."""
        given: dict[str, Any] = {"n": request.n, "temperature": self.temperature}
        longest = [length for length in (self.max_tokens, request.max_tokens) if length is not None]
        # An agent that wants no tool calls could not handle one.
        tools = [] if request.tool_choice == "none" else request.tools
        extra = dict(self.extra_body or {})
        further = (
            ("max_tokens", min(longest, default=None)),
            ("tools", tools),
            ("stop", [*_as_list(extra.pop("stop", None)), *request.stop]),
            ("extra_body", extra),
            ("split", self.split),
            ("seed", None if self.seed is None else (self.seed + call) % SEED_RANGE),
        )
        return given | {name: value for name, value in further if value not in (None, [], {})}

    def cut_by_agent(self, request: AgentRequest) -> bool:
        """Whether the maximum length of the answer was set by the agent."""
        return request.max_tokens is not None and (self.max_tokens is None or request.max_tokens < self.max_tokens)


def _as_list(stop: str | Sequence[str] | None) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop or ())
