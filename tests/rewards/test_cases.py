"""run_cases: a program of the agent's against cases that it can neither read nor answer for."""

import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError, SandboxError, VerifierError
from hermes_rl.core.trajectory import Reward
from hermes_rl.rewards.cases import Case, CaseResults, run_cases, same_text
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.sandbox.backends.registry import open_backend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import SandboxSpec
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import all_tools
from tests.sandbox.living import living, nap

DOUBLE = "print(2 * int(input()))"
CASES = [Case(str(number), f"{2 * number}\n") for number in (1, 21, -5)]


@pytest.fixture
async def host() -> AsyncIterator[ToolHost]:
    # Never `local`: the attacks below write into every process they can see, and there that is the tester's machine.
    pool = SandboxPool(await open_backend("bubblewrap"), max_live=4)
    host = ToolHost(all_tools(), pool, calls_in_flight=8, terminal_timeout=10)
    with host.running():
        yield host
    await host.close()


@pytest.fixture
async def policy(host: ToolHost) -> Sandbox:
    return await host.session("rollout").sandbox()


async def judged(policy: Sandbox, source: str | None, cases: list[Case] = CASES, **options: Any) -> CaseResults:
    if source is not None:
        await policy.write("solution.py", source.encode())
    if "command" not in options:
        options = {"program": "solution.py", **options}

    async def reward() -> CaseResults:
        return run_cases(ToolContext("rollout"), cases, **options)

    return await bridged(reward())


async def test_a_right_program_passes_all_and_a_wrong_one_its_share(policy: Sandbox) -> None:
    right = await judged(policy, DOUBLE)
    assert (right.passed, right.reward) == (True, Reward(1.0, {"cases_passed": 1.0, "all_cases_passed": 1.0}))
    wrong = await judged(policy, "print(abs(2 * int(input())))")
    assert not wrong.passed
    assert wrong.share == pytest.approx(2 / 3)
    assert wrong.reward.components["all_cases_passed"] == 0.0
    assert [outcome.why for outcome in wrong.outcomes] == [None, None, "printed something else"]
    assert wrong.outcomes[2].printed == "10\n"


async def test_each_way_to_fail_is_told(policy: Sandbox) -> None:
    program = """
import sys, time
match sys.argv[1]:
    case "slow": time.sleep(60)
    case "loud": print("x" * 2_000_000)
    case "crash": raise ValueError("no")
    case "quiet": sys.exit(0)
"""
    cases = [Case("", "right", args=[how], name=how) for how in ("slow", "loud", "crash", "quiet")]
    results = await judged(policy, program, cases, timeout=1)
    assert {outcome.name: outcome.why for outcome in results.outcomes} == {
        "slow": "took over 1 s",
        "loud": "printed over 1048576 bytes",
        "crash": "exit code 1",
        "quiet": "printed something else",
    }
    assert "ValueError: no" in results.outcomes[2].complained


async def test_a_right_answer_from_a_program_that_then_fails_does_not_count(policy: Sandbox) -> None:
    assert (await judged(policy, DOUBLE + "; exit(1)")).share == 0.0


async def test_any_program_can_be_started_and_be_given_files(policy: Sandbox) -> None:
    await policy.exec("mkdir tool; printf 'cat data.txt - | tr a-z A-Z' > tool/run.sh", timeout=10)
    results = await judged(
        policy,
        None,
        [Case(b"there", "HELLO\nTHERE")],
        command="bash artifacts/tool/run.sh",
        artifacts=["tool"],
        files={"data.txt": "hello\n"},
    )
    assert results.passed


async def test_arguments_stay_arguments(policy: Sandbox) -> None:
    results = await judged(policy, "import sys; print(sys.argv[1])", [Case("", "$(id); x 'y'", args=["$(id); x 'y'"])])
    assert results.passed


async def test_the_expected_answers_are_nowhere_in_the_sandbox(policy: Sandbox) -> None:
    secret = f"answer-{os.urandom(8).hex()}"
    spy = """
import os, pathlib, subprocess
pathlib.Path(os.environ["ARTIFACTS"], "solution.py").unlink()  # which names what it looks for
look = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ; grep -rs swer- /workspace /tmp"
print(subprocess.run(look, shell=True, capture_output=True).stdout.count(b"answer-"))
"""
    results = await judged(policy, spy, [Case("", secret)])
    assert [(outcome.why, outcome.printed.strip()) for outcome in results.outcomes] == [("printed something else", "0")]


async def test_no_process_of_one_case_is_there_in_the_next(policy: Sandbox) -> None:
    mine = nap()
    program = f"""
import pathlib, subprocess
print(sum(b"sleep" in one.read_bytes() for one in pathlib.Path("/proc").glob("[0-9]*/cmdline")))
subprocess.Popen("{mine}".split(), start_new_session=True, stdin=-3, stdout=-3, stderr=-3)
"""
    results = await judged(policy, program, [Case("", "0"), Case("", "0"), Case("", "0")])
    assert results.passed, results
    assert living(mine) == []


async def test_a_writer_that_stays_behind_cannot_answer_for_the_next_case(policy: Sandbox) -> None:
    """It forks a process that holds the first case's output and floods whatever it can find of later ones."""
    program = """
import os, sys, time
number = input()
if number == "1":
    if os.fork() == 0:
        os.setsid()
        while True:
            for pid in filter(str.isdigit, os.listdir("/proc")):
                for fd in ("1", "2"):
                    try:
                        with open(f"/proc/{pid}/fd/{fd}", "w") as out:
                            out.write("42\\n")
                    except OSError:
                        pass
            print("42", flush=True)
    time.sleep(0.3)
else:
    time.sleep(0.3)
"""
    results = await judged(policy, program, [Case("1", "nothing"), Case("2", "42"), Case("3", "42")])
    assert [outcome.printed for outcome in results.outcomes[1:]] == ["", ""]
    assert results.share == 0.0


async def test_what_a_program_does_to_its_sandbox_is_its_own_loss(policy: Sandbox) -> None:
    program = """
import os, shutil
if input() == "1":
    shutil.rmtree(os.environ["ARTIFACTS"], ignore_errors=True)
    os.makedirs(os.path.join(os.environ["ARTIFACTS"], "solution.py"), exist_ok=True)
print(2)
"""
    results = await judged(policy, program, [Case("1", "2"), Case("2", "2")])
    assert [outcome.passed for outcome in results.outcomes] == [True, False]


async def test_a_missing_program_is_the_agents_fault(policy: Sandbox) -> None:
    results = await judged(policy, None)
    assert (results.passed, results.share, results.outcomes) == (False, 0.0, ())
    assert results.artifact_error == "artifact solution.py is missing"
    assert results.reward.score == 0.0


async def test_one_sandbox_is_started_for_all_cases_and_none_is_left(
    policy: Sandbox, host: ToolHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[bool] = []
    acquire = host.pool.acquire

    async def counted(spec: SandboxSpec | None = None, *, verifying: bool = False) -> Sandbox:
        started.append(verifying)
        return await acquire(spec, verifying=verifying)

    monkeypatch.setattr(host.pool, "acquire", counted)
    assert (await judged(policy, DOUBLE, CASES * 5)).passed
    assert started == [True]
    assert host.pool.live == 1


@pytest.mark.parametrize(("deaths", "scored"), [(1, True), (9, False)])
async def test_a_sandbox_that_dies_is_replaced_once_and_then_the_verifiers_fault(
    policy: Sandbox, host: ToolHost, monkeypatch: pytest.MonkeyPatch, deaths: int, scored: bool
) -> None:
    acquire = host.pool.acquire
    died: list[int] = []

    async def mortal(spec: SandboxSpec | None = None, *, verifying: bool = False) -> Sandbox:
        sandbox = await acquire(spec, verifying=verifying)
        run = sandbox.run

        async def dying(command: Any) -> Any:
            if "solution.py" in command.text and "python3" in command.text and len(died) < deaths:
                died.append(1)
                raise SandboxError("died", "the connection is gone")
            return await run(command)

        monkeypatch.setattr(sandbox, "run", dying)
        return sandbox

    monkeypatch.setattr(host.pool, "acquire", mortal)
    if scored:
        assert (await judged(policy, DOUBLE)).passed
        return
    with pytest.raises(VerifierError) as failure:
        await judged(policy, DOUBLE)
    assert failure.value.cause == "sandbox_died"


async def test_how_outputs_are_compared_can_be_told(policy: Sandbox) -> None:
    cases = [Case("1", "2.0001")]
    assert not (await judged(policy, DOUBLE, cases)).passed
    close = await judged(policy, DOUBLE, cases, same=lambda one, other: abs(float(one) - float(other)) < 0.01)
    assert close.passed


@pytest.mark.parametrize(
    ("printed", "same"),
    [("a\nb", True), ("a  \nb\n\n", True), (" a\nb", False), ("a\n\nb", False), ("ab", False), ("", False)],
)
def test_space_at_the_ends_is_no_difference(printed: str, same: bool) -> None:
    assert same_text("a\nb\n", printed) is same


@pytest.mark.parametrize(
    ("options", "said"),
    [({"program": "solution.c"}, "else pass"), ({"program": None}, "else pass"), ({"cases": []}, "at least one case")],
)
async def test_what_cannot_be_run_is_refused(policy: Sandbox, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        await judged(policy, DOUBLE, **options)
