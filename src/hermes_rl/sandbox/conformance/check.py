"""A check: tests one guarantee of the sandbox protocol on a real sandbox. Its docstring is shown to users.

A check that passes returns; one that fails raises, through `require` and its variants, with what was observed.
Sandboxes started through its `CheckContext` are closed after it.
"""

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes_rl.sandbox.protocol import Backend, ExecResult, Sandbox
from hermes_rl.sandbox.spec import Capabilities, SandboxSpec

# Command timeout where timing is not what is checked: the check's own deadline comes first.
LONG_TIMEOUT = 600.0
# Seconds that a command may take to return after its timeout; also the limit for "soon".
GRACE = 10.0

_MAX_VALUE_LENGTH = 300


class CheckFailedError(Exception):
    """The backend violates the protocol; the message is for its author."""


class NotClaimedError(Exception):
    """Nothing to check: the backend does not claim the capability, or it cannot be observed here."""


@dataclass(slots=True)
class CheckContext:
    """Input of a check. Every sandbox starts from `image`; `ledger` is the directory of ledgers."""

    backend: Backend
    image: str | None = None
    ledger: Path | None = None
    started: list[Sandbox] = field(default_factory=list)

    @property
    def capabilities(self) -> Capabilities:
        return self.backend.capabilities

    def spec(self, **fields: Any) -> SandboxSpec:
        return SandboxSpec(**{"image": self.image, **fields})

    async def start(self, spec: SandboxSpec | None = None) -> Sandbox:
        sandbox = await self.backend.start(spec or self.spec())
        self.started.append(sandbox)
        return sandbox


OnSandbox = Callable[[Sandbox], Awaitable[None]]
OnBackend = Callable[[CheckContext], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Check:
    """`claims` is the capability that the backend must claim for it: a flag of Capabilities or a limit."""

    group: str
    name: str
    description: str
    claims: str | None
    on_sandbox: OnSandbox | None = None
    on_backend: OnBackend | None = None

    def claimed(self, capabilities: Capabilities) -> bool:
        return (
            self.claims is None or self.claims in capabilities.limits or bool(getattr(capabilities, self.claims, False))
        )


class CheckGroup:
    """The checks of one part of the protocol, in source order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.checks: list[Check] = []

    def on_sandbox(self, function: OnSandbox) -> OnSandbox:
        """Register a check that gets a fresh sandbox with the default spec."""
        name, description = _describe(function)
        self.checks.append(Check(self.name, name, description, None, on_sandbox=function))
        return function

    def on_backend(self, *, claims: str | None = None) -> Callable[[OnBackend], OnBackend]:
        """Register a check that starts its own sandboxes."""

        def add(function: OnBackend) -> OnBackend:
            name, description = _describe(function)
            self.checks.append(Check(self.name, name, description, claims, on_backend=function))
            return function

        return add


def require(condition: object, message: str) -> None:
    if not condition:
        raise CheckFailedError(message)


def require_equal(what: str, got: object, expected: object) -> None:
    if got != expected:
        raise CheckFailedError(f"{what} was {_shorten(got)}, expected {_shorten(expected)}")


def _shorten(value: object) -> str:
    text = repr(value)
    half = _MAX_VALUE_LENGTH // 2
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[:half]} … {text[-half:]} ({len(text)} characters)"


async def run(sandbox: Sandbox, command: str, **options: Any) -> ExecResult:
    """Run a command with a long timeout."""
    return await sandbox.exec(command, **{"timeout": LONG_TIMEOUT, **options})


async def require_output(sandbox: Sandbox, command: str, expected: bytes, **options: Any) -> None:
    """Run a command that must exit with 0 and print exactly this."""
    result = await run(sandbox, command, **options)
    shortened = command if len(command) < 100 else command[:100] + "…"
    require(
        result.exit_code == 0,
        f"`{shortened}` exited with {result.exit_code}, stderr {_shorten(result.stderr)}",
    )
    require_equal(f"the output of `{shortened}`", result.stdout, expected)


def sleep_command() -> tuple[str, str]:
    """A command that sleeps for minutes, and an argument of it that no other process has."""
    marker = f"600.{random.SystemRandom().randrange(10**11, 10**12)}"
    return f"sleep {marker}", marker


async def count_processes(sandbox: Sandbox, marker: str) -> int:
    """How many processes visible in the sandbox have this text in their arguments."""
    # Passed on standard input, so that neither grep nor its shell has it in its own arguments.
    result = await run(sandbox, "grep -lsaF -f - /proc/[0-9]*/cmdline", stdin=marker.encode() + b"\n")
    return len(result.stdout.split())


async def wait_for(what: str, condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait for a condition that must become true soon."""
    began = time.monotonic()
    while not await condition():
        require(time.monotonic() - began < GRACE, f"{what} did not appear within {GRACE:g} s")
        await asyncio.sleep(0.05)


async def wait_for_content(sandbox: Sandbox, name: str, text: bytes) -> None:
    """Wait until a file has this content."""

    async def has_content() -> bool:
        return (await run(sandbox, f"cat {name}")).stdout == text

    await wait_for(f"{text!r} in the file {name}", has_content)


async def slow_chunks(*chunks: bytes) -> AsyncIterator[bytes]:
    for chunk in chunks:
        await asyncio.sleep(0.01)
        yield chunk


def _describe(function: Callable[..., object]) -> tuple[str, str]:
    return function.__name__, (function.__doc__ or "").strip().splitlines()[0].rstrip(".")
