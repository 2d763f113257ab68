"""The process that runs a verifiers package, and the requests to it.

Always true: what goes wrong in the process is a PackageError, which leaves rollouts without a score. A process that
died or hangs is replaced at the next request; the rollouts whose state it had fail. It gets no variables of ours but
those it needs to start and those in the settings.
"""

import asyncio
import os
import signal
from collections import deque
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.child_python import python_command
from hermes_rl.interop.package_error import PackageError, PackageFault

HOST = Path(__file__).with_name("host.py")
INHERITED = ("HOME", "LANG", "LC_ALL", "LC_CTYPE", "PATH", "SSL_CERT_FILE", "TMPDIR", "TZ", "USER", "HF_HOME")
MAX_LINE_BYTES = 1 << 28
STDERR_LINES = 20
PING_TIMEOUT = 5.0
CLOSE_TIMEOUT = 10.0


class PackageProcess:
    """One package, opened in its own interpreter. `about` is what it said of itself."""

    def __init__(
        self,
        python: Path,
        package: str,
        arguments: Mapping[str, Any],
        *,
        variables: Mapping[str, str],
        timeout: float,
        start_timeout: float,
    ) -> None:
        self.about: dict[str, Any] = {}
        self.package = package
        self._command = python_command(str(HOST), python=python, isolated=True)
        self._arguments = dict(arguments)
        self._variables = {name: value for name in INHERITED if (value := os.environ.get(name))} | dict(variables)
        self._timeout, self._start_timeout = timeout, start_timeout
        self._process: asyncio.subprocess.Process | None = None
        self._ids = count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._readers: list[asyncio.Task[None]] = []
        self._starting = asyncio.Lock()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["PackageProcess"]:
        try:
            await self._started()
            yield self
        finally:
            await self._close()

    async def ask(self, what: str, **fields: Any) -> Any:
        """The package's answer; PackageError when its code raises, or its process dies or hangs."""
        await self._started()
        return await self._send(what, fields, self._timeout)

    async def _started(self) -> None:
        async with self._starting:
            if self._process is not None and self._process.returncode is None:
                return
            await self._end()
            self._stderr.clear()
            try:
                self._process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=asyncio.subprocess.PIPE,
                    env=self._variables,
                    cwd=Path(self._command[0]).parent,
                    limit=MAX_LINE_BYTES,
                    start_new_session=True,
                )
            except OSError as error:
                raise PackageError(PackageFault.DIED, f"{self.package} cannot start: {error}") from error
            errors = asyncio.create_task(self._read_errors(self._process))
            self._readers = [errors, asyncio.create_task(self._read_answers(self._process, errors))]
            opening = {"package": self.package, "arguments": self._arguments}
            try:
                self.about = await self._send("open", opening, self._start_timeout)
            except BaseException:
                await self._end()
                raise

    async def _send(self, what: str, fields: Mapping[str, Any], timeout: float) -> Any:
        process = self._process
        if process is None or process.stdin is None:
            raise self._died(process)
        number = next(self._ids)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            process.stdin.write(fast_json.dumps({"id": number, "do": what, **fields}) + b"\n")
            async with asyncio.timeout(timeout):
                with suppress(ConnectionError):
                    await process.stdin.drain()
                return await answer
        except TimeoutError:
            if what != "ping":
                await self._replace_if_stuck()
            message = f"{self.package} did not answer `{what}` within {timeout:g} s"
            raise PackageError(PackageFault.HUNG, message) from None
        finally:
            self._waiting.pop(number, None)

    async def _replace_if_stuck(self) -> None:
        """End a process that does not even answer a ping; one that does is waiting for something of its own."""
        try:
            await self._send("ping", {}, PING_TIMEOUT)
        except PackageError:
            await self._end()

    async def _read_answers(self, process: asyncio.subprocess.Process, errors: asyncio.Task[None]) -> None:
        assert process.stdout is not None  # noqa: S101 - it is a pipe
        try:
            while line := await process.stdout.readline():
                answer = fast_json.loads(line)
                waiting = self._waiting.get(answer["id"])
                if waiting is None or waiting.done():
                    continue
                if "error" in answer:
                    fault = PackageFault.UNSUPPORTED if answer["unsupported"] else PackageFault.RAISED
                    waiting.set_exception(PackageError(fault, f"{self.package}: {answer['error']}"))
                else:
                    waiting.set_result(answer["value"])
        except (ValueError, KeyError, TypeError) as error:
            self._stderr.append(f"it sent an answer that cannot be read: {error}")
            self._kill(process)
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT):
                await process.wait()
                await asyncio.shield(errors)
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(self._died(process))

    async def _read_errors(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None  # noqa: S101 - it is a pipe
        with suppress(ValueError):
            while line := await process.stderr.readline():
                self._stderr.append(line.decode(errors="replace").rstrip())

    def _died(self, process: asyncio.subprocess.Process | None) -> PackageError:
        code = None if process is None else process.returncode
        said = "\n".join(self._stderr)
        return PackageError(PackageFault.DIED, f"the process of {self.package} ended (exit code {code}): {said}")

    async def _close(self) -> None:
        if self._process is not None and self._process.returncode is None and self.about:
            with suppress(PackageError):
                await self._send("close", {}, CLOSE_TIMEOUT)
        await self._end()

    async def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        self._kill(process)
        await process.wait()
        readers, self._readers = self._readers, []
        if readers:
            _, late = await asyncio.wait(readers, timeout=CLOSE_TIMEOUT)
            for reader in late:
                reader.cancel()

    def _kill(self, process: asyncio.subprocess.Process) -> None:
        """End the process and what it started."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
