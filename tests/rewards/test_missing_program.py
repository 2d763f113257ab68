"""A verifier's command that could not run is recognised by its exit code, named, and warned about once."""

import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hermes_rl.rewards.missing_program import MissingProgram, missing_program
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.sandbox.backends.registry import open_backend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import all_tools

NAME = "no-such-tester"


@pytest.fixture
async def host() -> AsyncIterator[ToolHost]:
    pool = SandboxPool(await open_backend("bubblewrap"))
    host = ToolHost(all_tools(), pool, calls_in_flight=8, terminal_timeout=10)
    with host.running():
        yield host
    await host.close()


@pytest.mark.parametrize(
    ("command", "exit_code", "output", "program"),
    [
        ("cd /app && pytest -q", 127, "bash: line 1: pytest: command not found\n", "pytest"),
        ("pytest -q", 127, "/bin/sh: 1: pytest: not found\n", "pytest"),
        ("env A=1 pytest", 127, "env: \u2018pytest\u2019: No such file or directory\n", "pytest"),
        ("timeout 5 pytest", 127, "timeout: failed to run command 'pytest': No such file or directory\n", "pytest"),
        ("cat a; pytest", 127, "cat: a: No such file or directory\nbash: line 1: pytest: command not found", "pytest"),
        ("./run.sh", 126, "bash: line 1: ./run.sh: Permission denied\n", "./run.sh"),
        ("pytest -q > /dev/null 2>&1", 127, "", "pytest"),
    ],
)
def test_a_program_that_the_sandbox_lacks_is_named(command: str, exit_code: int, output: str, program: str) -> None:
    assert missing_program(command, exit_code, output) == MissingProgram(command, exit_code, program, True)


@pytest.mark.parametrize(
    ("command", "output", "program"),
    [
        ("./solution", "bash: line 1: ./solution: No such file or directory\n", "./solution"),
        ("sh -c ./solution", "sh: 1: ./solution: not found\n", "./solution"),
        ("bash solution.sh", "bash: solution.sh: No such file or directory\n", "solution.sh"),
        ("bash solution.sh", "solution.sh: line 3: foo: command not found\n", "foo"),
        ("bash solution.sh 2>/dev/null", "", "bash"),
        ("A=1 ./solution 2>/dev/null", "", "A=1"),
    ],
)
def test_what_the_agent_should_have_made_does_not_blame_the_sandbox(command: str, output: str, program: str) -> None:
    assert missing_program(command, 127, output) == MissingProgram(command, 127, program, False)


def test_a_long_output_of_the_agents_is_searched_at_once() -> None:
    began = time.monotonic()
    found = missing_program("bash run.sh", 127, "a" * 1_000_000 + "\nrun.sh: line 9: foo: command not found\n")
    assert found is not None and found.program == "foo"
    assert time.monotonic() - began < 0.5


@pytest.mark.parametrize("exit_code", [0, 1, 2, 124, None])
def test_other_exit_codes_are_the_authors_business(exit_code: int | None) -> None:
    assert missing_program("pytest", exit_code, "bash: pytest: command not found") is None


async def reported(host: ToolHost, *rewards: Any) -> list[str]:
    """What is reported while rollouts are scored by these."""
    said: list[str] = []
    host.report = said.append
    for number, reward in enumerate(rewards):

        async def score(reward: Any = reward, number: int = number) -> Any:
            return reward(ToolContext(f"rollout {number}"))

        await bridged(score())
    return said


async def test_it_is_reported_once_for_all_rollouts(host: ToolHost) -> None:
    def reward(ctx: ToolContext) -> float:
        done = ctx.terminal(f"{NAME} -q tests/")
        assert done["exit_code"] == 127
        assert [one.program for one in ctx.missing_programs] == [NAME]
        return 0.0

    [warning] = await reported(host, reward, reward)
    assert f"`{NAME} -q tests/`" in warning
    assert f"{NAME} was not found in the sandbox (exit code 127)" in warning


async def test_each_program_is_reported(host: ToolHost) -> None:
    said = await reported(host, lambda ctx: ctx.terminal(NAME), lambda ctx: ctx.terminal("other-tester; exit"))
    assert [NAME in said[0], "other-tester" in said[1], len(said)] == [True, True, 2]


async def test_a_missing_file_of_the_agents_is_not_reported(host: ToolHost) -> None:
    def reward(ctx: ToolContext) -> None:
        ctx.terminal("./solution")
        assert [one.program for one in ctx.missing_programs] == ["./solution"]

    assert await reported(host, reward) == []


async def test_a_file_that_cannot_be_executed_is_reported(host: ToolHost) -> None:
    def reward(ctx: ToolContext) -> None:
        ctx.write_file("tests.sh", "true")
        assert ctx.terminal("./tests.sh")["exit_code"] == 126

    [warning] = await reported(host, reward)
    assert "./tests.sh cannot be executed in the sandbox (exit code 126)" in warning


async def test_a_verification_is_watched_too(host: ToolHost) -> None:
    def reward(ctx: ToolContext) -> None:
        assert ctx.verify(f"{NAME} -q", files={}, artifacts=[]).exit_code == 127

    [warning] = await reported(host, reward)
    assert f"`{NAME} -q`" in warning
