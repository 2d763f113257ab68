"""A sandbox backend in one file: every sandbox is a temporary directory of this machine, WITHOUT isolation.

Use it with `--env.terminal_backend examples/extensions/scratch_backend.py:ScratchBackend`.
"""

import asyncio
import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from hermes_rl.sandbox.protocol import PATH, TIMEOUT_EXIT_CODE, Command, ExecResult, Sandbox
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec, resolve_spec


class ScratchSandbox(Sandbox):
    def __init__(self, env: Mapping[str, str]) -> None:
        self.workspace, self.scratch = tempfile.mkdtemp(), tempfile.gettempdir()
        self._env = {"PATH": PATH, "HOME": self.workspace, "SANDBOX": self.workspace, **env}

    async def run(self, command: Command) -> ExecResult:
        source = command.stdin
        data = source if isinstance(source, bytes | None) else b"".join([chunk async for chunk in source])
        # Files instead of pipes: a background process that holds a pipe open does not delay its command.
        with tempfile.TemporaryFile() as stdin, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            os.pwrite(stdin.fileno(), data or b"", 0)
            process = await asyncio.create_subprocess_exec(
                "bash", "-c", command.text, cwd=Path(self.workspace, command.cwd or "."), start_new_session=True,
                env={**self._env, **command.env}, stdin=stdin, stdout=out, stderr=out if command.merge_stderr else err,
            )  # fmt: skip
            try:
                code = await asyncio.wait_for(process.wait(), command.timeout)
            except TimeoutError:
                os.killpg(process.pid, signal.SIGKILL)
                code = TIMEOUT_EXIT_CODE
            stdout, stderr = (os.pread(file.fileno(), command.max_output, 0) for file in (out, err))
        if command.sink is not None:
            command.sink(stdout)
        return ExecResult(code if code >= 0 else 128 - code, stdout, stderr, timed_out=code == TIMEOUT_EXIT_CODE)

    async def end_processes(self) -> None:
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if f"SANDBOX={self.workspace}".encode() in (process / "environ").read_bytes().split(b"\0"):
                    os.kill(int(process.name), signal.SIGKILL)

    async def alive(self) -> bool:
        return Path(self.workspace).is_dir()

    async def close(self) -> None:
        await self.end_processes()
        shutil.rmtree(self.workspace, ignore_errors=True)


class ScratchBackend:
    name = "scratch"
    capabilities = Capabilities(isolates_files=False, isolates_processes=False, network_off=False, network_on=True)

    async def probe(self) -> None:
        async with await self.start() as sandbox:
            await sandbox.exec("true", timeout=10)

    async def prepare(self, spec: SandboxSpec, report: Callable[[str], object]) -> None:
        resolve_spec(spec, self.name, self.capabilities)

    async def start(self, spec: SandboxSpec | None = None) -> ScratchSandbox:
        spec = resolve_spec(spec or SandboxSpec(), self.name, self.capabilities)
        sandbox = ScratchSandbox(spec.env)
        for path in spec.files:
            await sandbox.write(path, spec.content(path))
        await sandbox.exec(spec.setup or "true", timeout=600)
        return sandbox

    async def reap(self, resources: Mapping[str, Any]) -> None: ...
    async def close(self) -> None: ...
