"""One environment's tools, sandbox pool and rollout sessions.

Each environment owns its host and shares nothing. The seeds' `ToolContext(task_id)` names no environment, so the
current one is found in a context variable that the environment sets.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from hermes_rl.console.live_display import warn
from hermes_rl.core.errors import ConfigError
from hermes_rl.core.observation import observe
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.spec import SandboxSpec
from hermes_rl.tools.faults import ToolFaults
from hermes_rl.tools.registry import tools_by_name
from hermes_rl.tools.selection import OWN_TOOLS
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import Tool
from hermes_rl.tools.toolset import OpenToolset

_running_host: ContextVar["ToolHost | None"] = ContextVar("running_tool_host", default=None)
_item_spec: ContextVar[SandboxSpec | None] = ContextVar("item_sandbox_spec", default=None)


class ToolHost:
    def __init__(
        self,
        tools: Mapping[str, Tool],
        pool: SandboxPool,
        *,
        calls_in_flight: int,
        terminal_timeout: float,
        max_command_seconds: float = 600.0,
        sandbox_lifetime: float | None = None,
        toolsets: Mapping[str, OpenToolset] | None = None,
        spec: SandboxSpec | None = None,
    ) -> None:
        """`spec` is the sandbox of sessions that are not given another."""
        self.toolsets = dict(toolsets or {})
        self.tools = tools_by_name(
            {"hermes-rl": tools.values(), **{name: toolset.tools for name, toolset in self.toolsets.items()}}
        )
        # A setting may name a toolset by a reference; its tools know it by its own name.
        self._services = {toolset.name or name: toolset.service for name, toolset in self.toolsets.items()}
        self.pool = pool
        self._calls_in_flight = asyncio.Semaphore(calls_in_flight)
        self._terminal_timeout, self._max_command_seconds = terminal_timeout, max_command_seconds
        self._sandbox_lifetime = sandbox_lifetime
        self._spec = spec
        self._own_tools = frozenset(tool.name for tool in self.toolsets.get(OWN_TOOLS, OpenToolset(())).tools)
        self._sessions: dict[str, ToolSession] = {}
        self.faults = ToolFaults()
        self.report: Callable[[str], object] = warn
        """Prints a warning about the environment; callers with their own display replace it."""
        self._warned: set[str] = set()

    def session(self, task_id: str) -> ToolSession:
        """The session of a rollout, created on first use."""
        if task_id not in self._sessions:
            self._sessions[task_id] = ToolSession(
                task_id,
                self.tools,
                self.pool,
                self._calls_in_flight,
                self._terminal_timeout,
                max_command_seconds=self._max_command_seconds,
                services=self._services,
                spec=_item_spec.get() or self._spec,
                sandbox_lifetime=self._sandbox_lifetime,
                own_tools=self._own_tools,
            )
            observe(self._sessions[task_id])
        return self._sessions[task_id]

    def warn_once(self, key: str, message: str) -> None:
        """Report a warning, unless one with this key was already reported."""
        if key not in self._warned:
            self._warned.add(key)
            self.report(message)

    def check(self) -> None:
        """Raise the error that ends the run: no sandbox can be started, or the environment's own tools are broken."""
        if self.pool.open_error is not None:
            raise self.pool.open_error
        self.faults.check()

    async def close_session(self, task_id: str) -> None:
        session = self._sessions.pop(task_id, None)
        if session is not None:
            await session.close()

    async def close(self) -> None:
        """Close every session that is still open, then the pool."""
        try:
            for task_id in list(self._sessions):
                await self.close_session(task_id)
        finally:
            await self.pool.close()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside this block, and in tasks and threads it starts, `ToolHost.current()` is this host."""
        token = _running_host.set(self)
        try:
            yield
        finally:
            _running_host.reset(token)

    @contextmanager
    def using_spec(self, spec: SandboxSpec) -> Iterator[None]:
        """Inside this block, and in tasks and threads it starts, new sessions have this sandbox spec."""
        token = _item_spec.set(spec)
        try:
            yield
        finally:
            _item_spec.reset(token)

    @staticmethod
    def current() -> "ToolHost":
        host = _running_host.get()
        if host is None:
            raise ConfigError(
                "no environment is running here: ToolContext(task_id) and HermesAgentLoop find their sandbox through "
                "the environment that calls them in setup, compute_reward or evaluate"
            )
        return host
