"""Read an environment's configuration in a subprocess, so that its code never runs in the caller.

Always true: the subprocess and everything it started are gone when this returns, within a minute.
"""

import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from tempfile import TemporaryFile
from typing import IO, Any

from hermes_rl.core import fast_json
from hermes_rl.core.child_python import python_command
from hermes_rl.core.errors import ConfigError

DEADLINE = 60.0
PAUSE = 0.01
PROGRAM = "hermes_rl.environment.config_introspection"
_SHOWN_LINES, _SHOWN_CHARACTERS = 5, 1000


@dataclass(frozen=True, slots=True)
class DescribedField:
    """`default` is the value from config_init, which is the class default unless `set_by_config_init`."""

    name: str
    type: str
    kinds: tuple[str, ...]
    nullable: bool
    allowed: str
    description: str
    default: Any
    value: Any
    set_by_config_init: bool = False
    own: bool = False
    """Whether only this environment has the field."""
    readable: bool = True
    """Whether `value` is the actual value: no secret was redacted, and it can be represented as JSON."""


@dataclass(frozen=True, slots=True)
class FoundProblem:
    section: str
    field: str | None
    message: str


@dataclass(frozen=True, slots=True)
class Description:
    name: str
    """The environment's own name, which the trajectory API uses too."""
    class_name: str
    text: str
    env: dict[str, DescribedField]
    openai: dict[str, DescribedField]
    problems: tuple[FoundProblem, ...]
    changes: dict[str, Any] = field(default_factory=dict)
    """The changes that it was computed with."""


def describe(reference: str, changes: Mapping[str, Any]) -> Description:
    """The environment's configuration with these changes; ConfigError when it cannot be read."""
    # Files, not pipes: a process that the environment starts may hold its output open forever.
    with TemporaryFile() as stdin, TemporaryFile() as stdout, TemporaryFile() as stderr:
        stdin.write(fast_json.dumps(changes))
        stdin.seek(0)
        process = subprocess.Popen(
            python_command("-m", PROGRAM, reference),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        ended = _await_end(process)
        output, errors = _content(stdout), _last_lines(_content(stderr))
    if not ended:
        raise ConfigError(
            f"{reference} did not report its configuration within {DEADLINE:g} s; move slow work from the file's top "
            "level and from config_init to setup()"
        )
    try:
        response = fast_json.loads(output)
    except ValueError:
        raise ConfigError(
            f"{reference} ended with exit status {process.returncode} before it reported its configuration; "
            f"`hermes-rl validate {reference}` shows more. Its output: {errors}"
        ) from None
    if "error" in response:
        raise ConfigError(f"{response['error']}; fix the file, then select it again")
    return parse_description(response["description"], changes)


def parse_description(document: Mapping[str, Any], changes: Mapping[str, Any]) -> Description:
    """From the subprocess's response or from a saved draft."""
    return Description(
        name=document["name"],
        class_name=document["class_name"],
        text=document["text"],
        env=_fields(document["env"]),
        openai=_fields(document["openai"]),
        problems=tuple(FoundProblem(**problem) for problem in document["problems"]),
        changes=dict(changes),
    )


def _fields(section: Any) -> dict[str, DescribedField]:
    rows = section.values() if isinstance(section, dict) else section
    return {row["name"]: DescribedField(**{**row, "kinds": tuple(row["kinds"])}) for row in rows}


def _await_end(process: subprocess.Popen[bytes]) -> bool:
    """Whether it ended by itself in time. Kills its whole process group in any case."""
    began = time.monotonic()
    try:
        while not (ended := _has_ended(process)) and time.monotonic() - began < DEADLINE:
            time.sleep(PAUSE)
    finally:
        # The environment's children are in its group. Until the leader is reaped, its pid cannot be reused.
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


def _last_lines(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()[-_SHOWN_LINES:]
    return "\n".join(lines)[-_SHOWN_CHARACTERS:] or "nothing"
