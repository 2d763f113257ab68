"""Limits on what one rollout's agent may ask of the gateway.

They are counted per rollout, so that a flood affects only its sender. A refusal says whether a retry can help. A
refused request was neither parsed nor sampled.
"""

from dataclasses import dataclass, field

from hermes_rl.agent.limits import AgentLimits
from hermes_rl.core.errors import HermesRLError
from hermes_rl.core.trajectory import StopReason
from hermes_rl.gateway.errors import ErrorKind, RequestProblem

MEGABYTE = 2**20
# After this many refusals, further ones are delayed.
FAST_REFUSALS = 32


class RequestRefusedError(HermesRLError):
    """The request is refused. `retry_after` is the time to wait before a retry in seconds; None: do not retry."""

    def __init__(
        self, kind: ErrorKind, message: str, *, param: str | None = None, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.problem = RequestProblem(kind, message, param)
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class GatewayLimits:
    """Limits of one rollout; None is no limit.

    `calls` counts all calls, including unreadable ones; `calls_at_once` may be sampled at the same time while up to
    `calls_waiting` more wait. `deadline` is in seconds of the policy's own work, at `seconds_per_token`.
    """

    calls: int | None = None
    calls_at_once: int = 64
    calls_waiting: int = 256
    call_bytes: int = 8 * MEGABYTE
    bytes_at_once: int = 64 * MEGABYTE
    deadline: float | None = None
    seconds_per_token: float = AgentLimits().seconds_per_token


@dataclass(slots=True)
class LimitUsage:
    """How much of its limits a rollout has used. `reached` is the stop reason of the limit it was refused for."""

    limits: GatewayLimits
    calls: int = 0
    callers: int = 0
    running_calls: int = 0
    bytes: int = 0
    tokens: int = 0
    refusals: int = 0
    reached: StopReason | None = field(default=None)

    def admit(self) -> None:
        """RequestRefusedError unless there is room for one more caller."""
        self.check()
        limit = self.limits.calls_at_once + self.limits.calls_waiting
        if max(self.callers, self.running_calls) >= limit:
            raise self._refused(f"too many concurrent requests, the limit is {limit}", retry_after=1.0)

    def check(self) -> None:
        """RequestRefusedError when the rollout has used all of its calls or its time."""
        limits = self.limits
        if limits.calls is not None and self.calls >= limits.calls:
            self.reached = self.reached or StopReason.MAX_TURNS
            raise self._refused(f"the {limits.calls} requests of this rollout are used up")
        self.check_deadline()

    def check_deadline(self) -> None:
        """RequestRefusedError when the policy's own time is used up."""
        limits = self.limits
        if limits.deadline is not None and self.tokens * limits.seconds_per_token > limits.deadline:
            self.reached = self.reached or StopReason.DEADLINE
            raise self._refused(f"the time of this rollout is used up, after {self.tokens} tokens")

    def add_bytes(self, size: int, counted: int) -> None:
        """Count `size` more bytes of a body of which `already` bytes are counted."""
        if counted + size > self.limits.call_bytes:
            raise RequestRefusedError(
                ErrorKind.TOO_LARGE, f"the request is larger than the limit of {self.limits.call_bytes} bytes"
            )
        if self.bytes + size > self.limits.bytes_at_once:
            raise self._refused(f"too many bytes in flight, the limit is {self.limits.bytes_at_once}", retry_after=1.0)
        self.bytes += size

    @property
    def is_flooding(self) -> bool:
        return self.refusals > FAST_REFUSALS

    def _refused(self, message: str, retry_after: float | None = None) -> RequestRefusedError:
        return RequestRefusedError(ErrorKind.TOO_MANY, message, retry_after=retry_after)
