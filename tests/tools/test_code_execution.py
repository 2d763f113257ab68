"""Python in the sandbox: what it printed, how it ended, and nothing of it left but files."""

import json
import time
from dataclasses import replace

import pytest

from hermes_rl.core.errors import ToolHostError
from hermes_rl.rollout.group import run_group
from hermes_rl.sandbox.backends.local import LocalBackend, LocalSandbox
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import Command, ExecResult
from hermes_rl.tools.code_execution import MAX_STREAM_CHARS
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import all_tools
from hermes_rl.tools.session import ToolSession
from tests.support.environments import FileEnv, opened
from tests.support.scripted_model import ScriptedModel, calls_then_text
from tests.tools.conftest import Call


async def test_a_program_gives_both_its_streams_and_its_exit_code(call: Call) -> None:
    code = "import sys\nprint('out')\nprint('err', file=sys.stderr)\nsys.exit(3)"
    assert await call("execute_code", code=code) == {
        "stdout": "out\n",
        "stderr": "err\n",
        "exit_code": 3,
        "error": None,
    }


async def test_an_exception_shows_the_line_it_came_from(call: Call) -> None:
    answer = await call("execute_code", code="x = 1\nraise ValueError('odd') # here")
    assert answer["exit_code"] == 1
    assert "raise ValueError('odd') # here" in answer["stderr"] and "line 2" in answer["stderr"]


async def test_a_program_that_fails_is_no_tool_error(session: ToolSession) -> None:
    assert (await session.call("execute_code", {"code": "1/0"})).error is None


async def test_variables_do_not_last_and_files_do(call: Call) -> None:
    await call("execute_code", code="kept = 1\nopen('kept.txt', 'w').write('kept')")
    assert "NameError" in (await call("execute_code", code="print(kept)"))["stderr"]
    assert (await call("execute_code", code="print(open('kept.txt').read())"))["stdout"] == "kept\n"


async def test_modules_of_the_workspace_can_be_imported(call: Call) -> None:
    await call("write_file", path="mine.py", content="ANSWER = 42\n")
    assert (await call("execute_code", code="import mine\nprint(mine.ANSWER)"))["stdout"] == "42\n"


async def test_the_program_itself_is_no_file_of_the_workspace(call: Call) -> None:
    assert (await call("execute_code", code="import os\nprint(os.listdir('.'))"))["stdout"] == "[]\n"


async def test_the_program_is_gone_when_it_ended(session: ToolSession, call: Call) -> None:
    where = (await call("execute_code", code="print(__file__)"))["stdout"].strip()
    assert where.startswith((await session.sandbox()).scratch)
    assert (await call("terminal", command=f"test -e {where}"))["exit_code"] == 1


async def test_quotes_unicode_and_half_a_surrogate_pair_arrive(session: ToolSession, call: Call) -> None:
    code = "print('''it's \"quoted\" $HOME `x` \\\\ žluť 日本''')"
    assert (await call("execute_code", code=code))["stdout"] == 'it\'s "quoted" $HOME `x` \\ žluť 日本\n'
    assert (await call("execute_code", code="print('\ud800')"))["stdout"] == "?\n"


async def test_a_program_larger_than_an_argument_may_be_runs(call: Call) -> None:
    code = "\n".join(f"x{number} = '{'y' * 90}'" for number in range(3_000)) + "\nprint(len(x2999))"
    assert (await call("execute_code", code=code))["stdout"] == "90\n"


async def test_input_meets_the_end_of_the_file_and_does_not_wait(call: Call) -> None:
    assert "EOFError" in (await call("execute_code", code="input()"))["stderr"]


async def test_a_program_that_takes_too_long_is_killed_and_what_it_printed_is_kept(call: Call) -> None:
    began = time.monotonic()
    answer = await call("execute_code", code="print('before')\nimport time\ntime.sleep(60)", timeout=1)
    assert (answer["stdout"], answer["exit_code"]) == ("before\n", 124)
    assert answer["error"] == "timed out after 1 s and was killed"
    assert time.monotonic() - began < 30


async def test_long_output_keeps_its_beginning_and_its_end(call: Call) -> None:
    answer = await call("execute_code", code="print('a' * 100_000 + 'z')")
    assert len(answer["stdout"]) < MAX_STREAM_CHARS + 100
    assert answer["stdout"].startswith("aaa") and answer["stdout"].endswith("az\n")
    assert "characters left out" in answer["stdout"]


async def test_output_that_is_no_text_does_not_break_the_answer(call: Call) -> None:
    answer = await call("execute_code", code="import sys\nsys.stdout.buffer.write(b'a\\xff\\x00b')")
    assert answer["stdout"] == "a\ufffd\x00b"


async def test_a_sandbox_without_python_is_the_worlds_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    run = LocalSandbox.run

    async def run_without_programs(self: LocalSandbox, command: Command) -> ExecResult:
        return await run(self, replace(command, text=f"PATH=/nowhere; {command.text}"))

    monkeypatch.setattr(LocalSandbox, "run", run_without_programs)
    host = ToolHost(all_tools(), SandboxPool(LocalBackend()), calls_in_flight=1, terminal_timeout=10)
    with pytest.raises(ToolHostError, match="the sandbox has no python3") as caught:
        await host.session("rollout").call("execute_code", {"code": "print(1)"})
    await host.close()
    assert caught.value.cause == "no_python"


async def test_a_policy_that_kills_the_search_for_python_gets_an_error_and_no_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    host = ToolHost(all_tools(), SandboxPool(LocalBackend()), calls_in_flight=1, terminal_timeout=10)
    session = host.session("rollout")
    touched, run = await session.sandbox(), LocalSandbox.run

    async def killed(self: LocalSandbox, command: Command) -> ExecResult:
        # What a process of the policy does in its own sandbox, and in no other.
        text = f"kill -KILL $$; {command.text}" if self is touched else command.text
        return await run(self, replace(command, text=text))

    monkeypatch.setattr(LocalSandbox, "run", killed)
    outcome = await session.call("execute_code", {"code": "print(1)"})
    await host.close()
    assert outcome.error == "python3 does not start in this sandbox any more; undo what stops it"


class CodeEnv(FileEnv):
    default_toolsets = ("code_execution",)


async def test_an_agent_solves_its_task_with_a_program() -> None:
    code = json.dumps({"code": "print(7, file=open('answer', 'w'))"})
    async with ScriptedModel(calls_then_text("execute_code", code)) as model, opened(CodeEnv, model) as env:
        group = await run_group(env, {"number": 7}, size=2)
    assert group.scores == [1.0, 1.0]
    assert [use.name for rollout in group.rollouts for use in rollout.tool_uses] == ["execute_code", "execute_code"]
    assert [tool["function"]["name"] for tool in model.bodies[0]["tools"]] == ["execute_code"]
