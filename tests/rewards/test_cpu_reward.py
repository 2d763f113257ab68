"""@cpu_reward: in a process of its own, with a deadline, killed with all it started, and gone when its owner is."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError, JudgeError, VerifierError
from hermes_rl.core.trajectory import Reward
from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.rewards.cpu_reward import CpuWorkers, cpu_reward
from hermes_rl.rewards.sync_bridge import bridged, wait
from tests.rewards.cpu_functions import (
    Grouped,
    add,
    composed,
    crash,
    leave_many_behind,
    nap_in_a_child,
    raise_one,
    return_a,
    spin,
    variables,
    where,
)
from tests.sandbox.living import living, nap
from tests.support.environments import opened
from tests.support.scripted_model import ScriptedModel, Text, always


@pytest.fixture
async def workers() -> AsyncIterator[CpuWorkers]:
    async with CpuWorkers(limit=2) as pool:
        with pool.running():
            yield pool


async def started(command: str, count: int = 1) -> None:
    async with asyncio.timeout(20):
        while len(living(command)) < count:
            await asyncio.sleep(0.01)


# --- what comes back ---


@pytest.mark.usefixtures("workers")
async def test_values_go_and_come() -> None:
    assert await add(1, other=2) == 3
    assert await add([1.5, "ü", b"\0", None, True], [{"a": (1, {2})}]) == [1.5, "ü", b"\0", None, True, {"a": (1, {2})}]
    assert await add("x" * 5_000_000, "y") == "x" * 5_000_000 + "y"
    assert await composed() == Reward(0.5, {"right": 1.0}, (0.0, 0.5))
    assert await Grouped.doubled(4) == 8
    assert (add.name, add.__doc__) == ("add", "A sum.")


async def test_it_works_without_an_environment_and_leaves_nothing() -> None:
    pid, _ = await where()
    assert pid != os.getpid()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.usefixtures("workers")
async def test_a_process_is_used_again_and_a_call_costs_little() -> None:
    pid, served = await where()
    assert await where() == (pid, served + 1)
    began = time.perf_counter()
    for number in range(200):
        assert await add(number, 1) == number + 1
    assert (time.perf_counter() - began) / 200 < 0.005


@pytest.mark.usefixtures("workers")
async def test_calls_run_beside_each_other_within_the_limit() -> None:
    assert len({pid for pid, _ in await asyncio.gather(*(where() for _ in range(12)))}) <= 2
    assert await asyncio.gather(*(add(number) for number in range(50))) == list(range(50))


@pytest.mark.usefixtures("workers")
async def test_sync_code_below_the_bridge_waits_for_it() -> None:
    async def compute_reward() -> float:
        return float(wait(add(0.25, 0.5)))

    assert await bridged(compute_reward()) == 0.75


@pytest.mark.usefixtures("workers")
async def test_the_loop_goes_on_meanwhile() -> None:
    ticks = 0
    computing = asyncio.create_task(spin())
    while not computing.done():
        await asyncio.sleep(0.01)
        ticks += 1
    with pytest.raises(VerifierError):
        await computing
    assert ticks > 10


@pytest.mark.usefixtures("workers")
async def test_no_secret_of_ours_is_in_its_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("MY_TOKEN", "secret-too")
    seen = await variables()
    assert "PATH" in seen
    assert not [name for name, text in seen.items() if "secret" in text or "KEY" in name or "TOKEN" in name]


# --- what goes wrong ---


@pytest.mark.usefixtures("workers")
async def test_at_its_deadline_it_is_killed_and_the_next_call_works() -> None:
    began = time.monotonic()
    await add(1)
    with pytest.raises(VerifierError, match=r"spin took over 0\.5 s and was killed") as failure:
        await spin()
    assert failure.value.cause == "timeout"
    assert time.monotonic() - began < 30
    assert await add(1) == 1


@pytest.mark.usefixtures("workers")
async def test_all_that_it_started_dies_with_it() -> None:
    mine = nap()
    with pytest.raises(VerifierError, match="killed with its child processes"):
        await leave_many_behind(mine)
    assert living(mine) == []


@pytest.mark.usefixtures("workers")
async def test_a_cancelled_rollout_takes_its_function_with_it() -> None:
    mine = nap()
    rollout = asyncio.create_task(nap_in_a_child(mine))
    await started(mine)
    rollout.cancel()
    with pytest.raises(asyncio.CancelledError):
        await rollout
    assert living(mine) == []
    assert await add(1) == 1


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("divide", r"raise_one raised ZeroDivisionError at cpu_functions.py:\d+: nothing to share"),
        ("exit", r"raise_one raised SystemExit at cpu_functions.py:\d+: 7"),
    ],
)
async def test_what_it_raises_comes_back_with_type_message_and_trace(kind: str, said: str) -> None:
    with pytest.raises(VerifierError, match=said) as failure:
        await raise_one(kind)
    assert failure.value.cause == "raised"
    assert "cpu_functions.py" in failure.value.__notes__[0]
    assert await add(1) == 1


@pytest.mark.usefixtures("workers")
async def test_an_error_of_ours_keeps_whose_fault_it_is() -> None:
    with pytest.raises(JudgeError, match="no verdict") as failure:
        await raise_one("judge")
    assert failure.value.cause == "refused"


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize(("how", "said"), [("segfault", "killed by SIGSEGV"), ("exit", "exit code 3")])
async def test_a_crash_is_told_with_how_it_ended(how: str, said: str) -> None:
    with pytest.raises(VerifierError, match=said) as failure:
        await crash(how)
    assert failure.value.cause == "crashed"
    assert await add(1) == 1


@pytest.mark.usefixtures("workers")
async def test_an_idle_process_that_died_is_replaced() -> None:
    pid, _ = await where()
    os.kill(pid, signal.SIGKILL)
    while Path(f"/proc/{pid}").exists():
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    assert await add(1) == 1


@pytest.mark.usefixtures("workers")
async def test_only_plain_data_is_taken_from_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert await return_a("fraction") == 0.25
    for what, said in (("odd", r"cpu_functions\.Odd"), ("lambda", "cannot be pickled"), ("malicious", "system")):
        with pytest.raises(VerifierError, match=said) as failure:
            await return_a(what)
        assert failure.value.cause == "result"
    assert not Path("should-never-be").exists()
    assert await add(1) == 1


@pytest.mark.usefixtures("workers")
async def test_arguments_that_cannot_travel_are_told() -> None:
    with pytest.raises(VerifierError, match="arguments of add cannot be sent"):
        await add(lambda: 1)


def test_what_another_process_could_not_find_is_refused_when_it_is_written() -> None:
    def inner() -> None: ...

    async def later() -> None: ...

    def score(self: Any) -> None: ...

    later.__qualname__, score.__qualname__ = "later", "Env.score"
    for function, said in ((inner, "inside a function"), (later, "is async"), (score, "takes self")):
        with pytest.raises(ConfigError, match=said):
            cpu_reward(timeout=1)(function)
    with pytest.raises(ConfigError, match="greater than 0 seconds"):
        cpu_reward(timeout=0)(add.function)


# --- nothing is left ---


async def test_closing_the_pool_ends_idle_and_busy_processes() -> None:
    mine = nap()
    async with CpuWorkers(limit=2) as pool:
        with pool.running():
            pid, _ = await where()
            busy = asyncio.create_task(nap_in_a_child(mine))
            await started(mine)
    assert living(mine) == []
    with pytest.raises(VerifierError, match="ended its process"):
        await busy
    assert not Path(f"/proc/{pid}").exists()


OWNER = """
import asyncio, os, sys, time
from hermes_rl.rewards.cpu_reward import CpuWorkers
from tests.rewards.cpu_functions import nap_in_a_child, where

async def main():
    async with CpuWorkers(limit=2) as pool:
        with pool.running():
            idle, _ = await where()
            busy = asyncio.create_task(nap_in_a_child(sys.argv[1]))
            if sys.argv[2] == "forked" and (forked := os.fork()) == 0:
                time.sleep(60)  # holding all that the owner had open
            print(idle, forked if sys.argv[2] == "forked" else 0, flush=True)
            await busy

asyncio.run(main())
"""


@pytest.mark.parametrize("how", ["alone", "forked"])
async def test_nothing_is_left_when_the_owner_is_killed(how: str) -> None:
    mine = nap()
    owner = subprocess.Popen([sys.executable, "-c", OWNER, mine, how], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    with owner.stdout:
        idle, forked = map(int, (await asyncio.to_thread(owner.stdout.readline)).split())
    try:
        await started(mine)
        owner.kill()
        owner.wait()
        async with asyncio.timeout(10):
            while living(mine) or Path(f"/proc/{idle}").exists():
                await asyncio.sleep(0.01)
    finally:
        if forked:
            os.kill(forked, signal.SIGKILL)


# --- environments in files ---

ENVIRONMENT = """
from dataclasses import dataclass
from hermes_rl import HermesAgentBaseEnv
from hermes_rl.rewards.cpu_reward import cpu_reward
from environments.agent_loop import AgentResult  # as files written for hermes-agent do


@dataclass
class Wanted:
    number: int


@cpu_reward(timeout=20)
def same(text, wanted: Wanted):
    import time
    time.sleep(0.05)
    return 1.0 if int(text) == wanted.number else 0.0


class SlowEnv(HermesAgentBaseEnv):
    default_toolsets = ("terminal",)

    async def setup(self):
        self.items = [42]

    async def get_next_item(self):
        return self.items.pop() if self.items else None

    def format_prompt(self, item):
        return str(item)

    async def compute_reward(self, item, result: AgentResult, ctx):
        return await same(result.final_response, Wanted(item))
"""


async def test_a_function_of_an_environment_file_loaded_by_path(tmp_path: Path) -> None:
    file = tmp_path / "slow_env.py"
    file.write_text(ENVIRONMENT)
    environment = load_environment(str(file))
    async with ScriptedModel(always(Text("42"))) as model, opened(environment, model, group_size=2) as env:
        group = await env.collect_group(42)
    assert [rollout.failure for rollout in group.rollouts] == [None, None]
    assert group.scores == [1.0, 1.0]


SCRIPT = """
import asyncio
from hermes_rl.rewards.cpu_reward import cpu_reward

@cpu_reward(timeout=10)
def half(number):
    return number / 2

async def main():
    print(await half(3))

GUARD asyncio.run(main())
"""


@pytest.mark.parametrize(("guard", "said"), [('if __name__ == "__main__":', "1.5\n"), ("if True:", "")])
def test_a_file_run_as_a_script_runs_once_or_says_what_it_lacks(tmp_path: Path, guard: str, said: str) -> None:
    file = tmp_path / "script.py"
    file.write_text(SCRIPT.replace("GUARD", guard))
    done = subprocess.run([sys.executable, str(file)], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == said
    assert said or 'below `if __name__ == "__main__":`' in done.stderr
