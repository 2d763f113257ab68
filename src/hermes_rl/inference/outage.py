"""Outage: pauses a run while none of its endpoints answers, and ends the run after a limit.

Always true: one task asks the endpoints, however many rollouts wait; all of them go on together, or get the same
OutageError.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from hermes_rl.console.live_display import warn, write_line
from hermes_rl.core.errors import EndpointError, Failure, FailureSource, HermesRLError
from hermes_rl.inference.endpoint import NO_ROOM, Endpoint
from hermes_rl.inference.readiness import UNREACHABLE_SECONDS

# Seconds between two questions whether an endpoint answers, of one question, and between two reports.
ASK_EVERY, ANSWER_TIMEOUT, REPORT_EVERY = 2.0, 5.0, 30.0
DOWN = ("connection", "timeout", "not_ready")


class OutageError(HermesRLError):
    """No endpoint answered for longer than the limit. It ends the run; it is not the failure of a rollout."""


class Outage:
    """`endpoints` returns those of the run; with a `limit` of 0 seconds nothing is ever paused."""

    def __init__(self, endpoints: Callable[[], Sequence[Endpoint]], limit: float) -> None:
        self.limit = limit
        self.since: float | None = None
        """When the pause began, on the monotonic clock; None while there is none."""
        self._ended_at = float("-inf")
        self._endpoints = endpoints
        self._pause: asyncio.Task[None] | None = None

    async def over(self) -> None:
        """Return when there is no pause; OutageError when it exceeds the limit."""
        if self._pause is not None:
            # Cancelling one rollout must not end the pause of the others.
            await asyncio.shield(self._pause)

    async def caused(self, failure: Failure | None, began: float) -> bool:
        """Whether an outage explains the failure of what began at that time; returns once the outage is over."""
        if failure is None or not self.limit or not may_be_outage(failure):
            return False
        if self._pause is None and not await self._any_answers():
            self._begin()
        await self.over()
        return self._ended_at > began

    @property
    def text(self) -> str:
        """The pause in words; empty while there is none."""
        if self.since is None:
            return ""
        return (
            f"paused for {time.monotonic() - self.since:.0f} s: no answer from {self._addresses()}; continues by "
            f"itself when there is one, ends after {self.limit:g} s"
        )

    async def close(self) -> None:
        pause, self._pause, self.since = self._pause, None, None
        if pause is not None:
            pause.cancel()
            await asyncio.wait({pause})

    def _begin(self) -> None:
        # Another rollout may have noticed it first.
        if self._pause is None:
            self._pause = asyncio.create_task(self._wait())
            self._pause.add_done_callback(_retrieve_exception)

    async def _wait(self) -> None:
        self.since = reported = time.monotonic()
        if not any(endpoint.answered for endpoint in self._endpoints()):
            # With health_check off, nothing was asked at the start: the address is probably wrong.
            self.limit = min(self.limit, UNREACHABLE_SECONDS)
        warn(
            f"no answer from {self._addresses()}: the run is paused and continues by itself when there is one; start "
            f"the model server, or check --openai.base_url. The run ends after {self.limit:g} s"
        )
        while not await self._any_answers():
            if (now := time.monotonic()) - self.since >= self.limit:
                raise OutageError(
                    f"no answer from {self._addresses()} for {now - self.since:.0f} s (--openai.outage_limit). Start "
                    "the model server, or check --openai.base_url; then continue with --resume",
                )
            if now - reported >= REPORT_EVERY:
                reported = now
                write_line(self.text)
            await asyncio.sleep(min(ASK_EVERY, self.since + self.limit - now))
        self._ended_at = time.monotonic()
        write_line(f"{self._addresses()} answers again; the run continues after {self._ended_at - self.since:.0f} s")
        self.since = self._pause = None

    async def _any_answers(self) -> bool:
        return any(await asyncio.gather(*map(_answers, self._endpoints())))

    def _addresses(self) -> str:
        first, *others = [endpoint.base_url for endpoint in self._endpoints()]
        return f"{first} and {len(others)} more endpoints" if others else first


def may_be_outage(failure: Failure) -> bool:
    """Whether an endpoint that does not answer can cause this; a hanging one lets a rollout's time pass.

    With an adaptive limit, requests that wait for an engine fail like refused ones when it is lost.
    """
    if failure.whose is FailureSource.ENDPOINT:
        return _is_down(failure.cause) or failure.cause == NO_ROOM
    return (failure.whose, failure.cause) == (FailureSource.FRAMEWORK, "worker_timeout")


def _is_down(cause: str) -> bool:
    return cause in DOWN or cause.startswith("http_5")


async def _answers(endpoint: Endpoint) -> bool:
    """Whether anything answers there; also an endpoint that has no /models."""
    try:
        await endpoint.get("/models", timeout=ANSWER_TIMEOUT)
    except EndpointError as error:
        return not _is_down(error.cause)
    return True


def _retrieve_exception(pause: "asyncio.Task[None]") -> None:
    """Nobody may be left who waits: then asyncio would report the error as lost."""
    if not pause.cancelled():
        pause.exception()
