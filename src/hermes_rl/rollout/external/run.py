"""Runs an external agent: start the program in the rollout's sandbox, watch it, stop it, and build an AgentResult.

The program reaches only the gateway, with a key that is valid only while it runs. The policy's work is scored however
the program ended or broke its sandbox. Anything outside the policy, including a program that never got an answer,
raises an InfrastructureError; `result` then holds the work so far.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from hermes_rl.agent.result import AgentResult, ProgramEnd
from hermes_rl.core import fast_json
from hermes_rl.core.errors import EnvironmentCodeError, Failure, InfrastructureError, SandboxError
from hermes_rl.core.messages import Message
from hermes_rl.core.trajectory import StopReason
from hermes_rl.gateway.api_keys import ApiKey
from hermes_rl.gateway.limits import GatewayLimits
from hermes_rl.gateway.rollout import GatewayPolicy, GatewayRollout, RunSampling
from hermes_rl.rollout.external.program import Placeholders, Program, prompt_text
from hermes_rl.sandbox.port_forward import PortForward, forward_port
from hermes_rl.sandbox.protocol import Command, ExecResult, Sandbox
from hermes_rl.tools.session import ToolSession

if TYPE_CHECKING:
    from hermes_rl.gateway.server import GatewayServer


# The policy's time in a program is the tokens it sampled plus the time between an answer and the next request.
# Time before the first answer is program startup, and time inside a request is the endpoint's: neither counts.


class RequestInterval(NamedTuple):
    """One request; `end` is None while it runs, and `answered` says whether it returned tokens."""

    start: float
    end: float | None
    answered: bool


def policy_seconds(requests: Iterable[RequestInterval], now: float, *, tokens: int, seconds_per_token: float) -> float:
    """Seconds of its deadline that the policy has used."""
    known = sorted(requests, key=lambda interval: interval.start)
    first = min((interval.end for interval in known if interval.answered and interval.end is not None), default=None)
    if first is None:
        return 0.0
    busy, covered = 0.0, first
    for interval in known:
        end = now if interval.end is None else interval.end
        if end > covered:
            busy += end - max(interval.start, covered)
            covered = end
    return max(now - first - busy, 0.0) + tokens * seconds_per_token


# A program that fails after the model has answered is scored like any other: otherwise a policy that can crash it could
# choose which of its rollouts count.

# Characters of a program's output stored in the record, from its start and from its end.
OUTPUT_END_CHARS = 8_000
ERROR_OUTPUT_CHARS = 1_000


class StoredFailureError(InfrastructureError):
    """A failure that the gateway stored when it happened, raised when the rollout ends."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause, failure.message)
        self._failure = failure

    @property
    def failure(self) -> Failure:
        return self._failure


def stop_reason(
    rollout: GatewayRollout, end: ProgramEnd, unreachable: OSError | None = None, *, remote: bool = False
) -> StopReason:
    """Why the agent stopped; an InfrastructureError when the policy was not the cause."""
    if (failure := rollout.final_failure()) is not None:
        raise StoredFailureError(failure)
    if unreachable is not None:
        raise InfrastructureError("gateway", f"the gateway of this environment could not be reached: {unreachable}")
    if not rollout.answered:
        how = "was stopped" if end.exit_code is None else f"ended with {end.exit_code}"
        raise EnvironmentCodeError(
            "agent_url" if remote else "agent_command",
            f"the {'agent of agent_url' if remote else 'program of agent_command'} {how} after {end.seconds:.1f} s "
            "without an answer from the model, so there is nothing to score. Its last output: "
            f"{end.output[-ERROR_OUTPUT_CHARS:].strip() or 'none'}",
        )
    if end.ended_for is not None:
        return end.ended_for
    return rollout.stop or (StopReason.NATURAL if end.exit_code == 0 else StopReason.CRASHED)


def truncate_output(text: str, *, truncated: bool) -> str:
    """The output for the record; a long one is reduced to its start and end."""
    if len(text) <= 2 * OUTPUT_END_CHARS:
        return text + ("\n… and more" if truncated else "")
    left_out = f"\n… {len(text) - 2 * OUTPUT_END_CHARS} characters{' and more' if truncated else ''} left out …\n"
    return text[:OUTPUT_END_CHARS] + left_out + text[-OUTPUT_END_CHARS:]


# Output beyond this is dropped in the sandbox.
MAX_OUTPUT_BYTES = 256 * 1024
# Seconds a program always gets after an answer to exit, even if that answer's tokens used up the deadline.
EXIT_GRACE = 5.0
_POLL_EVERY = 1.0
# Seconds beyond worker_timeout before the sandbox kills the program.
_KILL_GRACE = 60.0


class AgentRun(Protocol):
    """One agent run: our loop or a program. `result` is filled in even when `run` raises."""

    result: AgentResult

    async def run(self, messages: Sequence[Message]) -> AgentResult: ...


@dataclass(frozen=True, slots=True)
class RunLimits:
    sampling: RunSampling
    calls: int
    deadline: float
    worker_timeout: float
    seconds_per_token: float
    model: str
    context_tokens: int | None


class GatewayAgent:
    """An agent that reaches the model through the gateway only; it runs once."""

    def __init__(
        self, limits: RunLimits, *, gateway: "GatewayServer", policy: GatewayPolicy, session: ToolSession
    ) -> None:
        self.result = AgentResult(messages=[])
        self._limits = limits
        self._gateway = gateway
        self._policy = policy
        self._session = session

    def _begin(self, messages: Sequence[Message]) -> GatewayRollout:
        self.result.messages, self.result.prompt_length = list(messages), len(messages)
        limits = self._limits
        return GatewayRollout(
            self._policy,
            limits.sampling,
            GatewayLimits(calls=limits.calls, deadline=limits.deadline, seconds_per_token=limits.seconds_per_token),
            model=limits.model,
            context_tokens=limits.context_tokens,
            origin=self._session.started_at,
        )

    def _end(self, end: ProgramEnd, stop: StopReason) -> AgentResult:
        self.result.program, self.result.stop_reason = end, stop
        self.result.finished_naturally = stop is StopReason.NATURAL
        return self.result

    async def _wait_for_stop(self, running: "asyncio.Future[Any]", rollout: GatewayRollout) -> StopReason | None:
        """Wait until the agent ends, a limit is reached (returned) or the gateway records a failure."""
        broken = asyncio.ensure_future(rollout.failed.wait())
        try:
            while True:
                if (seconds_left := self._seconds_left(rollout)) <= 0:
                    return StopReason.DEADLINE
                if rollout.used.reached is not None:
                    return rollout.used.reached
                pending: list[asyncio.Future[Any]] = [running, broken]
                await asyncio.wait(pending, timeout=min(seconds_left, _POLL_EVERY), return_when=asyncio.FIRST_COMPLETED)
                if running.done() or broken.done():
                    return None
        finally:
            broken.cancel()

    def _seconds_left(self, rollout: GatewayRollout) -> float:
        """Seconds until the policy's deadline."""
        requests = [
            RequestInterval(
                call.start, call.start + call.seconds if call.task.done() else None, call.finish is not None
            )
            for call in rollout.calls
        ]
        now = time.monotonic() - self._session.started_at
        spent = policy_seconds(
            requests, now, tokens=rollout.used.tokens, seconds_per_token=self._limits.seconds_per_token
        )
        last_answer = max(
            (interval.end for interval in requests if interval.answered and interval.end is not None), default=now
        )
        return max(self._limits.deadline - spent, last_answer + EXIT_GRACE - now)

    def _record_transcript(self, rollout: GatewayRollout) -> None:
        """Copy the gateway's transcript into the result; without an answer, the prompt remains."""
        transcript = rollout.transcript()
        if not transcript.messages:
            transcript.messages, transcript.prompt_length = self.result.messages, self.result.prompt_length
        vars(self.result).update(vars(transcript))


class ExternalAgent(GatewayAgent):
    """Runs a program in the rollout's sandbox."""

    def __init__(
        self,
        program: Program,
        limits: RunLimits,
        *,
        gateway: "GatewayServer",
        policy: GatewayPolicy,
        session: ToolSession,
    ) -> None:
        super().__init__(limits, gateway=gateway, policy=policy, session=session)
        self._program = program
        self._output = bytearray()

    async def run(self, messages: Sequence[Message]) -> AgentResult:
        """Run until the program ends or is stopped. `messages` is not modified."""
        rollout = self._begin(messages)
        sandbox = await self._session.sandbox()
        ended: tuple[ProgramEnd, PortForward] | None = None
        async with self._gateway.keys.open(rollout) as gateway_key:
            try:
                ended = await self._run_program(sandbox, gateway_key, messages)
            except SandboxError as error:
                if not rollout.answered or not await self._session.charge(error):
                    raise
            finally:
                # Before the key is revoked, which cancels calls in flight: that must not be recorded as their outcome.
                self._record_transcript(rollout)
        if ended is None:
            self.result.stop_reason = StopReason.CRASHED
            return self.result
        end, forward = ended
        self.result.program = end
        return self._end(end, stop_reason(rollout, end, forward.unreachable))

    async def _run_program(
        self, sandbox: Sandbox, gateway_key: ApiKey, messages: Sequence[Message]
    ) -> tuple[ProgramEnd, PortForward]:
        lifetime = self._limits.worker_timeout + _KILL_GRACE
        async with (
            self._gateway.listener(gateway_key) as door,
            forward_port(sandbox, door.connect, lifetime=lifetime) as forward,
        ):
            placeholders = await self._placeholders(sandbox, forward.port, gateway_key.key, messages)
            command = Command(
                self._program.shell_command(placeholders),
                lifetime,
                env=self._program.environment_variables(placeholders),
                merge_stderr=True,
                max_output=MAX_OUTPUT_BYTES,
                sink=self._output.extend,
            )
            began = time.monotonic()
            async with _cancel_on_exit(asyncio.ensure_future(sandbox.run(command))) as running:
                stopped = await self._wait_for_stop(running, gateway_key.rollout)
            result = None if running.cancelled() else running.result()
            end = ProgramEnd(
                exit_code=result.exit_code if result else None,
                output=truncate_output(
                    self._output.decode(errors="replace"), truncated=bool(result and result.truncated)
                ),
                seconds=round(time.monotonic() - began, 6),
                ended_for=stopped,
            )
            return end, forward

    async def _placeholders(self, sandbox: Sandbox, port: int, key: str, messages: Sequence[Message]) -> Placeholders:
        folder = f"{sandbox.scratch}/hermes-rl"
        origin = f"http://127.0.0.1:{port}"
        placeholders = Placeholders(
            origin=origin,
            base_url=f"{origin}/v1",
            key=key,
            model=self._limits.model,
            context_tokens=str(self._limits.context_tokens or ""),
            prompt=prompt_text(messages),
            prompt_file=f"{folder}/prompt.txt",
            messages_file=f"{folder}/messages.json",
        )
        await sandbox.write(placeholders.prompt_file, placeholders.prompt.encode())
        await sandbox.write(placeholders.messages_file, fast_json.dumps(list(messages)))
        return placeholders


@asynccontextmanager
async def _cancel_on_exit(running: "asyncio.Future[ExecResult]") -> AsyncIterator["asyncio.Future[ExecResult]"]:
    """On exit the program has ended, with every foreground process it started."""
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
