"""An agent that is a program: started in the rollout's sandbox, watched, ended, and its work told as an AgentResult.

Always true: it reaches the gateway, by a key that is worth nothing before and after, and nothing else. What the policy
did in it is scored however it ended; what the world did, a program that never got an answer included, is raised as a
WorldError. `result` then holds the work so far.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from hermes_rl import jsontext
from hermes_rl.agent.result import AgentResult, ProgramEnd
from hermes_rl.environment.outside.clock import Answering, policy_seconds
from hermes_rl.environment.outside.ending import shortened, stop_reason
from hermes_rl.environment.outside.program import Marks, Program, prompt_of
from hermes_rl.gateway.bounds import Bounds
from hermes_rl.gateway.passes import Pass
from hermes_rl.gateway.rollout import GatewayRollout, Policy, RunSampling
from hermes_rl.messages import Message
from hermes_rl.sandbox.outlet import Outlet, outlet
from hermes_rl.sandbox.protocol import Command, ExecResult, Sandbox
from hermes_rl.tools.session import ToolSession
from hermes_rl.trajectory import StopReason

if TYPE_CHECKING:
    from hermes_rl.gateway.server import GatewayServer

# What is read of a program's output; the rest is dropped in the sandbox.
OUTPUT_READ = 256 * 1024
# What a program has after an answer in any case: the tokens of the last one may use the time up, and it is to exit.
LAST_STEPS = 5.0
_LOOK_EVERY = 1.0
# For the sandbox to kill it, beyond the time it may take.
_KILL_TIME = 60.0


class Work(Protocol):
    """One agent's work on one prompt: our loop, or a program. `result` is what came of it, also when `run` raises."""

    result: AgentResult

    async def run(self, messages: Sequence[Message]) -> AgentResult: ...


@dataclass(frozen=True, slots=True)
class Terms:
    """On what terms the program works: its sampling is the run's, its calls and its own time are bounded."""

    sampling: RunSampling
    calls: int
    deadline: float
    worker_timeout: float
    seconds_per_token: float
    model: str
    context_tokens: int | None


class OutsideAgent:
    """One program's work; an instance runs once."""

    def __init__(
        self,
        program: Program,
        terms: Terms,
        *,
        gateway: "GatewayServer",
        policy: Policy,
        session: ToolSession,
    ) -> None:
        self.result = AgentResult(messages=[])
        self._program = program
        self._terms = terms
        self._gateway = gateway
        self._policy = policy
        self._session = session
        self._output = bytearray()

    async def run(self, messages: Sequence[Message]) -> AgentResult:
        """Work until the program ends or is ended. The caller's list is left as it was."""
        self.result.messages, self.result.prompt_length = list(messages), len(messages)
        sandbox = await self._session.sandbox()
        terms = self._terms
        rollout = GatewayRollout(
            self._policy,
            terms.sampling,
            Bounds(calls=terms.calls, deadline=terms.deadline, seconds_per_token=terms.seconds_per_token),
            model=terms.model,
            context_tokens=terms.context_tokens,
            origin=self._session.started_at,
        )
        async with self._gateway.passes.open(rollout) as opened:
            try:
                end, way_out = await self._ran(sandbox, opened, messages)
            finally:
                # Before the key is withdrawn: giving up a call that is under way is then not told as its outcome.
                self._tell(rollout)
        self.result.program = end
        self.result.stop_reason = stop_reason(rollout, end, way_out.unreachable)
        self.result.finished_naturally = self.result.stop_reason is StopReason.NATURAL
        return self.result

    async def _ran(self, sandbox: Sandbox, opened: Pass, messages: Sequence[Message]) -> tuple[ProgramEnd, Outlet]:
        """Run it to its end, or to where it may not go on."""
        lifetime = self._terms.worker_timeout + _KILL_TIME
        async with self._gateway.door(opened) as door, outlet(sandbox, door.connect, lifetime=lifetime) as way_out:
            marks = await self._marks(sandbox, way_out.port, opened.key, messages)
            command = Command(
                self._program.command_with(marks),
                lifetime,
                env=self._program.variables_with(marks),
                merge_stderr=True,
                max_output=OUTPUT_READ,
                sink=self._output.extend,
            )
            began = time.monotonic()
            async with _ended_after(asyncio.ensure_future(sandbox.run(command))) as running:
                stopped = await self._watched(running, opened.rollout)
            result = None if running.cancelled() else running.result()
            end = ProgramEnd(
                exit_code=result.exit_code if result else None,
                output=shortened(self._output.decode(errors="replace"), truncated=bool(result and result.truncated)),
                seconds=round(time.monotonic() - began, 6),
                ended_for=stopped,
            )
            return end, way_out

    async def _marks(self, sandbox: Sandbox, port: int, key: str, messages: Sequence[Message]) -> Marks:
        folder = f"{sandbox.scratch}/hermes-rl"
        origin = f"http://127.0.0.1:{port}"
        marks = Marks(
            origin=origin,
            base_url=f"{origin}/v1",
            key=key,
            model=self._terms.model,
            context_tokens=str(self._terms.context_tokens or ""),
            prompt=prompt_of(messages),
            prompt_file=f"{folder}/prompt.txt",
            messages_file=f"{folder}/messages.json",
        )
        await sandbox.write(marks.prompt_file, marks.prompt.encode())
        await sandbox.write(marks.messages_file, jsontext.dumps(list(messages)))
        return marks

    async def _watched(self, running: "asyncio.Future[ExecResult]", rollout: GatewayRollout) -> StopReason | None:
        """Wait for its end; why it has to be ended, when it has to be. A failure of the world's ends it too."""
        broken = asyncio.ensure_future(rollout.broken.wait())
        try:
            while True:
                if (left := self._left(rollout)) <= 0:
                    return StopReason.DEADLINE
                if rollout.spent.reached is not None:
                    return rollout.spent.reached
                either: list[asyncio.Future[Any]] = [running, broken]
                await asyncio.wait(either, timeout=min(left, _LOOK_EVERY), return_when=asyncio.FIRST_COMPLETED)
                if running.done() or broken.done():
                    return None
        finally:
            broken.cancel()

    def _left(self, rollout: GatewayRollout) -> float:
        """Seconds until the policy's own time is over."""
        requests = [
            Answering(call.start, call.start + call.seconds if call.task.done() else None, call.finish is not None)
            for call in rollout.calls
        ]
        now = time.monotonic() - self._session.started_at
        spent = policy_seconds(
            requests, now, tokens=rollout.spent.tokens, seconds_per_token=self._terms.seconds_per_token
        )
        latest = max((one.end for one in requests if one.answered and one.end is not None), default=now)
        return max(self._terms.deadline - spent, latest + LAST_STEPS - now)

    def _tell(self, rollout: GatewayRollout) -> None:
        """What the gateway saw, as the result; with no answer the prompt stays all there is."""
        seen = rollout.transcript()
        if not seen.messages:
            seen.messages, seen.prompt_length = self.result.messages, self.result.prompt_length
        vars(self.result).update(vars(seen))


@asynccontextmanager
async def _ended_after(running: "asyncio.Future[ExecResult]") -> AsyncIterator["asyncio.Future[ExecResult]"]:
    """At the end of this block the program is over, with all that it started in the foreground of its sandbox."""
    try:
        yield running
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
