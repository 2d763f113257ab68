import asyncio
import time

import pytest

from hermes_rl.sandbox.protocol import Sandbox


async def test_the_exit_code_and_both_streams_come_back(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo out; echo err >&2; exit 7", timeout=10)
    assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")
    assert not result.timed_out
    assert not result.truncated


async def test_a_command_killed_by_a_signal_exits_as_in_a_shell(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("kill -TERM $$", timeout=10)).exit_code == 143


async def test_stdin_reaches_the_command_also_through_dev_stdin(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("cat", stdin=b"\x00\xffhello", timeout=10)).stdout == b"\x00\xffhello"
    assert (await sandbox.exec("cat /dev/stdin", stdin=b"again", timeout=10)).stdout == b"again"


async def test_without_stdin_a_reader_meets_the_end_at_once(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("cat; read -r x || echo end", timeout=10)).stdout == b"end\n"


async def test_input_that_the_command_does_not_read_is_no_error(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("true", stdin=b"x" * 5_000_000, timeout=10)).exit_code == 0


async def test_the_output_devices_can_be_opened_again(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo out > /dev/stdout; echo err > /dev/stderr", timeout=10)
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")


async def test_merged_stderr_keeps_the_order(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo 1; echo 2 >&2; echo 3", merge_stderr=True, timeout=10)
    assert (result.stdout, result.stderr) == (b"1\n2\n3\n", b"")


async def test_output_over_the_limit_is_dropped_and_the_command_still_ends(sandbox: Sandbox) -> None:
    result = await sandbox.exec("head -c 3000000 /dev/zero; echo end >&2; exit 3", max_output=1000, timeout=20)
    assert (result.exit_code, result.stdout, result.stderr, result.truncated) == (3, bytes(1000), b"end\n", True)


async def test_output_of_exactly_the_limit_is_not_called_truncated(sandbox: Sandbox) -> None:
    result = await sandbox.exec("head -c 1000 /dev/zero", max_output=1000, timeout=10)
    assert (len(result.stdout), result.truncated) == (1000, False)


async def test_a_closed_reader_ends_a_pipeline(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("yes | head -1", timeout=10)).stdout == b"y\n"


async def test_commands_start_in_the_workspace_which_is_home(sandbox: Sandbox) -> None:
    result = await sandbox.exec("pwd; echo $HOME", timeout=10)
    assert result.stdout.decode().splitlines() == [sandbox.workspace] * 2


async def test_a_relative_cwd_is_taken_from_the_workspace(sandbox: Sandbox) -> None:
    await sandbox.exec("mkdir -p 'a b'", timeout=10)
    assert (await sandbox.exec("pwd", cwd="a b", timeout=10)).stdout.decode() == f"{sandbox.workspace}/a b\n"


async def test_a_cwd_that_does_not_exist_is_a_result_not_an_exception(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo never", cwd="/no/such/place", timeout=10)
    assert (result.exit_code, result.stdout) == (126, b"")
    assert b"/no/such/place" in result.stderr


async def test_given_variables_are_seen_whatever_they_hold(sandbox: Sandbox) -> None:
    value = 'it\'s "quoted" $HOME `x` \n ünïcode'
    result = await sandbox.exec(
        'printf %s "$A"; printf %s "$LD_LIBRARY_PATH" >&2', env={"A": value, "LD_LIBRARY_PATH": "/x"}, timeout=10
    )
    assert (result.stdout.decode(), result.stderr) == (value, b"/x")


async def test_a_variable_that_is_no_name_is_refused(sandbox: Sandbox) -> None:
    with pytest.raises(ValueError, match="not a name"):
        await sandbox.exec("true", env={"a;reboot": "1"}, timeout=10)


async def test_line_numbers_in_messages_are_those_of_the_command(sandbox: Sandbox) -> None:
    assert b"line 2: nonesuch" in (await sandbox.exec("true\nnonesuch", timeout=10)).stderr


async def test_a_command_longer_than_one_argument_may_be_runs_and_has_its_stdin(sandbox: Sandbox) -> None:
    text = "ü" * 200_000
    result = await sandbox.exec(f"printf %s '{text}' | wc -c; cat; exit 5", stdin=b"input", timeout=20)
    assert (result.exit_code, result.stdout) == (5, b"400000\ninput")


@pytest.mark.parametrize("command", ["echo \0", "echo \ud800"])
async def test_a_command_no_shell_can_hold_is_a_result_not_an_exception(sandbox: Sandbox, command: str) -> None:
    assert (await sandbox.exec(command, timeout=10)).exit_code in {0, 126}


async def test_a_background_child_neither_delays_the_return_nor_dies(sandbox: Sandbox) -> None:
    result = await sandbox.exec("(while sleep 0.02; do echo tick; date +%N > beat; done) & echo done", timeout=10)
    assert not result.timed_out
    assert result.stdout.startswith(b"done\n") or result.stdout.startswith(b"tick\n")
    beats = """
until [ -s beat ]; do sleep 0.02; done
first=$(cat beat)
while [ "$(cat beat)" = "$first" ]; do sleep 0.02; done
"""
    assert (await sandbox.exec(beats, timeout=30)).exit_code == 0


async def test_an_endless_writer_in_the_background_leaves_the_event_loop_free(sandbox: Sandbox) -> None:
    await sandbox.exec("yes & true", timeout=10)
    began = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - began < 0.25


async def test_commands_run_side_by_side(sandbox: Sandbox) -> None:
    all_there = "until [ $(ls -d began-* | wc -l) = 8 ]; do sleep 0.02; done"
    commands = [f"touch began-{n}; {all_there}; echo {n}" for n in range(8)]
    results = await asyncio.gather(*(sandbox.exec(command, timeout=30) for command in commands))
    assert [result.stdout for result in results] == [f"{n}\n".encode() for n in range(8)]
