"""An environment's configuration as a process of its own tells it: the environment's code never runs in the caller.

Always true: the process and all that it started are gone when this returns, after a minute at most.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, Any

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError

DEADLINE = 60.0
PAUSE = 0.01
PROGRAM = "hermes_rl.environment.describing"
_SHOWN_LINES, _SHOWN_CHARACTERS = 5, 1000


@dataclass(frozen=True, slots=True)
class DescribedField:
    """`default` is what config_init gives; `said` tells whether it does so itself, or leaves the class default."""

    name: str
    type: str
    kinds: tuple[str, ...]
    nullable: bool
    allowed: str
    description: str
    default: Any
    value: Any
    said: bool
    own: bool
    """Whether it is of this environment alone."""
    readable: bool
    """Whether `value` is the whole truth: no secret is hidden in it, and JSON can hold it."""


@dataclass(frozen=True, slots=True)
class FoundProblem:
    section: str
    field: str | None
    message: str


@dataclass(frozen=True, slots=True)
class Description:
    name: str
    """What the environment calls itself, also to the trajectory API."""
    class_name: str
    text: str
    env: dict[str, DescribedField]
    openai: dict[str, DescribedField]
    problems: tuple[FoundProblem, ...]
    asked: dict[str, Any] = field(default_factory=dict)
    """The changes that it tells the outcome of."""


def describe(reference: str, changes: Mapping[str, Any]) -> Description:
    """The environment's configuration with these changes; ConfigError when the environment cannot tell."""
    # Files, not pipes: whatever the environment starts may hold its output open for ever.
    with TemporaryFile() as asked, TemporaryFile() as said, TemporaryFile() as noise:
        asked.write(jsontext.dumps(changes))
        asked.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", PROGRAM, reference],
            stdin=asked,
            stdout=said,
            stderr=noise,
            start_new_session=True,
        )
        ended = _await_end(process)
        answer, words = _content(said), _end_of(_content(noise))
    if not ended:
        raise ConfigError(
            f"{reference} did not tell its configuration within {DEADLINE:g} s; move slow work from the file's top "
            "level and from config_init to setup()"
        )
    try:
        told = jsontext.loads(answer)
    except ValueError:
        raise ConfigError(
            f"{reference} ended with exit status {process.returncode} before it told its configuration; "
            f"`hermes-rl validate {reference}` shows more. It said: {words}"
        ) from None
    if "error" in told:
        raise ConfigError(f"{told['error']}; mend the file, then select it again")
    return description_of(told["description"], changes)


def description_of(told: Mapping[str, Any], asked: Mapping[str, Any]) -> Description:
    """From what the program says, or from a saved one."""
    return Description(
        name=told["name"],
        class_name=told["class_name"],
        text=told["text"],
        env=_fields(told["env"]),
        openai=_fields(told["openai"]),
        problems=tuple(FoundProblem(**one) for one in told["problems"]),
        asked=dict(asked),
    )


def _fields(told: Any) -> dict[str, DescribedField]:
    rows = told.values() if isinstance(told, dict) else told
    return {row["name"]: DescribedField(**{**row, "kinds": tuple(row["kinds"])}) for row in rows}


def _await_end(process: subprocess.Popen[bytes]) -> bool:
    """Whether it ended by itself in time; nothing of it is left."""
    began = time.monotonic()
    try:
        while not (ended := _has_ended(process)) and time.monotonic() - began < DEADLINE:
            time.sleep(PAUSE)
    finally:
        # What the environment started is in its group; while the leader is not waited for, its number is nobody else's.
        if process.returncode is None:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return ended


def _has_ended(process: subprocess.Popen[bytes]) -> bool:
    if hasattr(os, "waitid"):
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    return process.poll() is not None


def _content(file: IO[bytes]) -> bytes:
    file.seek(0)
    return file.read()


def _end_of(noise: bytes) -> str:
    lines = noise.decode(errors="replace").strip().splitlines()[-_SHOWN_LINES:]
    return "\n".join(lines)[-_SHOWN_CHARACTERS:] or "nothing"
