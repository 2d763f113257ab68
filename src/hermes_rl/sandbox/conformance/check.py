"""A check: one promise of the sandbox protocol, tried for real, told to a user by its docstring.

A check that is kept returns; one that is broken raises, by `must` and `same` with what was seen. What a check starts
through its `Trial` is closed after it.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_rl.sandbox.protocol import Backend, ExecResult, Sandbox
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec

# A command's time-out where time is not what is checked: the check's own deadline comes first.
PLENTY = 600.0
# How long after its time-out a command may take to return, and the most that "at once" may be.
GRACE = 10.0

_LONGEST_SHOWN = 300


class BrokenPromiseError(Exception):
    """The backend does not do what the protocol says; the message is for its author."""


class NotClaimedError(Exception):
    """There is nothing to try: the backend does not claim it, or it cannot be seen here."""


@dataclass(slots=True)
class Trial:
    """What a check works with. `image` is the one that every sandbox starts from, `ledger` the directory of ledgers."""

    backend: Backend
    image: str | None = None
    ledger: Path | None = None
    started: list[Sandbox] = field(default_factory=list)

    @property
    def can(self) -> Capabilities:
        return self.backend.capabilities

    def spec(self, **asked: Any) -> SandboxSpec:
        return SandboxSpec(**{"image": self.image, **asked})

    async def start(self, spec: SandboxSpec | None = None) -> Sandbox:
        sandbox = await self.backend.start(spec or self.spec())
        self.started.append(sandbox)
        return sandbox


OnSandbox = Callable[[Sandbox], Awaitable[None]]
OnBackend = Callable[[Trial], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """`claims` names the capability that must be claimed for it: a flag of Capabilities or a limit."""

    group: str
    name: str
    description: str
    claims: str | None
    on_sandbox: OnSandbox | None = None
    on_backend: OnBackend | None = None

    def claimed(self, can: Capabilities) -> bool:
        return self.claims is None or self.claims in can.limits or bool(getattr(can, self.claims, False))


class Group:
    """The checks of one part of the protocol, in the order they are written."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.checks: list[Check] = []

    def on_sandbox(self, function: OnSandbox) -> OnSandbox:
        """A check that gets a fresh sandbox, started with no wishes."""
        name, description = _told(function)
        self.checks.append(Check(self.name, name, description, None, on_sandbox=function))
        return function

    def on_backend(self, *, claims: str | None = None) -> Callable[[OnBackend], OnBackend]:
        """A check that starts its own sandboxes."""

        def add(function: OnBackend) -> OnBackend:
            name, description = _told(function)
            self.checks.append(Check(self.name, name, description, claims, on_backend=function))
            return function

        return add


def must(kept: object, message: str) -> None:
    if not kept:
        raise BrokenPromiseError(message)


def same(what: str, got: object, wanted: object) -> None:
    if got != wanted:
        raise BrokenPromiseError(f"{what} was {shown(got)}, must be {shown(wanted)}")


def shown(value: object) -> str:
    text = repr(value)
    half = _LONGEST_SHOWN // 2
    return text if len(text) <= _LONGEST_SHOWN else f"{text[:half]} … {text[-half:]} ({len(text)} characters)"


async def run(sandbox: Sandbox, command: str, **options: Any) -> ExecResult:
    """A command with plenty of time."""
    return await sandbox.exec(command, **{"timeout": PLENTY, **options})


async def says(sandbox: Sandbox, command: str, wanted: bytes, **options: Any) -> None:
    """A command that must end well and have exactly this output."""
    result = await run(sandbox, command, **options)
    shortened = command if len(command) < 100 else command[:100] + "…"
    must(result.exit_code == 0, f"`{shortened}` ended with exit code {result.exit_code}, saying {shown(result.stderr)}")
    same(f"the output of `{shortened}`", result.stdout, wanted)


def nap() -> tuple[str, str]:
    """A command that sleeps for minutes, and the word that tells it from every other process."""
    mark = f"600.{random.SystemRandom().randrange(10**11, 10**12)}"
    return f"sleep {mark}", mark


async def living(sandbox: Sandbox, mark: str) -> int:
    """How many processes that the sandbox sees have this word among their arguments."""
    # The word comes by standard input, so that neither grep nor its shell has it in its own arguments.
    result = await run(sandbox, "grep -lsaF -f - /proc/[0-9]*/cmdline", stdin=mark.encode() + b"\n")
    return len(result.stdout.split())


async def comes(what: str, met: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what must come soon."""
    began = time.monotonic()
    while not await met():
        must(time.monotonic() - began < GRACE, f"{what} did not come within {GRACE:g} s")
        await asyncio.sleep(0.05)


async def written(sandbox: Sandbox, name: str, text: bytes) -> None:
    """Wait until a command has written this to a file."""

    async def met() -> bool:
        return (await run(sandbox, f"cat {name}")).stdout == text

    await comes(f"{text!r} in the file {name}", met)


def _told(function: Callable[..., object]) -> tuple[str, str]:
    return function.__name__, (function.__doc__ or "").strip().splitlines()[0].rstrip(".")
