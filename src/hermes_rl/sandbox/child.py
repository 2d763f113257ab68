"""A child process: started with vfork and watched through a pidfd, on any event loop, without a thread.

uvloop forks, which with a hundred MB of Python heap holds the loop for 5 ms where vfork takes 1 ms; asyncio on
Python 3.11 starts a thread for every child. Starts pass a gate one at a time, so the loop runs in between.
"""

import asyncio
import os
import subprocess
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from hermes_rl.errors import SandboxError

T = TypeVar("T")


class Child:
    """Reaped as soon as it ends. Made by `Child.start`."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self.pid = process.pid
        self.exited = asyncio.Event()
        self._process = process
        self._pidfd = os.pidfd_open(process.pid)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._pidfd, self._ended)

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        env: Mapping[str, str],
        fds: Sequence[int],
        gate: asyncio.Lock | None = None,
        pass_fds: Sequence[int] = (),
    ) -> "Child":
        """Start a process in a session of its own with these three standard descriptors and those passed on."""
        async with gate or asyncio.Lock():
            try:
                process = subprocess.Popen(  # noqa: ASYNC220 - the loop's own ways are slower, see above
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
        """As a shell tells it: 128 and the signal's number for a process that was killed."""
        code = self._process.returncode or 0
        return 128 - code if code < 0 else code

    def kill(self) -> None:
        """Kill this process, if it has not ended."""
        if not self.exited.is_set():
            self._process.kill()

    def _ended(self) -> None:
        if self._process.poll() is not None:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self.exited.set()


async def to_the_end(work: Coroutine[Any, Any, T]) -> T:
    """Wait for work that a cancellation must not interrupt; the cancellation is passed on when it is done."""
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
