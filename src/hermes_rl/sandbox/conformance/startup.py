"""Starting a sandbox: a workspace of its own, with the spec's files, setup and environment."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.sandbox.conformance.check import (
    CheckContext,
    CheckFailedError,
    CheckGroup,
    require,
    require_equal,
    require_output,
    run,
)
from hermes_rl.sandbox.protocol import Backend, Sandbox
from hermes_rl.sandbox.spec import ROOT, Limits

GROUP = CheckGroup("start")

# Constant, so that a backend that caches baked images caches it once.
_SETUP = "mkdir made; tr a-z A-Z < given/text > made/loud; id -u > made/uid; chmod -R a+rX made"
_FILES = {"given/text": "quiet\n", "given/bytes": bytes(range(256)), "plain": b""}


@GROUP.on_backend()
async def implements_protocol(context: CheckContext) -> None:
    """The backend has a name, capabilities and all methods of the protocol."""
    require(isinstance(context.backend, Backend), "it lacks a method or an attribute of hermes_rl.sandbox.Backend")
    unknown = context.capabilities.limits - set(Limits.__dataclass_fields__)
    require(not unknown, f"it claims limits that do not exist: {sorted(unknown)}")


@GROUP.on_backend()
async def probe_succeeds(context: CheckContext) -> None:
    """probe() succeeds."""
    await context.backend.probe()


@GROUP.on_sandbox
async def workspace_is_empty(sandbox: Sandbox) -> None:
    """The workspace is an absolute path, empty, writable, and the cwd and HOME of every command."""
    require(sandbox.workspace.startswith("/"), f"the workspace {sandbox.workspace!r} is not an absolute path")
    await require_output(sandbox, 'pwd; echo "$HOME"', f"{sandbox.workspace}\n{sandbox.workspace}\n".encode())
    await require_output(sandbox, "ls -A", b"")
    await require_output(sandbox, "echo mine > file && cat file", b"mine\n")


@GROUP.on_sandbox
async def scratch_is_outside_workspace(sandbox: Sandbox) -> None:
    """The scratch directory is writable and not in the workspace."""
    require(not f"{sandbox.scratch}/".startswith(f"{sandbox.workspace}/"), f"{sandbox.scratch} is in the workspace")
    await require_output(sandbox, "echo kept > file && cat file && rm file", b"kept\n", cwd=sandbox.scratch)


@GROUP.on_backend()
async def workspaces_are_separate(context: CheckContext) -> None:
    """Two sandboxes have separate workspaces."""
    one, other = await context.start(), await context.start()
    await one.write("mine", b"private")
    await require_output(other, "ls -A", b"")
    await other.write("mine", b"changed")
    require_equal("the first sandbox's file", await one.read("mine"), b"private")


@GROUP.on_backend()
async def spec_files_are_written(context: CheckContext) -> None:
    """The spec's files are written: text, bytes and local files, with their parent directories."""
    with _local_file(b"from a local file") as path:
        sandbox = await context.start(context.spec(files={**_FILES, "given/deep/er/file": path}))
    require_equal("a file given as text", await sandbox.read("given/text"), b"quiet\n")
    require_equal("a file given as bytes", await sandbox.read("given/bytes"), bytes(range(256)))
    require_equal("a file given as a path", await sandbox.read("given/deep/er/file"), b"from a local file")
    require_equal("an empty file", await sandbox.read("plain"), b"")


@GROUP.on_backend()
async def setup_runs_after_files(context: CheckContext) -> None:
    """The spec's setup runs in the workspace after the files are written, as root where the backend has root."""
    sandbox = await context.start(context.spec(files=_FILES, setup=_SETUP))
    require_equal("the output of setup", await sandbox.read("made/loud"), b"QUIET\n")
    if context.capabilities.root_user:
        require_equal("setup's user", await sandbox.read("made/uid"), b"0\n")


@GROUP.on_backend()
async def setup_failure_is_reported(context: CheckContext) -> None:
    """A failing setup raises SandboxError with the cause `setup` and its output."""
    try:
        await context.start(context.spec(setup="echo the disk is on fire; exit 3"))
    except SandboxError as error:
        require_equal("the cause", error.cause, "setup")
        require("the disk is on fire" in str(error), f"the message lacks the output of setup: {error}")
    else:
        raise CheckFailedError("a sandbox started although its setup exited with 3")


@GROUP.on_backend()
async def spec_env_is_set(context: CheckContext) -> None:
    """The spec's variables are set for every command; a command's own variables override them."""
    sandbox = await context.start(context.spec(env={"COLOUR": "blue", "SHAPE": "round = good"}))
    await require_output(sandbox, 'echo "$COLOUR, $SHAPE"', b"blue, round = good\n")
    await require_output(sandbox, 'echo "$COLOUR, $SHAPE"', b"red, round = good\n", env={"COLOUR": "red"})


@GROUP.on_backend()
async def eight_sandboxes_start_concurrently(context: CheckContext) -> None:
    """Eight sandboxes can be started concurrently and do not mix."""
    sandboxes = await asyncio.gather(*(context.start() for _ in range(8)))
    await asyncio.gather(*(box.write("me", str(number).encode()) for number, box in enumerate(sandboxes)))
    results = await asyncio.gather(*(run(box, "cat me") for box in sandboxes))
    require_equal("their output", [result.stdout for result in results], [str(number).encode() for number in range(8)])


@GROUP.on_backend()
async def prepare_is_idempotent(context: CheckContext) -> None:
    """A spec can be prepared twice, and a sandbox starts from it."""
    spec = context.spec(files=_FILES, setup=_SETUP)
    lines: list[str] = []
    for _ in range(2):
        await context.backend.prepare(spec, lines.append)
    require(all(isinstance(line, str) for line in lines), f"prepare reported something other than text: {lines!r}")
    sandbox = await context.start(spec)
    require_equal("the output of setup", await sandbox.read("made/loud"), b"QUIET\n")


@GROUP.on_backend()
async def each_start_is_fresh(context: CheckContext) -> None:
    """Changes to the spec's files or the output of setup are not visible in the next sandbox of the spec."""
    spec = context.spec(files=_FILES, setup=f"{_SETUP}; chmod -R a+rwX made given")
    for _ in range(2):
        sandbox = await context.start(spec)
        require_equal("a given file", await sandbox.read("given/text"), b"quiet\n")
        require_equal("the output of setup", await sandbox.read("made/loud"), b"QUIET\n")
        await require_output(sandbox, "ls -A", b"given\nmade\nplain\n")
        await require_output(
            sandbox, "echo changed | tee given/text > made/loud && rm plain && touch new && echo done", b"done\n"
        )
        await sandbox.close()


@GROUP.on_backend()
async def unsupported_spec_is_refused(context: CheckContext) -> None:
    """A spec that asks for a capability that is not claimed raises ConfigError, never silently ignored."""
    capabilities = context.capabilities
    specs: list[dict[str, Any]] = [
        {"limits": Limits(**{name: 64})} for name in Limits.__dataclass_fields__ if name not in capabilities.limits
    ]
    specs += [{"network": False}] * (not capabilities.network_off) + [{"network": True}] * (not capabilities.network_on)
    specs += [{"folders": {"/agent": Path("/")}}] * (not capabilities.folders)
    specs += [{"user": ROOT}] * (not capabilities.root_user) + [{"writable_root": True}] * (
        not capabilities.writable_root
    )
    specs += [{"image": "hermes-rl-no-such-image"}] * (not capabilities.images)
    for fields in specs:
        try:
            await context.start(context.spec(**fields))
        except ConfigError:
            continue
        raise CheckFailedError(f"a sandbox started although the spec asks for {fields}, which is not claimed")


@GROUP.on_backend(claims="folders")
async def folders_are_mounted_without_hidden_paths(context: CheckContext) -> None:
    """A folder of this machine is visible and read-only, except for what the spec hides in it."""
    with _local_file(b"shown\n") as file:
        folder = file.parent
        folder.chmod(0o755)
        (folder / "answers").mkdir()
        for hidden in (folder / "answers" / "all", folder / "answer"):
            hidden.write_bytes(b"secret\n")
        spec = context.spec(folders={"/mounted": folder}, hidden=[folder / "answers", folder / "answer"])
        sandbox = await context.start(spec)
        seen = await run(sandbox, "cat /mounted/file /mounted/answer /mounted/answers/* 2>/dev/null; ls /mounted")
        require_equal("the mounted folder", seen.stdout, b"shown\nanswer\nanswers\nfile\n")
        for place in ("/mounted/new", "/mounted/answers/new"):
            written = await run(sandbox, f"touch {place}")
            require(written.exit_code != 0, f"{place} can be written")


@GROUP.on_backend(claims="images")
async def missing_image_is_reported(context: CheckContext) -> None:
    """A missing image raises SandboxError or ConfigError with its name."""
    try:
        await context.start(context.spec(image="hermes-rl-no-such-image:none"))
    except (SandboxError, ConfigError) as error:
        require("hermes-rl-no-such-image" in str(error), f"the message does not name the image: {error}")
    else:
        raise CheckFailedError("a sandbox started from an image that does not exist")


@GROUP.on_backend()
async def cancelled_start_is_harmless(context: CheckContext) -> None:
    """After cancelled starts the backend can start the next sandbox."""
    for delay in (0.0, 0.005, 0.05, 0.2):
        starting = asyncio.ensure_future(context.start())
        await asyncio.sleep(delay)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    await require_output(await context.start(), "echo well", b"well\n")


@contextmanager
def _local_file(data: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "file")
        path.write_bytes(data)
        yield path
