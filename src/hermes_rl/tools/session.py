"""One rollout's tools: its sandbox, started when first needed, and the calls made in it.

A session is closed exactly once, by whoever opened it; after that its sandbox is gone and every call fails.
"""

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

from hermes_rl import jsontext, tracing
from hermes_rl.errors import SandboxError, WorldError
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import SandboxSpec
from hermes_rl.tools.tool import Tool, ToolUseError
from hermes_rl.trajectory import Span, Timing

T = TypeVar("T")

DEADLINE_GRACE = 1.0


class ToolOutcome(NamedTuple):
    """What the model is told, and, apart from it, whether the call went wrong."""

    text: str
    error: str | None = None

    @classmethod
    def refusal(cls, message: str) -> "ToolOutcome":
        """The call was not carried out; the message tells the model what to do instead."""
        return cls(jsontext.dumps({"error": message}).decode(), message)


@dataclass(frozen=True, slots=True)
class BackgroundProcess:
    """A command that `terminal` left running; its log and exit code are files in the sandbox."""

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
    longest_command: float = 600.0
    services: Mapping[str, Any] = field(default_factory=dict)
    spec: SandboxSpec | None = None
    time_left: float | None = None
    processes: dict[str, BackgroundProcess] = field(default_factory=dict)
    timings: list[Timing] = field(default_factory=list)
    started_at: float = field(default_factory=time.monotonic)
    _resources: dict[str, Any] = field(default_factory=dict)
    _to_close: AsyncExitStack | None = None
    _sandbox: Sandbox | None = None
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _closed: bool = False
    _policy_ended: bool = False

    async def sandbox(self) -> Sandbox:
        """The rollout's sandbox; SandboxError when it cannot start or the session is over."""
        async with self._starting:
            if self._closed:
                raise SandboxError("closed", f"the sandbox of rollout {self.task_id} is already closed")
            if self._sandbox is None:
                began = time.monotonic()
                self._sandbox = await self.pool.acquire(self.spec)
                self.note(Span.SANDBOX, "start", began)
            return self._sandbox

    def service(self, toolset: str) -> Any:
        """What the tools of a toolset share in this environment."""
        return self.services[toolset]

    async def resource(self, name: str, make: Callable[[], AbstractAsyncContextManager[T]]) -> T:
        """Something of this rollout alone, made on first use and closed with the session."""
        async with self._starting:
            if self._closed:
                raise SandboxError("closed", f"the session of rollout {self.task_id} is already closed")
            if name not in self._resources:
                self._to_close = self._to_close or AsyncExitStack()
                self._resources[name] = await self._to_close.enter_async_context(make())
            resource: T = self._resources[name]
            return resource

    async def call(self, name: str, arguments: Mapping[str, Any], call_id: str | None = None) -> ToolOutcome:
        """Run one tool. A WorldError passes through; anything else that goes wrong is told to the model."""
        with tracing.span("tool") as span:
            if not span.on:
                return await self._called(name, arguments)
            span.attributes = (name, call_id)
            outcome = await self._called(name, arguments)
            if outcome.error is not None:
                span.error = "tool_error"
            if span.content:
                span.note(tool=name, call=call_id, arguments=dict(arguments), result=outcome.text)
            return outcome

    async def _called(self, name: str, arguments: Mapping[str, Any]) -> ToolOutcome:
        tool = self.tools.get(name)
        if tool is None:
            return ToolOutcome.refusal(f"unknown tool {name!r}; available: {', '.join(sorted(self.tools))}")
        try:
            checked = tool.check(arguments)
        except ToolUseError as error:
            return ToolOutcome.refusal(str(error))
        # Before a place among the calls is taken: rollouts that wait for a sandbox must not block those that have one.
        if tool.sandboxed:
            await self.sandbox()
        async with self.calls_in_flight:
            began = time.monotonic()
            try:
                value = await tool.function(self, **checked)
            except WorldError:
                raise
            except ToolUseError as error:
                return ToolOutcome.refusal(str(error))
            except Exception as error:  # noqa: BLE001 (a tool that breaks on a call is told to the model)
                return ToolOutcome.refusal(f"{name} failed: {type(error).__name__}: {error}")
            finally:
                self.note(Span.TOOL, name, began)
        text = value if isinstance(value, str) else jsontext.dumps(value).decode()
        told = value.get("error") if isinstance(value, dict) else None
        return ToolOutcome(text, str(told) if told else None)

    def time_for(self, asked: float | None) -> float:
        """Seconds for a command. A policy may ask for so much and no more; a verifier for whatever it likes.

        A command may overrun what is left of the policy's time by a little, so that the rollout ends at its deadline
        and is scored, and not at `worker_timeout`, where it would escape its score.
        """
        wanted = self.terminal_timeout if asked is None or asked <= 0 else asked
        if self._policy_ended:
            return wanted
        left = self.longest_command if self.time_left is None else max(self.time_left, 0.0) + DEADLINE_GRACE
        return min(wanted, self.longest_command, left)

    async def end_policy(self) -> None:
        """Kill whatever the policy left running, once; its files stay. What a verifier starts later is its own."""
        if self._policy_ended:
            return
        self._policy_ended = True
        if self._sandbox is not None:
            await self._sandbox.end_processes()
        self.processes.clear()

    async def close(self) -> None:
        """Give the sandbox back. Harmless a second time, and then still done if the first was cancelled."""
        self._closed = True
        async with self._starting:
            self._resources.clear()
            try:
                if self._to_close is not None:
                    await self._to_close.aclose()
            finally:
                await self._release()

    async def _release(self) -> None:
        if self._sandbox is not None:
            sandbox, self._sandbox = self._sandbox, None
            await self.pool.release(sandbox)

    def note(self, span: Span, name: str, began: float) -> None:
        """Keep how long something took, for the record."""
        self.timings.append(Timing(span, name, began - self.started_at, time.monotonic() - began))
