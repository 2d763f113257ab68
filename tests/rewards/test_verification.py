"""ctx.verify: a fresh sandbox, the artifacts by name, tests that arrive now, and whose fault is whose."""

import asyncio
import os
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import SandboxError, VerifierError
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rewards.tool_context import ToolContext
from hermes_rl.rewards.verification import Verdict, verify
from hermes_rl.sandbox.backends.registry import open_backend
from hermes_rl.sandbox.pool import SandboxPool
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import SandboxSpec
from hermes_rl.tools.host import ToolHost
from hermes_rl.tools.registry import all_tools
from hermes_rl.tools.session import ToolSession
from tests.sandbox.living import living, nap

CHECKER = """
import pathlib, sys
sys.exit(pathlib.Path("artifacts/answer.txt").read_text() != "42")
"""


@pytest.fixture(params=["bubblewrap", "local"])
async def host(request: pytest.FixtureRequest) -> AsyncIterator[ToolHost]:
    pool = SandboxPool(await open_backend(request.param), max_live=4)
    host = ToolHost(all_tools(), pool, calls_in_flight=8, terminal_timeout=10)
    with host.running():
        yield host
    await host.close()


@pytest.fixture
async def policy(host: ToolHost) -> Sandbox:
    """The sandbox as the policy has it, before the reward."""
    return await host.session("rollout").sandbox()


async def rewarded(judge: Callable[[ToolContext], Any]) -> Any:
    async def reward() -> Any:
        return judge(ToolContext("rollout"))

    return await bridged(reward())


def check(ctx: ToolContext) -> Verdict:
    return ctx.verify("python3 check.py", files={"check.py": CHECKER}, artifacts=["answer.txt"], timeout=30)


async def test_a_right_answer_passes_and_a_wrong_one_does_not(policy: Sandbox) -> None:
    await policy.write("answer.txt", b"42")
    assert (await rewarded(check)).passed
    await policy.write("answer.txt", b"41")
    verdict = await rewarded(check)
    assert (verdict.exit_code, verdict.passed, verdict.artifact_error) == (1, False, None)


async def test_the_verdict_has_both_outputs_and_the_exit_code(policy: Sandbox) -> None:
    verdict = await rewarded(lambda ctx: ctx.verify("echo out; echo err >&2; exit 7", files={}, artifacts=[]))
    assert verdict == Verdict(7, "out\n", "err\n")


async def test_only_the_artifacts_are_there(policy: Sandbox) -> None:
    await policy.exec("echo 42 > answer.txt; echo evil > conftest.py; echo x > /tmp/left; mkdir sub", timeout=10)
    verdict = await rewarded(
        lambda ctx: ctx.verify(
            "find . -type f | sort; ls /tmp/left; echo $ARTIFACTS | grep -o 'artifacts$'",
            files={"tests/test_it.py": b"pass"},
            artifacts=["answer.txt"],
        )
    )
    lines = verdict.stdout.splitlines()
    assert lines[:2] == ["./artifacts/answer.txt", "./tests/test_it.py"]
    assert lines[-1] == "artifacts"


async def test_a_directory_comes_with_all_that_is_in_it(policy: Sandbox, tmp_path: Path) -> None:
    blob = os.urandom(300_000)
    (tmp_path / "want").write_bytes(blob)
    await policy.write("out/deep/blob", blob)
    await policy.exec("ln -s deep/blob out/link; touch 'out/a b\nc' out/-rf", timeout=10)
    verdict = await rewarded(
        lambda ctx: ctx.verify(
            "cmp want artifacts/out/deep/blob && cmp want artifacts/out/link && ls -A artifacts/out | wc -l",
            files={"want": tmp_path / "want"},
            artifacts=["out"],
        )
    )
    assert (verdict.exit_code, verdict.stdout.strip()) == (0, "5")


async def test_a_missing_artifact_is_the_policys_fault_and_nothing_is_run(policy: Sandbox, host: ToolHost) -> None:
    verdict = await rewarded(check)
    assert not verdict.passed
    assert verdict.artifact_error == "artifact answer.txt is missing"


@pytest.mark.parametrize(
    ("making", "error"),
    [
        ("mkfifo answer.txt", "neither a file nor a directory"),
        ("ln -s /dev/zero answer.txt", "neither a file nor a directory"),
        ("ln -s loop answer.txt; ln -s answer.txt loop", "missing"),
        ("truncate -s 100G answer.txt || truncate -s 900M answer.txt", "artifact answer.txt is larger than 64 MB"),
    ],
)
async def test_an_artifact_that_is_no_file_or_too_large_is_the_policys_fault(
    policy: Sandbox, making: str, error: str
) -> None:
    await policy.exec(making, timeout=10)
    verdict = await rewarded(check)
    assert not verdict.passed
    assert error in (verdict.artifact_error or "")


@pytest.mark.parametrize("artifact", ["big", "big/file"])
async def test_the_memory_of_a_verification_does_not_grow_with_its_artifacts(policy: Sandbox, artifact: str) -> None:
    await policy.exec("mkdir big && head -c 30M /dev/zero > big/file", timeout=30)
    tracemalloc.start()
    try:
        verdict = await rewarded(
            lambda ctx: ctx.verify("stat -c %s artifacts/big/file", files={}, artifacts=[artifact], timeout=30)
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert verdict.stdout == f"{30 * 1024 * 1024}\n"
    assert peak < 8 * 1024 * 1024


async def test_artifacts_that_leave_no_room_for_the_tests_are_the_policys_fault(policy: Sandbox) -> None:
    await policy.exec("mkdir -p out/tests.txt", timeout=10)
    files = {"artifacts/out/tests.txt/below/" + "x" * 300: b"a name that no file system takes"}
    verdict = await rewarded(lambda ctx: ctx.verify("true", files=files, artifacts=["out"]))
    assert "could not be placed beside the artifacts" in verdict.artifact_error


async def test_tests_that_cannot_be_written_without_artifacts_are_the_verifiers_fault(policy: Sandbox) -> None:
    with pytest.raises(OSError, match="x" * 300):
        await rewarded(lambda ctx: ctx.verify("true", files={"x" * 300: b""}, artifacts=[]))


async def test_processes_of_the_policy_are_dead_before_artifacts_are_taken(policy: Sandbox) -> None:
    mine = nap()
    await policy.exec(f"printf 42 > answer.txt; setsid {mine} & (setsid {mine} &)", timeout=10)
    seen: list[int] = []

    def judge(ctx: ToolContext) -> Verdict:
        verdict = check(ctx)
        seen.extend(living(mine))
        return verdict

    assert (await rewarded(judge)).passed
    assert seen == []


async def test_a_link_in_the_artifact_does_not_lead_the_tests_elsewhere(policy: Sandbox) -> None:
    await policy.exec("mkdir repo; ln -s /tmp repo/tests; ln -s /dev/null repo/run.py", timeout=10)
    verdict = await rewarded(
        lambda ctx: ctx.verify(
            "test ! -L artifacts/repo/tests && cat artifacts/repo/tests/test_it.py artifacts/repo/run.py",
            files={"artifacts/repo/tests/test_it.py": "one\n", "artifacts/repo/run.py": "two\n"},
            artifacts=["repo"],
        )
    )
    assert (verdict.exit_code, verdict.stdout) == (0, "one\ntwo\n")


async def test_a_command_past_its_time_is_a_verdict_of_124(policy: Sandbox) -> None:
    verdict = await rewarded(lambda ctx: ctx.verify("sleep 60", files={}, artifacts=[], timeout=0.5))
    assert (verdict.exit_code, verdict.timed_out, verdict.passed) == (124, True, False)


async def test_the_rollouts_own_files_and_setup_are_there_as_they_were(host: ToolHost) -> None:
    session = host.session("rollout")
    session.spec = SandboxSpec(files={"data.txt": "given"}, setup="echo done > setup.txt")
    policy = await session.sandbox()
    await policy.exec("echo forged > data.txt; rm setup.txt", timeout=10)
    verdict = await rewarded(lambda ctx: ctx.verify("cat data.txt setup.txt", files={}, artifacts=[]))
    assert verdict.stdout == "givendone\n"


async def test_nothing_is_left_after_a_verdict(policy: Sandbox, host: ToolHost) -> None:
    await policy.write("answer.txt", b"42")
    assert host.pool.live == 1
    await rewarded(check)
    assert host.pool.live == 1


async def test_rollouts_that_all_verify_at_once_do_not_wait_for_each_other(host: ToolHost) -> None:
    sessions = [host.session(f"rollout-{number}") for number in range(4)]

    async def one(session: ToolSession) -> bool:
        await (await session.sandbox()).write("answer.txt", b"42")
        await together.wait()
        files = {"check.py": CHECKER}
        return (
            await verify(session, "python3 check.py", files=files, artifacts=["answer.txt"], image=None, timeout=30)
        ).passed

    together = asyncio.Barrier(4)
    async with asyncio.timeout(60):
        assert await asyncio.gather(*map(one, sessions)) == [True] * 4


async def test_a_verification_whose_sandbox_dies_is_tried_again_elsewhere(
    policy: Sandbox, host: ToolHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    await policy.write("answer.txt", b"42")
    deaths = _die_at_check(host, monkeypatch, times=1)
    assert (await rewarded(check)).passed
    assert deaths == [1]


async def test_a_verification_that_cannot_be_had_is_the_verifiers_fault(
    policy: Sandbox, host: ToolHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    await policy.write("answer.txt", b"42")
    _die_at_check(host, monkeypatch, times=9)
    with pytest.raises(VerifierError) as failure:
        await rewarded(check)
    assert failure.value.cause == "sandbox_died"


def _die_at_check(host: ToolHost, monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Sandboxes for verification lose their connection when the command starts, so often."""
    deaths: list[int] = []
    acquire = host.pool.acquire

    async def acquire_mortal(spec: SandboxSpec | None = None, *, verifying: bool = False) -> Sandbox:
        sandbox = await acquire(spec, verifying=verifying)
        run = sandbox.run

        async def dying(command: Any) -> Any:
            if "check.py" in command.text and command.stdin is None and len(deaths) < times:
                deaths.append(1)
                raise SandboxError("died", "the connection is gone")
            return await run(command)

        if verifying:
            monkeypatch.setattr(sandbox, "run", dying)
        return sandbox

    monkeypatch.setattr(host.pool, "acquire", acquire_mortal)
    return deaths
