"""A child process, started with vfork and watched through a pidfd: works on any event loop, without a thread.

uvloop forks: with 100 MB of Python heap that blocks the loop for 5 ms, vfork for 1 ms. asyncio on Python 3.11 starts a
thread per child. A gate lets one start through at a time, so the loop runs in between.
"""

import asyncio
import os
import subprocess
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from hermes_rl.core.errors import SandboxError

T = TypeVar("T")


class Child:
    """A running child, reaped as soon as it ends. Created by `Child.start`."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.pid = process.pid
        self.exited = asyncio.Event()
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._on_pidfd_readable)

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        fds: Sequence[int],
        gate: asyncio.Lock | None = None,
        pass_fds: Sequence[int] = (),
    ) -> "Child":
        """Start a process in a new session. `fds` are its stdin, stdout and stderr."""
        async with gate or asyncio.Lock():
            try:
                process = subprocess.Popen(  # noqa: ASYNC220 - asyncio's own way is slower, see above
                    argv,
                    stdin=fds[0],
                    stdout=fds[1],
                    stderr=fds[2],
                    env=dict(env),
                    cwd="/",
                    start_new_session=True,
                    pass_fds=pass_fds,
                )
            except OSError as error:
                raise SandboxError("spawn", f"cannot start {argv[0]}: {error}") from error
            return cls(process)

    @property
    def exit_code(self) -> int:
        """As in a shell: 128 + signal number for a killed process."""
        code = self._process.returncode or 0
        return 128 - code if code < 0 else code

    def kill(self) -> None:
        if not self.exited.is_set():
            self._process.kill()

    def _on_pidfd_readable(self) -> None:
        if self._process.poll() is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self.exited.set()


async def shield_until_done(work: Coroutine[Any, Any, T]) -> T:
    """Run work to completion even if we are cancelled; CancelledError is raised once it is done."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    result = task.result()
    if cancelled:
        raise asyncio.CancelledError
    return result
