"""exec: exit codes, output, input, environment, directory and user of a command, for any command text."""

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hermes_rl.sandbox.conformance.check import (
    GRACE,
    CheckContext,
    CheckFailedError,
    CheckGroup,
    require,
    require_equal,
    require_output,
    run,
    slow_chunks,
)
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import AGENT

GROUP = CheckGroup("exec")

_LARGE = 5_000_000
_ALL_BYTES = bytes(range(256))


@GROUP.on_sandbox
async def exit_codes_are_returned(sandbox: Sandbox) -> None:
    """The exit code of a command is returned: 0, 1, 2, 127 and 255."""
    for code in (0, 1, 2, 127, 255):
        require_equal(f"the exit code of `exit {code}`", (await run(sandbox, f"exit {code}")).exit_code, code)


@GROUP.on_sandbox
async def signal_exit_code_is_128_plus_number(sandbox: Sandbox) -> None:
    """A command killed by a signal has exit code 128 + signal number."""
    for name, number in (("TERM", 15), ("KILL", 9), ("SEGV", 11)):
        result = await run(sandbox, f"kill -{name} $$")
        require_equal(f"the exit code after SIG{name}", result.exit_code, 128 + number)
        require(not result.timed_out, f"a kill by SIG{name} was reported as a timeout")


@GROUP.on_sandbox
async def exit_code_124_is_not_a_timeout(sandbox: Sandbox) -> None:
    """A command that exits with exit code 124 by itself is not reported as timed out."""
    result = await run(sandbox, "exit 124")
    require_equal("exit code and timed_out", (result.exit_code, result.timed_out), (124, False))


@GROUP.on_sandbox
async def syntax_error_is_a_result(sandbox: Sandbox) -> None:
    """A shell syntax error is a result with a message, not an exception."""
    result = await run(sandbox, "if then fi (")
    require(result.exit_code != 0 and result.stderr, f"the result of a syntax error was {result}")


@GROUP.on_sandbox
async def shell_is_bash(sandbox: Sandbox) -> None:
    """Commands run in bash."""
    await require_output(sandbox, '[[ -n "$BASH_VERSION" ]] && a=(x y) && echo "${a[1]}"', b"y\n")


@GROUP.on_sandbox
async def stdout_and_stderr_are_separate(sandbox: Sandbox) -> None:
    """Standard output and standard error are returned separately."""
    result = await run(sandbox, "echo out; echo err >&2; echo out; echo err >&2")
    require_equal("stdout and stderr", (result.stdout, result.stderr), (b"out\nout\n", b"err\nerr\n"))


@GROUP.on_sandbox
async def merged_streams_keep_order(sandbox: Sandbox) -> None:
    """With merge_stderr both streams are returned as one, in the order they were written."""
    result = await run(sandbox, "for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done", merge_stderr=True)
    require_equal(
        "the merged output", result.stdout.split(), [b"%c%d" % (kind, i) for i in range(1, 6) for kind in b"oe"]
    )
    require_equal("stderr", result.stderr, b"")


@GROUP.on_sandbox
async def output_is_bytes(sandbox: Sandbox) -> None:
    """All 256 byte values are returned on both streams, without an added newline."""
    text = "".join(f"\\{byte:03o}" for byte in range(256))
    result = await run(sandbox, f"printf '{text}'; printf '{text}' >&2")
    require_equal("stdout", result.stdout, _ALL_BYTES)
    require_equal("stderr", result.stderr, _ALL_BYTES)


@GROUP.on_sandbox
async def no_output_is_empty(sandbox: Sandbox) -> None:
    """A command without output has two empty streams, not marked as truncated."""
    result = await run(sandbox, "true")
    require_equal(
        "the result", (result.stdout, result.stderr, result.truncated, result.timed_out), (b"", b"", False, False)
    )


@GROUP.on_sandbox
async def output_is_truncated_at_limit(sandbox: Sandbox) -> None:
    """Each stream is truncated at max_output and marked so; the command still runs to its end."""
    command = "yes abcdefg | head -c 3000000; yes 1234567 | head -c 2000000 >&2; exit 3"
    result = await run(sandbox, command, max_output=1000)
    require_equal("stdout", result.stdout, b"abcdefg\n" * 125)
    require_equal("stderr", result.stderr, b"1234567\n" * 125)
    require_equal("exit code and truncated", (result.exit_code, result.truncated), (3, True))


@GROUP.on_sandbox
async def output_at_limit_is_complete(sandbox: Sandbox) -> None:
    """Output of exactly max_output bytes is not marked as truncated."""
    result = await run(sandbox, "yes abcdefg | head -c 1000", max_output=1000)
    require_equal("length and truncated", (len(result.stdout), result.truncated), (1000, False))


@GROUP.on_sandbox
async def large_output_is_exact(sandbox: Sandbox) -> None:
    """5 MB of stdout and 1 MB of concurrent stderr are returned completely."""
    result = await run(sandbox, f"yes 0123456 | head -c {_LARGE} & yes abcdefg | head -c 1000000 >&2; wait")
    require(
        result.stdout == b"0123456\n" * (_LARGE // 8), f"got {len(result.stdout)} bytes of {_LARGE}, or different ones"
    )
    require(result.stderr == b"abcdefg\n" * 125_000, f"got {len(result.stderr)} bytes of 1000000, or different ones")


@GROUP.on_sandbox
async def standard_streams_can_be_reopened(sandbox: Sandbox) -> None:
    """A command can open /dev/stdin, /dev/stdout and /dev/stderr."""
    result = await run(sandbox, "cat /dev/stdin > /dev/stdout; echo err > /dev/stderr", stdin=b"in")
    require_equal("stdout and stderr", (result.stdout, result.stderr), (b"in", b"err\n"))


@GROUP.on_sandbox
async def absolute_cwd_is_used(sandbox: Sandbox) -> None:
    """An absolute cwd is used, also with spaces and quotes."""
    await require_output(sandbox, "pwd", b"/usr\n", cwd="/usr")
    name = 'it\'s a "place" ü'
    await run(sandbox, 'mkdir -- "$NAME"', env={"NAME": name})
    await require_output(sandbox, "pwd", f"{sandbox.workspace}/{name}\n".encode(), cwd=f"{sandbox.workspace}/{name}")


@GROUP.on_sandbox
async def relative_cwd_is_below_workspace(sandbox: Sandbox) -> None:
    """A relative cwd is relative to the workspace."""
    await run(sandbox, "mkdir -p a/b")
    await require_output(sandbox, "pwd", f"{sandbox.workspace}/a/b\n".encode(), cwd="a/b")


@GROUP.on_sandbox
async def missing_cwd_is_a_result(sandbox: Sandbox) -> None:
    """A missing cwd gives exit code 126 and a message that names it; the command does not run."""
    result = await run(sandbox, "echo never", cwd="/no/such/place")
    require_equal("exit code and stdout", (result.exit_code, result.stdout), (126, b""))
    require(b"/no/such/place" in result.stderr, f"the message does not name the directory: {result.stderr!r}")


@GROUP.on_sandbox
async def variables_are_exact(sandbox: Sandbox) -> None:
    """Environment variables are passed exactly: newlines, quotes, UTF-8, `=`, `$`, empty."""
    values = {
        "LINES_OF_TEXT": "one\ntwo\n",
        "QUOTES": 'it\'s "quoted" `x` $HOME \\n',
        "ACCENTS": "ünïcödé 漢字 🙂",
        "EQUALS": "a=b=c=",
        "EMPTY": "",
    }
    command = 'printf "%s|" "$LINES_OF_TEXT" "$QUOTES" "$ACCENTS" "$EQUALS" "${EMPTY-unset}"'
    await require_output(sandbox, command, "".join(f"{value}|" for value in values.values()).encode(), env=values)


@GROUP.on_sandbox
async def variables_do_not_persist(sandbox: Sandbox) -> None:
    """Exported variables and directory changes do not carry over to the next command."""
    await run(sandbox, "export LEFT=behind; cd /", env={"GIVEN": "once"})
    await require_output(sandbox, 'echo "$LEFT$GIVEN"; pwd', f"\n{sandbox.workspace}\n".encode())


@GROUP.on_backend()
async def host_variables_are_hidden(context: CheckContext) -> None:
    """Environment variables of our own process are not visible to a command."""
    with _host_variable("HERMES_RL_CONFORMANCE_KEY", "sk-must-not-be-seen"):
        result = await run(await context.start(), "env")
    require(b"PATH=" in result.stdout, f"a command has no PATH: {result.stdout!r}")
    require(b"sk-must-not-be-seen" not in result.stdout, "a variable of our process is visible inside")


@GROUP.on_sandbox
async def invalid_variables_are_refused(sandbox: Sandbox) -> None:
    """An invalid variable name, or a value with a NUL, raises ValueError."""
    for name, value in (("a;reboot", "1"), ("", "1"), ("A=B", "1"), ("FINE", "\0")):
        try:
            await run(sandbox, "true", env={name: value})
        except ValueError:
            continue
        raise CheckFailedError(f"a command ran with the variable {name!r} set to {value!r}")


@GROUP.on_sandbox
async def stdin_is_delivered(sandbox: Sandbox) -> None:
    """A command reads its stdin, with all 256 byte values."""
    await require_output(sandbox, "cat", _ALL_BYTES, stdin=_ALL_BYTES)
    await require_output(sandbox, 'read -r line; echo "first: $line"; cat', b"first: one\ntwo\n", stdin=b"one\ntwo\n")


@GROUP.on_sandbox
async def empty_stdin_is_eof(sandbox: Sandbox) -> None:
    """Empty or missing stdin is at end of file immediately."""
    for stdin in (b"", None):
        await require_output(sandbox, "cat; read -r x || echo end", b"end\n", stdin=stdin)


@GROUP.on_sandbox
async def large_stdin_is_exact(sandbox: Sandbox) -> None:
    """5 MB of stdin are passed to the command and back."""
    data = os.urandom(_LARGE)
    result = await run(sandbox, "cat", stdin=data)
    require(result.stdout == data, f"got {len(result.stdout)} bytes of {_LARGE} back, or different ones")


@GROUP.on_sandbox
async def stdin_can_be_a_stream(sandbox: Sandbox) -> None:
    """Input can be an asynchronous stream of chunks."""
    await require_output(sandbox, "cat", b"one two three", stdin=slow_chunks(b"one ", b"", b"two ", b"three"))


@GROUP.on_sandbox
async def unread_stdin_is_harmless(sandbox: Sandbox) -> None:
    """A command that does not read its 5 MB of stdin ends normally."""
    result = await run(sandbox, "exit 4", stdin=bytes(_LARGE))
    require_equal("the exit code", result.exit_code, 4)
    await require_output(sandbox, "head -c 3", b"abc", stdin=b"abcdefg\n" * 600_000)


@GROUP.on_sandbox
async def long_command_runs(sandbox: Sandbox) -> None:
    """A command of 300 KB runs, with its stdin."""
    text = "ü" * 150_000
    await require_output(sandbox, f"printf %s '{text}' | wc -c; cat", b"300000\ninput", stdin=b"input")


@GROUP.on_sandbox
async def command_text_is_exact(sandbox: Sandbox) -> None:
    """Command text is passed exactly: several lines, here-documents, quotes, UTF-8."""
    command = "cat <<'END'\n$HOME `x` \"q\" 'q' \\ 漢字 🙂\n\ttab\nEND\n# a comment\nif true\nthen echo 'a\nb'; fi\n"
    await require_output(sandbox, command, "$HOME `x` \"q\" 'q' \\ 漢字 🙂\n\ttab\na\nb\n".encode())


@GROUP.on_sandbox
async def lone_surrogate_is_a_result(sandbox: Sandbox) -> None:
    """A lone surrogate in a command, which a model may write, is a result, not an exception."""
    result = await run(sandbox, "echo 'a\ud800b'; echo on")
    require(result.exit_code in {0, 126}, f"the exit code was {result.exit_code}")
    await require_output(sandbox, "printf '%s' 'raw \udcff'", b"raw \xff")


@GROUP.on_sandbox
async def nul_in_command_is_a_result(sandbox: Sandbox) -> None:
    """A NUL in a command gives exit code 126 and a message."""
    result = await run(sandbox, "echo a\0b")
    require_equal("exit code and stdout", (result.exit_code, result.stdout), (126, b""))
    require(result.stderr, "there is no message")


@GROUP.on_sandbox
async def agent_is_default_user(sandbox: Sandbox) -> None:
    """The user `agent` is the default user."""
    unnamed = await run(sandbox, "id -u")
    named = await run(sandbox, "id -u", user=AGENT)
    require_equal("the user's id and exit code", (named.stdout, named.exit_code), (unnamed.stdout, 0))


@GROUP.on_sandbox
async def unknown_user_is_refused(sandbox: Sandbox) -> None:
    """A user that the sandbox does not have raises ValueError."""
    try:
        result = await run(sandbox, "id", user="hermes-rl-nobody")
    except ValueError:
        return
    raise CheckFailedError(f"a command ran as an unknown user: {result}")


@GROUP.on_sandbox
async def twenty_commands_run_concurrently(sandbox: Sandbox) -> None:
    """Twenty commands run concurrently, each with its own output and exit code."""
    began = time.monotonic()
    command = "for i in $(seq 100); do echo {n}; done; sleep 1; exit {n}"
    results = await asyncio.gather(*(run(sandbox, command.format(n=n)) for n in range(20)))
    for number, result in enumerate(results):
        require_equal(f"command {number}'s exit code", result.exit_code, number)
        require_equal(f"command {number}'s output", result.stdout, b"%d\n" % number * 100)
    took = time.monotonic() - began
    require(took < 2 * GRACE, f"they took {took:.1f} s: they did not run concurrently")


@contextmanager
def _host_variable(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
