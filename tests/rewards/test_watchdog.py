"""The watchdog names the author's function that held the loop, and nobody when it was nobody's."""

import asyncio
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.rewards.sync_bridge import bridged
from hermes_rl.rewards.watchdog import Hold, Watchdog, _Interval, _Suspect, _Usage, watch_loop
from tests.support.environments import opened
from tests.support.scripted_model import ScriptedModel, Text, always

LOOPS = [asyncio.new_event_loop, uvloop.new_event_loop]
HERE = Path(__file__).name


def watched(
    new_loop: Callable[[], asyncio.AbstractEventLoop], *works: Callable[[], Coroutine[Any, Any, object]]
) -> tuple[Watchdog, list[Hold]]:
    """Run these one after the other, with the watchdog on; what it counted and what it said."""
    said: list[Hold] = []

    async def main() -> Watchdog:
        with watch_loop(asyncio.get_running_loop(), report=said.append) as watchdog:
            for work in works:
                await asyncio.sleep(0.06)
                await asyncio.create_task(work())
                await asyncio.sleep(0.06)
        return watchdog

    with asyncio.Runner(loop_factory=new_loop) as runner:
        return runner.run(main()), said


def named(
    new_loop: Callable[[], asyncio.AbstractEventLoop], work: Callable[[], Coroutine[Any, Any, object]]
) -> tuple[Watchdog, list[Hold]]:
    """The same for a work that holds the loop. A watchdog that gets no CPU meanwhile counts the delay as nobody's."""
    for _ in range(5):
        watchdog, said = watched(new_loop, work)
        if said:
            return watchdog, said
        assert watchdog.unattributed == 1, "the delay was not noticed at all"
    raise AssertionError("five holds, and the watchdog named none")


async def compute_reward() -> None:
    await asyncio.sleep(0.01)
    time.sleep(0.35)


async def in_the_bridge() -> None:
    await bridged(compute_reward())


async def another_reward() -> None:
    subprocess.run(["sleep", "0.3"], check=True)


async def short() -> None:
    time.sleep(0.02)


@pytest.mark.parametrize("new_loop", LOOPS)
@pytest.mark.parametrize("work", [compute_reward, in_the_bridge])
def test_a_reward_that_blocks_is_named_with_its_line_and_what_it_called(
    new_loop: Callable[[], asyncio.AbstractEventLoop], work: Callable[[], Coroutine[Any, Any, object]]
) -> None:
    watchdog, [hold] = named(new_loop, work)
    line = compute_reward.__code__.co_firstlineno + 2
    assert (hold.function, hold.file, hold.line, hold.callee) == ("compute_reward", __file__, line, "time.sleep")
    # On a busy machine the first samples may come late.
    assert 0.1 < hold.seconds < 2
    said = re.sub(r"0\.\d\d s", "0.35 s", str(hold))
    assert said.startswith(f"compute_reward in {HERE}:{line} held the event loop for 0.35 s in time.sleep")
    assert "@cpu_reward" in said
    assert list(watchdog.holds) == [(__file__, "compute_reward")]


def test_a_place_is_said_once_and_counted_each_time() -> None:
    watchdog, said = watched(LOOPS[0], in_the_bridge, another_reward, in_the_bridge)
    assert [(hold.function, hold.callee) for hold in said] == [
        ("compute_reward", "time.sleep"),
        ("another_reward", "subprocess.run"),
    ]
    held = watchdog.holds[__file__, "compute_reward"]
    assert held.count == 2
    assert held.longest.seconds <= held.seconds
    figures = watchdog.metrics()
    assert figures["loop/holds"] == 3
    assert 0.5 < figures["loop/held_seconds"] < 6
    assert 0.2 < figures["loop/longest_hold"] < 2


@pytest.mark.parametrize("new_loop", LOOPS)
def test_c_code_that_lets_no_other_thread_run_is_found_when_it_ends(
    new_loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    async def catastrophic() -> None:
        # Twice as long for each letter: long enough on any machine that it is at work for over 100 ms.
        for letters in range(18, 40):
            began = time.thread_time()
            re.match("(a+)+$", "a" * letters + "b")
            if time.thread_time() - began > 0.25:
                return

    _, [hold] = named(new_loop, catastrophic)
    assert hold.function.rpartition(".")[2] == "catastrophic"
    # None when we came to look between two of its calls, as on a machine that is busy with other things.
    assert hold.callee in {"re.match", None}


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_function_that_computes_is_named(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def compute() -> None:
        began, total = time.thread_time(), 0
        while time.thread_time() - began < 0.3:
            total += 1

    _, [hold] = named(new_loop, compute)
    assert hold.function.endswith("compute")


@pytest.mark.parametrize("new_loop", LOOPS)
def test_many_short_callbacks_are_nobodys(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def a_crowd() -> None:
        await asyncio.gather(*(short() for _ in range(20)))

    watchdog, said = watched(new_loop, a_crowd)
    assert (said, watchdog.holds) == ([], {})
    assert watchdog.unattributed >= 1
    assert watchdog.metrics()["loop/longest_late_for_nobody"] > 0.2


@pytest.mark.parametrize("new_loop", LOOPS)
def test_a_late_loop_without_an_authors_frame_is_nobodys(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def no_one() -> None:
        asyncio.get_running_loop().call_soon(time.sleep, 0.3)

    watchdog, said = watched(new_loop, no_one)
    assert said == []
    assert watchdog.unattributed >= 1


@pytest.mark.parametrize("new_loop", LOOPS)
def test_work_that_lets_the_loop_run_is_not_reported(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    async def good() -> None:
        await asyncio.gather(asyncio.to_thread(time.sleep, 0.3), asyncio.sleep(0.3), short())

    watchdog, said = watched(new_loop, good)
    assert (said, watchdog.holds) == ([], {})


@pytest.mark.parametrize(
    ("computing", "queued", "sampler_blocked", "held"),
    [
        (0.02, 0.28, False, 0.02),  # it waited for a processor: the machine was busy
        (0.30, 0.00, False, 0.30),  # it computed
        (0.00, 0.00, False, 0.30),  # it slept in a call
        (0.00, 0.00, True, 0.00),  # another thread kept both from running
        (0.30, 0.00, True, 0.30),  # it kept us from looking
    ],
)
def test_time_that_the_machine_took_is_not_held_against_anybody(
    computing: float, queued: float, sampler_blocked: bool, held: float
) -> None:
    before, after = _Usage(1.0, 2.0, known=True), _Usage(1.0 + computing, 2.0 + queued, known=True)
    assert _Interval(0.3, before, after, sampler_blocked).held == pytest.approx(held)


@pytest.mark.parametrize(
    ("callees", "named"),
    [
        ([(None, 0.05), ("time.sleep", 0.2)], "time.sleep"),
        ([("time.sleep", 0.2), ("open", 0.2)], None),
        ([("open", 0.05), (None, 0.2)], None),
    ],
)
def test_a_callee_is_named_when_it_took_most_of_the_time(callees: list[tuple[str | None, float]], named: str) -> None:
    frame = sys._getframe()
    suspect = _Suspect()
    for callee, seconds in callees:
        suspect.add_sample(frame, callee, seconds)
    assert suspect.hold is not None
    assert (suspect.hold.callee, suspect.hold.file) == (named, __file__)


def test_a_loop_that_is_stuck_is_told_of_while_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_rl.rewards.watchdog.STUCK_SECONDS", 0.3)
    told = threading.Event()
    said: list[Hold] = []

    def report(hold: Hold) -> None:
        said.append(hold)
        told.set()

    async def forever() -> None:
        assert told.wait(20), "nobody was told"

    async def main() -> None:
        with watch_loop(asyncio.get_running_loop(), report=report):
            await asyncio.sleep(0.05)
            await forever()

    asyncio.run(main())
    assert [(hold.ended, hold.callee) for hold in said] == [(False, "told.wait")]
    assert "has been holding the event loop" in str(said[0])


def test_nothing_is_left_of_it() -> None:
    before = threading.active_count()
    watched(LOOPS[0], short)
    assert threading.active_count() == before


ENVIRONMENT = """
import time
from hermes_rl import HermesAgentBaseEnv


class SleepyEnv(HermesAgentBaseEnv):
    default_toolsets = ("terminal",)

    async def setup(self):
        pass

    async def get_next_item(self):
        return 1

    def format_prompt(self, item):
        return "hello"

    async def compute_reward(self, item, result, ctx):
        ctx.terminal("true")
        time.sleep(0.3)
        return 1.0
"""


async def test_a_reward_of_an_environment_file_is_named_in_a_real_rollout(tmp_path: Path) -> None:
    file = tmp_path / "sleepy_env.py"
    file.write_text(ENVIRONMENT)
    said: list[Hold] = []
    environment = load_environment(str(file))
    async with ScriptedModel(always(Text("hi"))) as model, opened(environment, model, group_size=1) as env:
        with watch_loop(asyncio.get_running_loop(), report=said.append):
            group = await env.collect_group(1)
            await asyncio.sleep(0.06)
    assert group.scores == [1.0]
    assert [(hold.function, Path(hold.file).name, hold.callee) for hold in said] == [
        ("SleepyEnv.compute_reward", "sleepy_env.py", "time.sleep")
    ]
    assert sys.modules[environment.__module__].__file__ == said[0].file
