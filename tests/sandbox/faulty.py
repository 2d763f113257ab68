"""Backends over the local one that break one promise each, so that the check of that promise can be seen to fail."""

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.sandbox.backends.local import LocalBackend
from hermes_rl.sandbox.protocol import Command, ExecResult, Sandbox
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec

LOCAL = LocalBackend.capabilities


class Through(Sandbox):
    """Passes everything on. What breaks a promise overrides one method."""

    def __init__(self, inner: Sandbox) -> None:
        self.inner = inner
        self.workspace, self.scratch = inner.workspace, inner.scratch

    async def run(self, command: Command) -> ExecResult:
        return await self.inner.run(command)

    async def end_processes(self) -> None:
        await self.inner.end_processes()

    async def alive(self) -> bool:
        return await self.inner.alive()

    async def close(self) -> None:
        await self.inner.close()


class ThroughBackend:
    """The local backend with sandboxes of another class, or with claims of its own that it ignores."""

    name = "through"

    def __init__(self, sandbox: type[Through] = Through, capabilities: Capabilities = LOCAL) -> None:
        self.inner = LocalBackend()
        self.capabilities = capabilities
        self._sandbox = sandbox

    async def probe(self) -> None:
        await self.inner.probe()

    async def prepare(self, spec: SandboxSpec, report: Callable[[str], object]) -> None:
        await self.inner.prepare(spec, report)

    async def start(self, spec: SandboxSpec | None = None) -> Sandbox:
        return self._sandbox(await self.inner.start(self.passed_on(spec or SandboxSpec())))

    def passed_on(self, spec: SandboxSpec) -> SandboxSpec:
        if self.capabilities is LOCAL:
            return spec
        return SandboxSpec(files=spec.files, setup=spec.setup, env=spec.env)

    async def reap(self, resources: Mapping[str, Any]) -> None:
        await self.inner.reap(resources)

    async def close(self) -> None:
        await self.inner.close()


# --- faults of commands ---


class LosesExitCodes(Through):
    async def run(self, command: Command) -> ExecResult:
        return replace(await self.inner.run(command), exit_code=0)


class TellsSignalsAsOne(Through):
    async def run(self, command: Command) -> ExecResult:
        result = await self.inner.run(command)
        return replace(result, exit_code=1 if result.exit_code > 128 else result.exit_code)


class MergesStderr(Through):
    async def run(self, command: Command) -> ExecResult:
        return await self.inner.run(replace(command, merge_stderr=True))


class MergesOutOfOrder(Through):
    async def run(self, command: Command) -> ExecResult:
        result = await self.inner.run(replace(command, merge_stderr=False))
        if not command.merge_stderr:
            return result
        return replace(result, stdout=result.stdout + result.stderr, stderr=b"")


class MakesOutputText(Through):
    async def run(self, command: Command) -> ExecResult:
        result = await self.inner.run(command)
        return replace(result, stdout=result.stdout.decode(errors="replace").encode())


class StripsOutput(Through):
    async def run(self, command: Command) -> ExecResult:
        result = await self.inner.run(command)
        return replace(result, stdout=result.stdout.strip())


class KeepsTruncationQuiet(Through):
    async def run(self, command: Command) -> ExecResult:
        return replace(await self.inner.run(command), truncated=False)


class IgnoresTheOutputLimit(Through):
    async def run(self, command: Command) -> ExecResult:
        return await self.inner.run(replace(command, max_output=2**30))


class DropsInput(Through):
    async def run(self, command: Command) -> ExecResult:
        return await self.inner.run(replace(command, stdin=None))


class IgnoresCwd(Through):
    async def run(self, command: Command) -> ExecResult:
        return await self.inner.run(replace(command, cwd=None))


class IgnoresTheUser(Through):
    async def run(self, command: Command) -> ExecResult:
        return await self.inner.run(replace(command, user=None))


class LeaksOurEnvironment(Through):
    async def run(self, command: Command) -> ExecResult:
        names = {name: value for name, value in os.environ.items() if name.isidentifier()}
        return await self.inner.run(replace(command, env={**names, **command.env}))


class FlattensVariables(Through):
    async def run(self, command: Command) -> ExecResult:
        return await self.inner.run(replace(command, env={k: v.replace("\n", " ") for k, v in command.env.items()}))


class CutsLongCommands(Through):
    async def run(self, command: Command) -> ExecResult:
        if len(command.text) > 100_000:
            return ExecResult(126, b"", b"Argument list too long")
        return await self.inner.run(command)


class RaisesForNul(Through):
    async def run(self, command: Command) -> ExecResult:
        if "\0" in command.text:
            raise ValueError("embedded null byte")
        return await self.inner.run(command)


# --- faults of killing ---


class LeavesTheTree(Through):
    """Returns in time, and the processes live on: asyncssh's own time-out does this."""

    async def run(self, command: Command) -> ExecResult:
        running = asyncio.ensure_future(self.inner.run(replace(command, timeout=600)))
        done, _ = await asyncio.wait([running], timeout=command.timeout)
        running.add_done_callback(lambda late: late.cancelled() or late.exception())
        return running.result() if done else ExecResult(124, b"", b"", timed_out=True)


class NeverTimesOut(Through):
    async def run(self, command: Command) -> ExecResult:
        return await self.inner.run(replace(command, timeout=600))


class LosesPartialOutput(Through):
    async def run(self, command: Command) -> ExecResult:
        result = await self.inner.run(command)
        return replace(result, stdout=b"", stderr=b"") if result.timed_out else result


class KillsAllOnTimeout(Through):
    async def run(self, command: Command) -> ExecResult:
        result = await self.inner.run(command)
        if result.timed_out:
            await self.inner.end_processes()
        return result


class IgnoresCancellation(Through):
    async def run(self, command: Command) -> ExecResult:
        running = asyncio.ensure_future(self.inner.run(command))
        running.add_done_callback(lambda late: late.cancelled() or late.exception())
        return await asyncio.shield(running)


class WaitsForChildren(Through):
    async def run(self, command: Command) -> ExecResult:
        return await self.inner.run(replace(command, text=f"{command.text}\nwait"))


class KillsChildren(Through):
    async def run(self, command: Command) -> ExecResult:
        result = await self.inner.run(command)
        await self.inner.end_processes()
        return result


class EndsNothing(Through):
    async def end_processes(self) -> None:
        return


# --- faults of files ---


class ReadsPipes(Through):
    async def read(self, path: str, *, max_bytes: int = 0) -> bytes:
        return (await self.inner.exec(f"cat '{path}'", timeout=600)).stdout


class LeavesHalfDownloads(Through):
    async def download(self, remote: str, local: Path, *, max_bytes: int = 2**62) -> int:
        local.touch()
        local.write_bytes(await self.inner.read(remote))
        return local.stat().st_size


class AppendsToFiles(Through):
    async def write(self, path: str, data: Any) -> None:
        if isinstance(data, bytes) and path == "file":
            await self.inner.exec("cat >> file", stdin=data, timeout=60)
        else:
            await self.inner.write(path, data)


# --- faults of lifetime ---


class ClosesOnce(Through):
    closed = False

    async def close(self) -> None:
        if self.closed:
            raise SandboxError("died", "there is no such container")
        self.closed = True
        await self.inner.close()


class LivesForever(Through):
    async def alive(self) -> bool:
        return True


class TellsTheWrongCause(Through):
    async def run(self, command: Command) -> ExecResult:
        try:
            return await self.inner.run(command)
        except SandboxError as error:
            raise SandboxError("died", str(error)) from error


class NeverCloses(Through):
    async def close(self) -> None:
        return


# --- faults of backends ---


class IgnoresWishes(ThroughBackend):
    def passed_on(self, spec: SandboxSpec) -> SandboxSpec:
        return SandboxSpec(files=spec.files, setup=spec.setup, env=spec.env)


class ForgetsFiles(ThroughBackend):
    def passed_on(self, spec: SandboxSpec) -> SandboxSpec:
        return replace(spec, files={})


class ForgetsSetup(ThroughBackend):
    def passed_on(self, spec: SandboxSpec) -> SandboxSpec:
        return replace(spec, setup=None)


class SharesOneWorkspace(ThroughBackend):
    shared: Sandbox | None = None

    async def start(self, spec: SandboxSpec | None = None) -> Sandbox:
        self.shared = self.shared or await super().start(spec)
        return self.shared


class NeverStarts(ThroughBackend):
    async def start(self, spec: SandboxSpec | None = None) -> Sandbox:
        raise SandboxError("start", "there is no daemon")


class HangsForGood(ThroughBackend):
    """Its start heeds no cancellation, until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_go = asyncio.Event()

    async def probe(self) -> None:
        await self.start()

    async def start(self, spec: SandboxSpec | None = None) -> Sandbox:
        while not self.let_go.is_set():
            try:
                await self.let_go.wait()
            except asyncio.CancelledError:
                continue
        raise ConfigError("it was let go")


class LeaksDescriptors(ThroughBackend):
    def __init__(self) -> None:
        super().__init__()
        self.leaked: list[int] = []

    async def start(self, spec: SandboxSpec | None = None) -> Sandbox:
        self.leaked.append(os.open("/dev/null", os.O_RDONLY))
        return await super().start(spec)

    async def close(self) -> None:
        for fd in self.leaked:
            os.close(fd)
        self.leaked.clear()
        await super().close()
