"""One rollout's tool session: its sandbox, started on first use, and its tool calls.

After `close` the sandbox is gone and every call fails. An idle sandbox is closed earlier; a fresh one would lack the
policy's work, so the next use of it fails.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from hermes_rl import tracing
from hermes_rl.core import fast_json
from hermes_rl.core.errors import Failure, InfrastructureError, SandboxError, failure_of
from hermes_rl.core.failure_causes import Evidence, evidence_for
from hermes_rl.core.trajectory import Span, Timing
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import SandboxSpec
from hermes_rl.tools.tool import Tool, ToolUseError

T = TypeVar("T")

DEADLINE_GRACE = 1.0
# Seconds beyond the policy's deadline after which a call is stopped, whatever its own timeouts are.
CALL_GRACE = 5.0


class ToolOutcome(NamedTuple):
    """The text for the model, and the error if the call failed."""

    text: str
    error: str | None = None

    @classmethod
    def refusal(cls, message: str) -> "ToolOutcome":
        """A call that was not run; the message tells the model what to do instead."""
        return cls(fast_json.dumps({"error": message}).decode(), message)


@dataclass(frozen=True, slots=True)
class BackgroundProcess:
    """A background command of `terminal`; its log and exit code are files in the sandbox."""

    id: str
    command: str
    pid: int
    log: str
    exit_file: str


@dataclass
class ToolSession:
    task_id: str
    tools: Mapping[str, Tool]
    pool: SandboxPool
    calls_in_flight: asyncio.Semaphore
    terminal_timeout: float
    max_command_seconds: float = 600.0
    services: Mapping[str, Any] = field(default_factory=dict)
    spec: SandboxSpec | None = None
    time_left: float | None = None
    sandbox_lifetime: float | None = None
    """Seconds without a command after which the sandbox is closed; commands in the background keep it."""
    processes: dict[str, BackgroundProcess] = field(default_factory=dict)
    charged: list[Failure] = field(default_factory=list)
    """Failures that the policy can have caused, so that they do not void its rollout."""
    reward_seconds: float = 0.0
    """Time in which the reward waited for what the policy left, without the start of sandboxes."""
    timings: list[Timing] = field(default_factory=list)
    started_at: float = field(default_factory=time.monotonic)
    _resources: dict[str, Any] = field(default_factory=dict)
    _exit_stack: AsyncExitStack | None = None
    _sandbox: Sandbox | None = None
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _idle_timer: asyncio.TimerHandle | None = None
    _closing_idle: asyncio.Task[None] | None = None
    _closed: bool = False
    _policy_ended: bool = False
    _broken_inside: bool | None = None

    async def sandbox(self) -> Sandbox:
        """The rollout's sandbox; SandboxError when it cannot start or the session is closed."""
        async with self._starting:
            if self._closed:
                raise SandboxError("closed", f"the sandbox of rollout {self.task_id} is already closed")
            if self._closing_idle is not None:
                raise SandboxError(
                    "idle",
                    f"the sandbox of rollout {self.task_id} ran no command for {self.sandbox_lifetime:g} s and was "
                    "closed; raise --env.terminal_lifetime above the longest wait for the model",
                )
            if self._sandbox is None:
                began = time.monotonic()
                self._sandbox = await self.pool.acquire(self.spec)
                self.record_timing(Span.SANDBOX, "start", began)
            self._sandbox.last_used = time.monotonic()
            if self._idle_timer is None:
                self._close_if_idle()
            return self._sandbox

    def _close_if_idle(self) -> None:
        """Close the sandbox if it is idle, else check again when it could be."""
        sandbox, lifetime = self._sandbox, self.sandbox_lifetime
        if sandbox is None or lifetime is None:
            return
        in_use = sandbox.commands_running or self.processes
        left = lifetime if in_use else sandbox.last_used + lifetime - time.monotonic()
        if left > 0:
            self._idle_timer = asyncio.get_running_loop().call_later(left, self._close_if_idle)
        else:
            self._sandbox = None
            self._closing_idle = asyncio.create_task(self.pool.release(sandbox))

    @asynccontextmanager
    async def untouched_sandbox(self, spec: SandboxSpec | None) -> AsyncIterator[Sandbox]:
        """A new sandbox, which the policy never had."""
        began = time.monotonic()
        try:
            sandbox = await self.pool.acquire(spec, verifying=True)
        finally:
            self.reward_seconds -= time.monotonic() - began
        try:
            yield sandbox
        finally:
            await self.pool.release(sandbox)

    @property
    def policy_ended(self) -> bool:
        return self._policy_ended

    async def charge(self, error: Exception) -> bool:
        """Whether the policy can have caused a failure of its tools, its sandbox or its conversation; noted if so."""
        failure = failure_of(error)
        evidence = evidence_for(failure)
        charged = evidence is Evidence.ALWAYS or (evidence is Evidence.HOST and await self._broken_from_inside(failure))
        if charged:
            self.charged.append(failure)
        return charged

    async def _broken_from_inside(self, failure: Failure) -> bool:
        """Whether the sandbox is broken while the host sees no cause outside it, and others work."""
        if self._sandbox is None:
            return False
        if self._broken_inside is None:
            outside = await self._sandbox.broken_from_outside(failure.cause)
            self._broken_inside = not outside and await self.pool.works(self.spec)
        return self._broken_inside

    def service(self, toolset: str) -> Any:
        """The service that a toolset's tools share in this environment."""
        return self.services[toolset]

    async def resource(self, name: str, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """A per-rollout resource, created on first use and closed with the session."""
        async with self._starting:
            if self._closed:
                raise SandboxError("closed", f"the session of rollout {self.task_id} is already closed")
            if name not in self._resources:
                self._exit_stack = self._exit_stack or AsyncExitStack()
                self._resources[name] = await self._exit_stack.enter_async_context(make())
            resource: T = self._resources[name]
            return resource

    async def call(self, name: str, arguments: Mapping[str, Any], call_id: str | None = None) -> ToolOutcome:
        """Run one tool. InfrastructureError propagates; any other error is returned to the model."""
        with tracing.span("tool") as span:
            if not span.on:
                return await self._run_tool(name, arguments)
            span.attributes = (name, call_id)
            outcome = await self._run_tool(name, arguments)
            if outcome.error is not None:
                span.error = "tool_error"
            if span.content:
                span.set_attributes(tool=name, call=call_id, arguments=dict(arguments), result=outcome.text)
            return outcome

    async def _run_tool(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        tool = self.tools.get(name)
        if tool is None:
            return ToolOutcome.refusal(f"unknown tool {name!r}; available: {', '.join(sorted(self.tools))}")
        try:
            checked = tool.check(arguments)
        except ToolUseError as error:
            return ToolOutcome.refusal(str(error))
        # Before taking a call slot: rollouts that wait for a sandbox must not block those that have one.
        if tool.sandboxed:
            await self.sandbox()
        async with self.calls_in_flight:
            began = time.monotonic()
            limit = asyncio.timeout(self._call_seconds())
            try:
                async with limit:
                    value = await tool.function(self, **checked)
            except InfrastructureError:
                raise
            except Exception as error:  # noqa: BLE001 (the model sees the error)
                return ToolOutcome.refusal(_describe(name, error, stopped=limit.expired()))
            finally:
                self.record_timing(Span.TOOL, name, began)
        text = value if isinstance(value, str) else fast_json.dumps(value).decode()
        error_value = value.get("error") if isinstance(value, dict) else None
        return ToolOutcome(text, str(error_value) if error_value else None)

    def _call_seconds(self) -> float | None:
        """The limit of a policy's call: a tool that forgets the deadline must not carry it past worker_timeout."""
        if self.time_left is None or self._policy_ended:
            return None
        return max(self.time_left, 0.0) + CALL_GRACE

    def command_timeout(self, requested: float | None) -> float:
        """Timeout of a command in seconds. The policy's is limited, a verifier's is not.

        A command may run slightly past the policy's deadline, so that the rollout ends there and is scored, and not at
        `worker_timeout`, where it would have no score.
        """
        seconds = self.terminal_timeout if requested is None or requested <= 0 else requested
        if self._policy_ended:
            return seconds
        left = self.max_command_seconds if self.time_left is None else max(self.time_left, 0.0) + DEADLINE_GRACE
        return min(seconds, self.max_command_seconds, left)

    async def end_policy(self) -> None:
        """Kill the policy's processes, once; its files stay. Processes a verifier starts later are not affected."""
        if self._policy_ended:
            return
        self._policy_ended = True
        if self._sandbox is not None and await self._sandbox.alive():
            await self._sandbox.end_processes()
        self.processes.clear()

    async def close(self) -> None:
        """Close the session's resources and release the sandbox. Idempotent; finishes what a cancelled call left."""
        self._closed = True
        async with self._starting:
            self._resources.clear()
            if self._idle_timer is not None:
                self._idle_timer.cancel()
            try:
                if self._exit_stack is not None:
                    await self._exit_stack.aclose()
            finally:
                if self._closing_idle is not None:
                    await self._closing_idle
                sandbox, self._sandbox = self._sandbox, None
                if sandbox is not None:
                    await self.pool.release(sandbox)

    def record_timing(self, span: Span, name: str, began: float) -> None:
        """Record how long something took."""
        self.timings.append(Timing(span, name, began - self.started_at, time.monotonic() - began))


def _describe(tool: str, error: Exception, *, stopped: bool) -> str:
    """The error message that the model gets for a failed call."""
    if stopped:
        return f"{tool} was stopped: the time for this task is over"
    return str(error) if isinstance(error, ToolUseError) else f"{tool} failed: {type(error).__name__}: {error}"
