"""What a start gives: an empty workspace of its own, with the spec's files, setup and environment in it."""

import asyncio
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hermes_rl.errors import ConfigError, SandboxError
from hermes_rl.sandbox.conformance.check import BrokenPromiseError, Group, Trial, must, run, same, says
from hermes_rl.sandbox.protocol import Backend, Sandbox
from hermes_rl.sandbox.spec import ROOT, Limits

GROUP = Group("start")

# The same every time, so that a backend which keeps what it baked keeps it once.
_SETUP = "mkdir made; tr a-z A-Z < given/text > made/loud; id -u > made/uid; chmod -R a+rX made"
_FILES = {"given/text": "quiet\n", "given/bytes": bytes(range(256)), "plain": b""}


@GROUP.on_backend()
async def is_a_backend(trial: Trial) -> None:
    """The backend has a name, capabilities and every method of the protocol."""
    must(isinstance(trial.backend, Backend), "it lacks a method or an attribute of hermes_rl.sandbox.Backend")
    unknown = trial.can.limits - set(Limits.__dataclass_fields__)
    must(not unknown, f"it claims limits that do not exist: {sorted(unknown)}")


@GROUP.on_backend()
async def probe_passes(trial: Trial) -> None:
    """Probing the backend succeeds."""
    await trial.backend.probe()


@GROUP.on_sandbox
async def workspace_is_empty(sandbox: Sandbox) -> None:
    """The workspace is an absolute path, empty, writable, and the directory and home of every command."""
    must(sandbox.workspace.startswith("/"), f"the workspace {sandbox.workspace!r} is no absolute path")
    await says(sandbox, 'pwd; echo "$HOME"', f"{sandbox.workspace}\n{sandbox.workspace}\n".encode())
    await says(sandbox, "ls -A", b"")
    await says(sandbox, "echo mine > file && cat file", b"mine\n")


@GROUP.on_sandbox
async def scratch_is_apart(sandbox: Sandbox) -> None:
    """The scratch directory can be written and does not lie in the workspace."""
    must(not f"{sandbox.scratch}/".startswith(f"{sandbox.workspace}/"), f"{sandbox.scratch} is in the workspace")
    await says(sandbox, "echo kept > file && cat file && rm file", b"kept\n", cwd=sandbox.scratch)


@GROUP.on_backend()
async def workspaces_are_apart(trial: Trial) -> None:
    """Two sandboxes have a workspace each, and what one writes is not in the other's."""
    one, other = await trial.start(), await trial.start()
    await one.write("mine", b"private")
    await says(other, "ls -A", b"")
    await other.write("mine", b"changed")
    same("the first sandbox's file", await one.read("mine"), b"private")


@GROUP.on_backend()
async def files_are_laid_out(trial: Trial) -> None:
    """The spec's files are there: text, bytes and local files, below directories that are made for them."""
    with _local_file(b"from a local file") as path:
        sandbox = await trial.start(trial.spec(files={**_FILES, "given/deep/er/file": path}))
    same("a file given as text", await sandbox.read("given/text"), b"quiet\n")
    same("a file given as bytes", await sandbox.read("given/bytes"), bytes(range(256)))
    same("a file given as a path", await sandbox.read("given/deep/er/file"), b"from a local file")
    same("an empty file", await sandbox.read("plain"), b"")


@GROUP.on_backend()
async def setup_runs_after_the_files(trial: Trial) -> None:
    """The spec's setup runs in the workspace once the files are there, as root where there is one."""
    sandbox = await trial.start(trial.spec(files=_FILES, setup=_SETUP))
    same("what setup made", await sandbox.read("made/loud"), b"QUIET\n")
    if trial.can.root_user:
        same("setup's user", await sandbox.read("made/uid"), b"0\n")


@GROUP.on_backend()
async def setup_failure_is_told(trial: Trial) -> None:
    """A setup that fails is a SandboxError with the cause `setup` and what it said."""
    try:
        await trial.start(trial.spec(setup="echo the disk is on fire; exit 3"))
    except SandboxError as error:
        same("the cause", error.cause, "setup")
        must("the disk is on fire" in str(error), f"the message lacks what setup said: {error}")
    else:
        raise BrokenPromiseError("a sandbox started although its setup ended with exit code 3")


@GROUP.on_backend()
async def spec_env_is_seen(trial: Trial) -> None:
    """The spec's variables are seen by every command; a command's own come before them."""
    sandbox = await trial.start(trial.spec(env={"COLOUR": "blue", "SHAPE": "round = good"}))
    await says(sandbox, 'echo "$COLOUR, $SHAPE"', b"blue, round = good\n")
    await says(sandbox, 'echo "$COLOUR, $SHAPE"', b"red, round = good\n", env={"COLOUR": "red"})


@GROUP.on_backend()
async def eight_start_at_once(trial: Trial) -> None:
    """Eight sandboxes can be started at once, and each answers for itself."""
    sandboxes = await asyncio.gather(*(trial.start() for _ in range(8)))
    await asyncio.gather(*(box.write("me", str(number).encode()) for number, box in enumerate(sandboxes)))
    said = await asyncio.gather(*(run(box, "cat me") for box in sandboxes))
    same("what they say", [result.stdout for result in said], [str(number).encode() for number in range(8)])


@GROUP.on_backend()
async def prepare_is_repeatable(trial: Trial) -> None:
    """Preparing a spec, and preparing it again, is harmless, and a sandbox starts from it."""
    spec = trial.spec(files=_FILES, setup=_SETUP)
    told: list[str] = []
    for _ in range(2):
        await trial.backend.prepare(spec, told.append)
    must(all(isinstance(line, str) for line in told), f"prepare told something that is no text: {told!r}")
    sandbox = await trial.start(spec)
    same("what setup made", await sandbox.read("made/loud"), b"QUIET\n")


@GROUP.on_backend()
async def each_start_is_fresh(trial: Trial) -> None:
    """What a sandbox does to its spec's files and to what setup made is not seen by the next of the same spec."""
    spec = trial.spec(files=_FILES, setup=f"{_SETUP}; chmod -R a+rwX made given")
    for _ in range(2):
        sandbox = await trial.start(spec)
        same("a given file", await sandbox.read("given/text"), b"quiet\n")
        same("what setup made", await sandbox.read("made/loud"), b"QUIET\n")
        await says(sandbox, "ls -A", b"given\nmade\nplain\n")
        await says(
            sandbox, "echo changed | tee given/text > made/loud && rm plain && touch new && echo done", b"done\n"
        )
        await sandbox.close()


@GROUP.on_backend()
async def unclaimed_is_refused(trial: Trial) -> None:
    """A spec that asks for what the backend does not claim is a ConfigError, never silently ignored."""
    can = trial.can
    asked: list[dict[str, Any]] = [
        {"limits": Limits(**{name: 64})} for name in Limits.__dataclass_fields__ if name not in can.limits
    ]
    asked += [{"network": False}] * (not can.network_off) + [{"network": True}] * (not can.network_on)
    asked += [{"folders": {"/agent": Path("/")}}] * (not can.folders)
    asked += [{"user": ROOT}] * (not can.root_user) + [{"writable_root": True}] * (not can.writable_root)
    asked += [{"image": "hermes-rl-no-such-image"}] * (not can.images)
    for wish in asked:
        try:
            await trial.start(trial.spec(**wish))
        except ConfigError:
            continue
        raise BrokenPromiseError(f"a sandbox started although the spec asks for {wish}, which is not claimed")


@GROUP.on_backend(claims="images")
async def missing_image_is_told(trial: Trial) -> None:
    """An image that does not exist is a SandboxError or a ConfigError that names it."""
    try:
        await trial.start(trial.spec(image="hermes-rl-no-such-image:none"))
    except (SandboxError, ConfigError) as error:
        must("hermes-rl-no-such-image" in str(error), f"the message does not name the image: {error}")
    else:
        raise BrokenPromiseError("a sandbox started from an image that does not exist")


@GROUP.on_backend()
async def cancelled_start_is_harmless(trial: Trial) -> None:
    """After starts that were cancelled half way the backend starts the next."""
    for delay in (0.0, 0.005, 0.05, 0.2):
        starting = asyncio.ensure_future(trial.start())
        await asyncio.sleep(delay)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
    await says(await trial.start(), "echo well", b"well\n")


@contextmanager
def _local_file(data: bytes) -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "file")
        path.write_bytes(data)
        yield path
