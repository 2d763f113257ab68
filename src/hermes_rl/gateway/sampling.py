"""RunSampling: how a run draws the tokens of agents that would rather draw them otherwise.

Always true: an agent's wishes can end an answer earlier, by fewer tokens or by a stop string, and change nothing else.
Every token drawn had the odds that the run's settings give it, which is what a loss can correct for.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_rl.gateway.asked import Asked

SEED_RANGE = 2**31


@dataclass(frozen=True, slots=True)
class RunSampling:
    """How a run draws tokens. `seed` is the rollout's: its calls draw from the numbers after it."""

    temperature: float = 1.0
    max_tokens: int | None = None
    extra_body: Mapping[str, Any] | None = None
    seed: int | None = None
    split: str | None = None

    def parameters(self, asked: Asked, call: int) -> dict[str, Any]:
        """Of one call, which counts from 1: the run's own, and where the agent wants it to end."""
        given: dict[str, Any] = {"n": asked.n, "temperature": self.temperature}
        longest = [length for length in (self.max_tokens, asked.max_tokens) if length is not None]
        # An agent that has no use for tool calls would not know what to do with one.
        tools = [] if asked.tool_choice == "none" else asked.tools
        extra = dict(self.extra_body or {})
        further = (
            ("max_tokens", min(longest, default=None)),
            ("tools", tools),
            ("stop", [*_listed(extra.pop("stop", None)), *asked.stop]),
            ("extra_body", extra),
            ("split", self.split),
            ("seed", None if self.seed is None else (self.seed + call) % SEED_RANGE),
        )
        return given | {name: value for name, value in further if value not in (None, [], {})}

    def cut_by_agent(self, asked: Asked) -> bool:
        """Whether the longest that an answer could be was the agent's wish."""
        return asked.max_tokens is not None and (self.max_tokens is None or asked.max_tokens < self.max_tokens)


def _listed(stop: str | Sequence[str] | None) -> list[str]:
    return [stop] if isinstance(stop, str) else list(stop or ())
