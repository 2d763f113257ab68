"""One environment's tools: which exist, the pool its sandboxes come from, and the sessions of its rollouts.

Each environment owns a host of its own; nothing here is shared between two. The seeds' `ToolContext(task_id)` names
no environment, so the one whose code is running is found in a context variable, which that environment sets.
"""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

from hermes_rl.errors import ConfigError
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.tools.session import ToolSession
from hermes_rl.tools.tool import Tool
from hermes_rl.tools.toolset import OpenToolset
from hermes_rl.tools.toolsets import tools_by_name

_running_host: ContextVar["ToolHost | None"] = ContextVar("running_tool_host", default=None)


class ToolHost:
    def __init__(
        self,
        tools: Mapping[str, Tool],
        pool: SandboxPool,
        *,
        calls_in_flight: int,
        terminal_timeout: float,
        longest_command: float = 600.0,
        toolsets: Mapping[str, OpenToolset] | None = None,
    ) -> None:
        self.toolsets = dict(toolsets or {})
        self.tools = tools_by_name(
            {"hermes-rl": tools.values(), **{name: one.tools for name, one in self.toolsets.items()}}
        )
        self._services = {name: toolset.service for name, toolset in self.toolsets.items()}
        self.pool = pool
        self._calls_in_flight = asyncio.Semaphore(calls_in_flight)
        self._terminal_timeout, self._longest_command = terminal_timeout, longest_command
        self._sessions: dict[str, ToolSession] = {}

    def session(self, task_id: str) -> ToolSession:
        """The session of a rollout; opened on first use."""
        if task_id not in self._sessions:
            self._sessions[task_id] = ToolSession(
                task_id,
                self.tools,
                self.pool,
                self._calls_in_flight,
                self._terminal_timeout,
                longest_command=self._longest_command,
                services=self._services,
            )
        return self._sessions[task_id]

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
        """Within this block, and in tasks and threads started in it, `ToolHost.current()` is this host."""
        token = _running_host.set(self)
        try:
            yield
        finally:
            _running_host.reset(token)

    @staticmethod
    def current() -> "ToolHost":
        host = _running_host.get()
        if host is None:
            raise ConfigError(
                "no environment is running here: ToolContext(task_id) and HermesAgentLoop find their sandbox through "
                "the environment whose setup, compute_reward or evaluate calls them"
            )
        return host
