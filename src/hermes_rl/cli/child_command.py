"""Runs another `hermes-rl` command as a person would, and reads its --json output.

Always true: its progress is shown, and none of its processes outlives this one: when interrupted it gets SIGINT and
time to clean up, then it is killed.
"""

import subprocess
from collections.abc import Sequence
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.child_python import python_command
from hermes_rl.core.errors import HermesRLError
from hermes_rl.core.process_guard import guard_argv

# An interrupted `process` closes its sandboxes first.
GRACE_S = 20.0


class CommandFailedError(HermesRLError):
    """A command that another one runs has failed; what it reported is above."""


def run_command(words: Sequence[str], *, guarded: bool = True) -> dict[str, Any]:
    """Run `hermes-rl WORDS --json` and return the object it prints.

    With `guarded` false, what it starts in the background outlives it.
    """
    command = python_command("-m", "hermes_rl", *words, "--json")
    with subprocess.Popen(
        guard_argv(command, grace=GRACE_S) if guarded else command, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        try:
            assert process.stdout is not None  # noqa: S101 - for the type checker; it is a pipe
            # Not `communicate`, which closes the lifeline.
            output = process.stdout.read()
            code = process.wait()
        finally:
            _end(process)
    if code != 0:
        raise CommandFailedError(f"`hermes-rl {' '.join(words)}` failed with exit code {code}; its messages are above")
    result: dict[str, Any] = fast_json.loads(output)
    return result


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(GRACE_S * 2)
    except subprocess.TimeoutExpired:
        process.kill()
