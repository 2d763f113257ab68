"""What exec promises: exit codes, output, input, environment, directory and user of a command, whatever its text."""

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from hermes_rl.sandbox.conformance.check import GRACE, BrokenPromiseError, Group, Trial, must, run, same, says
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import AGENT

GROUP = Group("exec")

_LARGE = 5_000_000
_EVERY_BYTE = bytes(range(256))


@GROUP.on_sandbox
async def exit_codes_come_back(sandbox: Sandbox) -> None:
    """The exit code is the command's own: 0, 1, 2, 127 and 255."""
    for code in (0, 1, 2, 127, 255):
        same(f"the exit code of `exit {code}`", (await run(sandbox, f"exit {code}")).exit_code, code)


@GROUP.on_sandbox
async def signal_death_is_128_and_its_number(sandbox: Sandbox) -> None:
    """A command that dies of a signal has the exit code 128 and the signal's number."""
    for name, number in (("TERM", 15), ("KILL", 9), ("SEGV", 11)):
        result = await run(sandbox, f"kill -{name} $$")
        same(f"the exit code after SIG{name}", result.exit_code, 128 + number)
        must(not result.timed_out, f"death by SIG{name} was called a time-out")


@GROUP.on_sandbox
async def exit_code_124_is_no_timeout(sandbox: Sandbox) -> None:
    """A command that exits with 124 by itself did not time out."""
    result = await run(sandbox, "exit 124")
    same("exit code and timed_out", (result.exit_code, result.timed_out), (124, False))


@GROUP.on_sandbox
async def syntax_error_is_a_result(sandbox: Sandbox) -> None:
    """A command that is no shell syntax is a result with a message, not an exception."""
    result = await run(sandbox, "if then fi (")
    must(result.exit_code != 0 and result.stderr, f"a syntax error gave {result}")


@GROUP.on_sandbox
async def shell_is_bash(sandbox: Sandbox) -> None:
    """Commands run in bash."""
    await says(sandbox, '[[ -n "$BASH_VERSION" ]] && a=(x y) && echo "${a[1]}"', b"y\n")


@GROUP.on_sandbox
async def streams_are_apart(sandbox: Sandbox) -> None:
    """Standard output and standard error come back apart."""
    result = await run(sandbox, "echo out; echo err >&2; echo out; echo err >&2")
    same("stdout and stderr", (result.stdout, result.stderr), (b"out\nout\n", b"err\nerr\n"))


@GROUP.on_sandbox
async def merged_streams_keep_their_order(sandbox: Sandbox) -> None:
    """With merge_stderr both streams come as one, in the order they were written."""
    result = await run(sandbox, "for i in 1 2 3 4 5; do echo o$i; echo e$i >&2; done", merge_stderr=True)
    same("the merged output", result.stdout.split(), [b"%c%d" % (kind, i) for i in range(1, 6) for kind in b"oe"])
    same("stderr", result.stderr, b"")


@GROUP.on_sandbox
async def output_is_bytes(sandbox: Sandbox) -> None:
    """All 256 byte values come through on both streams, without a final newline."""
    text = "".join(f"\\{byte:03o}" for byte in range(256))
    result = await run(sandbox, f"printf '{text}'; printf '{text}' >&2")
    same("stdout", result.stdout, _EVERY_BYTE)
    same("stderr", result.stderr, _EVERY_BYTE)


@GROUP.on_sandbox
async def no_output_is_empty(sandbox: Sandbox) -> None:
    """A command that says nothing has two empty streams that are not called truncated."""
    result = await run(sandbox, "true")
    same("the result", (result.stdout, result.stderr, result.truncated, result.timed_out), (b"", b"", False, False))


@GROUP.on_sandbox
async def output_is_cut_at_its_limit(sandbox: Sandbox) -> None:
    """Each stream is cut at max_output and called truncated; the rest is dropped, and the command ends as it would."""
    command = "yes abcdefg | head -c 3000000; yes 1234567 | head -c 2000000 >&2; exit 3"
    result = await run(sandbox, command, max_output=1000)
    same("stdout", result.stdout, b"abcdefg\n" * 125)
    same("stderr", result.stderr, b"1234567\n" * 125)
    same("exit code and truncated", (result.exit_code, result.truncated), (3, True))


@GROUP.on_sandbox
async def output_at_its_limit_is_whole(sandbox: Sandbox) -> None:
    """Output of exactly max_output bytes is not called truncated."""
    result = await run(sandbox, "yes abcdefg | head -c 1000", max_output=1000)
    same("length and truncated", (len(result.stdout), result.truncated), (1000, False))


@GROUP.on_sandbox
async def large_output_is_exact(sandbox: Sandbox) -> None:
    """5 MB of output, and 1 MB of errors beside it, come back whole."""
    result = await run(sandbox, f"yes 0123456 | head -c {_LARGE} & yes abcdefg | head -c 1000000 >&2; wait")
    must(result.stdout == b"0123456\n" * (_LARGE // 8), f"{len(result.stdout)} bytes of {_LARGE} came, or others")
    must(result.stderr == b"abcdefg\n" * 125_000, f"{len(result.stderr)} bytes of 1000000 came, or others")


@GROUP.on_sandbox
async def output_devices_open_again(sandbox: Sandbox) -> None:
    """A command can open /dev/stdin, /dev/stdout and /dev/stderr."""
    result = await run(sandbox, "cat /dev/stdin > /dev/stdout; echo err > /dev/stderr", stdin=b"in")
    same("stdout and stderr", (result.stdout, result.stderr), (b"in", b"err\n"))


@GROUP.on_sandbox
async def cwd_is_the_commands_directory(sandbox: Sandbox) -> None:
    """An absolute cwd is taken as it is, also with spaces and quotes."""
    await says(sandbox, "pwd", b"/usr\n", cwd="/usr")
    name = 'it\'s a "place" ü'
    await run(sandbox, 'mkdir -- "$NAME"', env={"NAME": name})
    await says(sandbox, "pwd", f"{sandbox.workspace}/{name}\n".encode(), cwd=f"{sandbox.workspace}/{name}")


@GROUP.on_sandbox
async def relative_cwd_is_below_the_workspace(sandbox: Sandbox) -> None:
    """A relative cwd is taken from the workspace."""
    await run(sandbox, "mkdir -p a/b")
    await says(sandbox, "pwd", f"{sandbox.workspace}/a/b\n".encode(), cwd="a/b")


@GROUP.on_sandbox
async def missing_cwd_is_a_result(sandbox: Sandbox) -> None:
    """A cwd that does not exist gives exit code 126 and a message that names it; nothing is run."""
    result = await run(sandbox, "echo never", cwd="/no/such/place")
    same("exit code and stdout", (result.exit_code, result.stdout), (126, b""))
    must(b"/no/such/place" in result.stderr, f"the message does not name the directory: {result.stderr!r}")


@GROUP.on_sandbox
async def given_variables_are_exact(sandbox: Sandbox) -> None:
    """Variables reach the command whatever they hold: newlines, quotes, UTF-8, `=`, `$`, nothing."""
    values = {
        "LINES_OF_TEXT": "one\ntwo\n",
        "QUOTES": 'it\'s "quoted" `x` $HOME \\n',
        "ACCENTS": "ünïcödé 漢字 🙂",
        "EQUALS": "a=b=c=",
        "EMPTY": "",
    }
    command = 'printf "%s|" "$LINES_OF_TEXT" "$QUOTES" "$ACCENTS" "$EQUALS" "${EMPTY-unset}"'
    await says(sandbox, command, "".join(f"{value}|" for value in values.values()).encode(), env=values)


@GROUP.on_sandbox
async def variables_are_the_commands_own(sandbox: Sandbox) -> None:
    """What one command exports, and where it goes, the next does not see."""
    await run(sandbox, "export LEFT=behind; cd /", env={"GIVEN": "once"})
    await says(sandbox, 'echo "$LEFT$GIVEN"; pwd', f"\n{sandbox.workspace}\n".encode())


@GROUP.on_backend()
async def host_variables_are_not_seen(trial: Trial) -> None:
    """Variables of our own process do not reach a command."""
    with _host_variable("HERMES_RL_CONFORMANCE_KEY", "sk-must-not-be-seen"):
        result = await run(await trial.start(), "env")
    must(b"PATH=" in result.stdout, f"a command has no PATH: {result.stdout!r}")
    must(b"sk-must-not-be-seen" not in result.stdout, "a variable that was set in our process is seen inside")


@GROUP.on_sandbox
async def wrong_variables_are_refused(sandbox: Sandbox) -> None:
    """A variable that is no name, or whose value has a NUL, is a ValueError."""
    for name, value in (("a;reboot", "1"), ("", "1"), ("A=B", "1"), ("FINE", "\0")):
        try:
            await run(sandbox, "true", env={name: value})
        except ValueError:
            continue
        raise BrokenPromiseError(f"a command ran with the variable {name!r} set to {value!r}")


@GROUP.on_sandbox
async def stdin_is_given(sandbox: Sandbox) -> None:
    """A command reads what it is given, all 256 byte values of it."""
    await says(sandbox, "cat", _EVERY_BYTE, stdin=_EVERY_BYTE)
    await says(sandbox, 'read -r line; echo "first: $line"; cat', b"first: one\ntwo\n", stdin=b"one\ntwo\n")


@GROUP.on_sandbox
async def empty_stdin_ends_at_once(sandbox: Sandbox) -> None:
    """Input that is empty, or none, is at its end at once."""
    for stdin in (b"", None):
        await says(sandbox, "cat; read -r x || echo end", b"end\n", stdin=stdin)


@GROUP.on_sandbox
async def large_stdin_is_exact(sandbox: Sandbox) -> None:
    """5 MB of input come through and back."""
    data = os.urandom(_LARGE)
    result = await run(sandbox, "cat", stdin=data)
    must(result.stdout == data, f"{len(result.stdout)} bytes of {_LARGE} came back, or others")


@GROUP.on_sandbox
async def stdin_can_be_a_stream(sandbox: Sandbox) -> None:
    """Input can be given in pieces, as they come."""
    await says(sandbox, "cat", b"one two three", stdin=_pieces(b"one ", b"", b"two ", b"three"))


@GROUP.on_sandbox
async def unread_stdin_is_no_error(sandbox: Sandbox) -> None:
    """A command that does not read its 5 MB of input ends as it would."""
    result = await run(sandbox, "exit 4", stdin=bytes(_LARGE))
    same("the exit code", result.exit_code, 4)
    await says(sandbox, "head -c 3", b"abc", stdin=b"abcdefg\n" * 600_000)


@GROUP.on_sandbox
async def long_command_runs(sandbox: Sandbox) -> None:
    """A command of 300 KB runs, with its input."""
    text = "ü" * 150_000
    await says(sandbox, f"printf %s '{text}' | wc -c; cat", b"300000\ninput", stdin=b"input")


@GROUP.on_sandbox
async def command_text_is_exact(sandbox: Sandbox) -> None:
    """A command may have many lines, here-documents, quotes and any letters."""
    command = "cat <<'END'\n$HOME `x` \"q\" 'q' \\ 漢字 🙂\n\ttab\nEND\n# a comment\nif true\nthen echo 'a\nb'; fi\n"
    await says(sandbox, command, "$HOME `x` \"q\" 'q' \\ 漢字 🙂\n\ttab\na\nb\n".encode())


@GROUP.on_sandbox
async def command_that_is_no_text_is_a_result(sandbox: Sandbox) -> None:
    """Half a surrogate pair, as a model may write it, is a result and not an exception."""
    result = await run(sandbox, "echo 'a\ud800b'; echo on")
    must(result.exit_code in {0, 126}, f"the exit code was {result.exit_code}")
    await says(sandbox, "printf '%s' 'raw \udcff'", b"raw \xff")


@GROUP.on_sandbox
async def nul_in_a_command_is_a_result(sandbox: Sandbox) -> None:
    """A command with a NUL gives exit code 126 and a message."""
    result = await run(sandbox, "echo a\0b")
    same("exit code and stdout", (result.exit_code, result.stdout), (126, b""))
    must(result.stderr, "there is no message")


@GROUP.on_sandbox
async def agent_is_the_default_user(sandbox: Sandbox) -> None:
    """Naming the user `agent` is the same as naming none."""
    unnamed = await run(sandbox, "id -u")
    named = await run(sandbox, "id -u", user=AGENT)
    same("the user's id and exit code", (named.stdout, named.exit_code), (unnamed.stdout, 0))


@GROUP.on_sandbox
async def unknown_user_is_refused(sandbox: Sandbox) -> None:
    """A user that the sandbox does not have is a ValueError."""
    try:
        result = await run(sandbox, "id", user="hermes-rl-nobody")
    except ValueError:
        return
    raise BrokenPromiseError(f"a command ran as an unknown user: {result}")


@GROUP.on_sandbox
async def twenty_run_at_once(sandbox: Sandbox) -> None:
    """Twenty commands run side by side, each with its own output and exit code."""
    began = time.monotonic()
    command = "for i in $(seq 100); do echo {n}; done; sleep 1; exit {n}"
    results = await asyncio.gather(*(run(sandbox, command.format(n=n)) for n in range(20)))
    for number, result in enumerate(results):
        same(f"command {number}'s exit code", result.exit_code, number)
        same(f"command {number}'s output", result.stdout, b"%d\n" % number * 100)
    took = time.monotonic() - began
    must(took < 2 * GRACE, f"they took {took:.1f} s: they ran one after the other")


async def _pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        await asyncio.sleep(0.01)
        yield piece


@contextmanager
def _host_variable(name: str, value: str) -> Iterator[None]:
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
