"""One rollout's tool session: its sandbox, started on first use, and its tool calls.

After `close` the sandbox is gone and every call fails. An idle sandbox is closed earlier; a fresh one would lack the
policy's work, so the next use of it fails.
"""

import asyncio
import inspect
import math
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache, cached_property
from random import Random
from typing import Any, Generic, NamedTuple, cast

from typing_extensions import TypeVar

from hermes_rl import tracing
from hermes_rl.core import fast_json
from hermes_rl.core.author_code import describe_error
from hermes_rl.core.errors import EnvironmentCodeError, Failure, InfrastructureError, SandboxError, failure_of
from hermes_rl.core.failure_causes import Evidence, evidence_for
from hermes_rl.core.trajectory import Span, StepReward, Timing, TurnState
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import SandboxSpec
from hermes_rl.tools.tool import Tool, ToolUseError

T = TypeVar("T")
State = TypeVar("State", default=Any)

DEADLINE_GRACE = 1.0
# Seconds beyond the policy's deadline after which a call is stopped, whatever its own timeouts are.
CALL_GRACE = 5.0
# Of one rollout, as JSON: a record must stay readable.
MAX_STATE_BYTES = 2**20


# Whose prompt or user message is made in this task, for authors' methods that take a session.
_current: ContextVar["ToolSession | None"] = ContextVar("current_session", default=None)


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
class ToolSession(Generic[State]):
    """What a tool knows of its rollout: the item, the state, the sandbox, and how to reward or end the rollout.

    `ToolSession[MyState]` types `state`.
    """

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
    item: Any = None
    state: State = cast("State", None)  # noqa: RUF009 (nothing is called when a session is made)
    """What `initial_state` returned. Tools may change it or assign another."""
    seat: str | None = None
    """Whose session it is, in an environment with several agents."""
    seed: int = 0
    turn: int = 0
    """The model's current answer, counted from 1; 0 before the first."""
    end_reason: str | None = None
    """Why the environment ended the rollout; None while it goes on."""
    steps: list[StepReward] = field(default_factory=list)
    metadata: dict[str, Any] = field(default_factory=dict)
    """What parts of the environment add to the rollout's metadata."""
    replayed_reply: tuple[str | None] | None = None
    """In a replay, what the simulated user said to this answer; it is not asked again."""
    own_tools: Collection[str] = ()
    """The names of the environment's own tools."""
    stateful: bool = False
    """Whether the environment has a state. Its own tools run one after another then, in the order of the calls."""
    state_problem: str | None = None
    """Why the state is not recorded."""
    _states: list[tuple[int, bytes]] = field(default_factory=list)
    _own_calls: asyncio.Lock = field(default_factory=asyncio.Lock)
    _own_task: asyncio.Task[Any] | None = None
    _resources: dict[str, Any] = field(default_factory=dict)
    _exit_stack: AsyncExitStack | None = None
    _sandbox: Sandbox | None = None
    _starting: asyncio.Lock = field(default_factory=asyncio.Lock)
    _idle_timer: asyncio.TimerHandle | None = None
    _closing_idle: asyncio.Task[None] | None = None
    _closed: bool = False
    _policy_ended: bool = False
    _broken_inside: bool | None = None

    @cached_property
    def rng(self) -> Random:
        """A random generator of this rollout alone; the same seed gives the same numbers."""
        return Random(f"{self.seed}/session")

    def end(self, reason: str = "done") -> None:
        """End the rollout after the results of this turn. The first reason counts.

        Nothing happens when the agent has already stopped, as in the reward.
        """
        if self.end_reason is None and not self._policy_ended:
            self.end_reason = reason

    def reward(self, value: float, note: str = "") -> None:
        """Add a step reward to this turn. Nothing happens when the agent has already stopped, as in the reward."""
        number = float(value)
        if not math.isfinite(number):
            raise ValueError(f"session.reward({value!r}): a step reward must be finite")
        if self.turn == 0:
            raise ValueError(f"session.reward({value!r}) before the first answer: there is no turn to reward")
        if not self._policy_ended:
            self.steps.append(StepReward(self.turn, number, note))

    def note_state(self) -> None:
        """Record the state, if the environment has one and this turn changed it."""
        if not self.stateful or self.state_problem is not None:
            return
        try:
            text = fast_json.dumps_plain(self.state)
        except TypeError as error:
            self.state_problem = str(error)
            return
        if self._states and self._states[-1][1] == text:
            return
        if sum(len(earlier) for _, earlier in self._states) + len(text) > MAX_STATE_BYTES:
            self.state_problem = f"the states of a rollout are longer than {MAX_STATE_BYTES} bytes"
            return
        self._states.append((self.turn, text))

    def states(self) -> tuple[TurnState, ...]:
        """The recorded states; each is that after its turn."""
        return tuple(TurnState(turn, fast_json.loads(text)) for turn, text in self._states)

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
        """Whether the agent's work is over; what comes now is the reward's."""
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
        own = name in self.own_tools
        # A tool may call another.
        nested = self._own_task is not None and self._own_task is asyncio.current_task()
        if not (own and self.stateful) or nested:
            return await self._run_checked(tool, arguments, own=own)
        async with self._own_calls:
            self._own_task = asyncio.current_task()
            try:
                return await self._run_checked(tool, arguments, own=own)
            finally:
                self._own_task = None

    async def _run_checked(self, tool: Tool, arguments: Mapping[str, Any], *, own: bool) -> ToolOutcome:
        if self.end_reason is not None and not self._policy_ended:
            return ToolOutcome.refusal("not run: the task is over")
        name = tool.name
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
            except Exception as error:
                if own and not isinstance(error, ToolUseError) and not limit.expired():
                    # Not what the model did wrong, so not for the model to read.
                    raise EnvironmentCodeError("tool", f"the tool {name} raised {describe_error(error)}") from error
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


def takes_session(owner: object, method: str) -> bool:
    """Whether an author's method asks for the rollout's session."""
    call = getattr(owner, method)
    return _has_session(getattr(call, "__func__", call))


@cache
def _has_session(function: Callable[..., Any]) -> bool:
    return "session" in inspect.signature(function).parameters


def call_with_session(owner: object, method: str, *arguments: Any, session: ToolSession | None = None) -> Any:
    """Call a method of the author's, with the session if it takes one: the given one, or that of the call around it."""
    call = getattr(owner, method)
    wanted = takes_session(owner, method)
    if session is None:
        return call(*arguments, session=_current.get()) if wanted else call(*arguments)
    with session_in_use(session):
        return call(*arguments, session=session) if wanted else call(*arguments)


def current_session() -> ToolSession | None:
    """The session of the rollout whose prompt or user message is made in this task."""
    return _current.get()


@contextmanager
def session_in_use(session: ToolSession) -> Iterator[None]:
    """Make the session the current one inside the block, also for what it awaits."""
    token = _current.set(session)
    try:
        yield
    finally:
        _current.reset(token)


def _describe(tool: str, error: Exception, *, stopped: bool) -> str:
    """The error message that the model gets for a failed call."""
    if stopped:
        return f"{tool} was stopped: the time for this task is over"
    return str(error) if isinstance(error, ToolUseError) else f"{tool} failed: {type(error).__name__}: {error}"
