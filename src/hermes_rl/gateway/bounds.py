"""Bounds: what one rollout's agent may ask of the gateway, and how it is told that there is no more.

Always true: they are counted for each rollout alone, so that a flood costs only whoever sends it; a refusal says
whether asking again can help. What was refused was neither read nor sampled.
"""

from dataclasses import dataclass, field

from hermes_rl.agent.limits import AgentLimits
from hermes_rl.errors import HermesRLError
from hermes_rl.gateway.problems import Kind, Problem
from hermes_rl.trajectory import StopReason

MEGABYTE = 2**20
# After so many refusals each further one is given slowly.
REFUSALS_AT_ONCE = 32


class RefusedError(HermesRLError):
    """The agent is told of a problem. `again` is when to ask again, in seconds; None: never."""

    def __init__(self, kind: Kind, message: str, *, param: str | None = None, again: float | None = None) -> None:
        super().__init__(message)
        self.problem = Problem(kind, message, param)
        self.again = again


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bounds of one rollout; None is no bound.

    `calls` are all that it may make, unreadable ones too; `calls_at_once` those that the model works on, while up to
    `calls_waiting` more wait. `deadline` is in seconds of the policy's own work, `seconds_per_token` for each token.
    """

    calls: int | None = None
    calls_at_once: int = 64
    calls_waiting: int = 256
    call_bytes: int = 8 * MEGABYTE
    bytes_at_once: int = 64 * MEGABYTE
    deadline: float | None = None
    seconds_per_token: float = AgentLimits().seconds_per_token


@dataclass(slots=True)
class Spent:
    """How much of its bounds a rollout has used. `reached` is the bound that it was refused for."""

    bounds: Bounds
    calls: int = 0
    callers: int = 0
    unfinished: int = 0
    bytes: int = 0
    tokens: int = 0
    refusals: int = 0
    reached: StopReason | None = field(default=None)

    def admit(self) -> None:
        """RefusedError unless there is room for one more caller."""
        self.check()
        most = self.bounds.calls_at_once + self.bounds.calls_waiting
        if max(self.callers, self.unfinished) >= most:
            raise self._refused(f"too many requests at once: {most} at most", again=1.0)

    def check(self) -> None:
        """RefusedError when the rollout may ask no more."""
        bounds = self.bounds
        if bounds.calls is not None and self.calls >= bounds.calls:
            self.reached = self.reached or StopReason.MAX_TURNS
            raise self._refused(f"the {bounds.calls} requests of this rollout are used up")
        self.check_deadline()

    def check_deadline(self) -> None:
        """RefusedError when the policy's own time is over."""
        bounds = self.bounds
        if bounds.deadline is not None and self.tokens * bounds.seconds_per_token > bounds.deadline:
            self.reached = self.reached or StopReason.DEADLINE
            raise self._refused(f"the tokens of this rollout are used up, after {self.tokens}")

    def hold(self, size: int, already: int) -> None:
        """Count so many more bytes of a body that has `already` some."""
        if already + size > self.bounds.call_bytes:
            raise RefusedError(Kind.TOO_LARGE, f"a request has {self.bounds.call_bytes} bytes at most")
        if self.bytes + size > self.bounds.bytes_at_once:
            raise self._refused(f"too much at once: {self.bounds.bytes_at_once} bytes at most", again=1.0)
        self.bytes += size

    @property
    def flooded(self) -> bool:
        return self.refusals > REFUSALS_AT_ONCE

    def _refused(self, message: str, again: float | None = None) -> RefusedError:
        return RefusedError(Kind.TOO_MANY, message, again=again)
