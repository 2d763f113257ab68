"""Sync calls below `bridged` wait on the loop without blocking it, in tasks and threads too."""

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any

import pytest

from hermes_rl.rewards.sync_bridge import bridged, wait


async def after(seconds: float, value: Any = None) -> Any:
    await asyncio.sleep(seconds)
    return value


def blocking(seconds: float, value: Any = None) -> Any:
    """What ToolContext's methods do."""
    return wait(after(seconds, value))


async def test_a_thousand_sync_waits_take_the_time_of_one() -> None:
    async def reward(index: int) -> int:
        return int(blocking(0.5, index))

    began = time.monotonic()
    results = await asyncio.gather(*(bridged(reward(index)) for index in range(1000)))
    assert results == list(range(1000))
    assert time.monotonic() - began < 60


async def test_the_loop_goes_on_during_a_sync_wait() -> None:
    ticked = asyncio.Event()

    async def clock() -> None:
        for _ in range(10):
            await asyncio.sleep(0.01)
        ticked.set()

    async def reward() -> bool:
        return bool(wait(asyncio.wait_for(ticked.wait(), 30)))

    ticking = asyncio.create_task(clock())
    assert await bridged(reward())
    await ticking


async def test_awaits_and_sync_waits_mix() -> None:
    async def reward() -> list[Any]:
        first = await after(0.01, "a")
        second = blocking(0.01, "b")
        async with asyncio.timeout(30):
            third = await after(0.01, "c")
        return [first, second, third, blocking(0.0, "d")]

    assert await bridged(reward()) == ["a", "b", "c", "d"]


async def test_an_error_is_raised_at_the_sync_call() -> None:
    async def broken() -> None:
        await asyncio.sleep(0.01)
        raise ValueError("inside")

    async def reward() -> str:
        try:
            wait(broken())
        except ValueError as error:
            return str(error)
        return "nothing was raised"

    assert await bridged(reward()) == "inside"


async def test_an_error_of_the_reward_passes_out() -> None:
    async def reward() -> None:
        blocking(0.01)
        raise KeyError("reward")

    with pytest.raises(KeyError, match="reward"):
        await bridged(reward())


async def test_a_timeout_interrupts_a_sync_wait() -> None:
    async def reward() -> None:
        async with asyncio.timeout(0.05):
            blocking(10)

    began = time.monotonic()
    with pytest.raises(TimeoutError):
        await bridged(reward())
    assert time.monotonic() - began < 9


async def test_cancelling_the_task_ends_a_sync_wait_and_runs_its_finally() -> None:
    cleaned = []

    async def reward() -> None:
        try:
            blocking(10)
        finally:
            blocking(0.01)
            cleaned.append(True)

    task = asyncio.create_task(bridged(reward()))
    await asyncio.sleep(0.05)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert cleaned == [True]


async def test_tasks_started_below_may_wait_too() -> None:
    async def child(value: int) -> int:
        await asyncio.sleep(0.01)
        return int(blocking(0.2, value))

    async def reward() -> list[int]:
        gathered = await asyncio.gather(child(1), child(2))
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(child(value)) for value in (3, 4)]
        return [*gathered, *(task.result() for task in tasks)]

    began = time.monotonic()
    results = await asyncio.gather(*(bridged(reward()) for _ in range(50)))
    assert all(result == [1, 2, 3, 4] for result in results)
    # One after the other they would take 40.
    assert time.monotonic() - began < 20


async def test_a_worker_thread_may_wait_without_blocking_the_loop() -> None:
    async def reward() -> Any:
        return await asyncio.to_thread(blocking, 0.05, "from a thread")

    assert await bridged(reward()) == "from a thread"


async def test_a_plain_thread_waits_when_it_is_given_the_loop() -> None:
    loop = asyncio.get_running_loop()
    answers: list[Any] = []

    async def reward() -> None:
        thread = threading.Thread(target=lambda: answers.append(wait(after(0.05, "plain"), loop)))
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.01)

    await bridged(reward())
    assert answers == ["plain"]


async def test_an_executor_of_the_author_waits_when_it_is_given_the_loop() -> None:
    loop = asyncio.get_running_loop()

    async def reward() -> Any:
        with ThreadPoolExecutor(2) as pool:
            return await loop.run_in_executor(pool, lambda: wait(after(0.05, "pooled"), loop))

    assert await bridged(reward()) == "pooled"


async def test_waiting_outside_says_where_it_is_allowed() -> None:
    with pytest.raises(RuntimeError, match="would block the event loop"):
        blocking(0.01)


async def test_tasks_outside_are_not_bridged() -> None:
    async def nothing() -> None:
        return None

    await bridged(nothing())
    with pytest.raises(RuntimeError, match="would block the event loop"):
        await asyncio.create_task(_waits())


async def _waits() -> None:
    blocking(0.01)


async def test_context_variables_are_seen_and_kept() -> None:
    variable: ContextVar[str] = ContextVar("variable", default="unset")

    async def seen() -> str:
        return variable.get()

    async def reward() -> tuple[str, str]:
        before = wait(seen())
        variable.set("inner")
        return before, wait(seen())

    variable.set("outer")
    assert await bridged(reward()) == ("outer", "inner")


async def test_bridging_inside_a_bridge_works() -> None:
    async def inner() -> Any:
        return blocking(0.01, "inner")

    async def reward() -> Any:
        return await bridged(inner()), blocking(0.01, "outer")

    assert await bridged(reward()) == ("inner", "outer")
