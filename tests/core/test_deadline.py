"""A deadline cancels its own await and nothing else, can be used again, and leaves other cancellations alone."""

import asyncio

import pytest

from hermes_rl.core.deadline import Deadline


async def guarded(deadline: Deadline, seconds: float, work: float) -> str:
    deadline.begin(seconds)
    try:
        await asyncio.sleep(work)
        return "done"
    except asyncio.CancelledError:
        deadline.reraise()
    finally:
        deadline.end()


async def test_work_in_time_is_left_alone() -> None:
    deadline = Deadline()
    assert await guarded(deadline, 5, 0.01) == "done"
    deadline.close()


async def test_work_past_it_is_a_timeout() -> None:
    deadline = Deadline()
    with pytest.raises(TimeoutError):
        await guarded(deadline, 0.02, 5)
    deadline.close()


async def test_the_task_goes_on_after_a_timeout() -> None:
    deadline = Deadline()
    with pytest.raises(TimeoutError):
        await guarded(deadline, 0.02, 5)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0
    await asyncio.sleep(0.01)
    assert await guarded(deadline, 5, 0.01) == "done"
    deadline.close()


async def test_it_is_used_again_with_its_timer_still_running() -> None:
    deadline = Deadline()
    for _ in range(5):
        assert await guarded(deadline, 1.0, 0.3) == "done"
    with pytest.raises(TimeoutError):
        await guarded(deadline, 0.05, 5)
    deadline.close()


async def test_a_shorter_one_after_a_longer_one_comes_in_time() -> None:
    deadline = Deadline()
    assert await guarded(deadline, 60, 0.01) == "done"
    async with asyncio.timeout(5):
        with pytest.raises(TimeoutError):
            await guarded(deadline, 0.05, 30)
    deadline.close()


async def test_a_cancellation_by_somebody_else_passes_through() -> None:
    async def work() -> str:
        return await guarded(Deadline(), 60, 60)

    task = asyncio.create_task(work())
    await asyncio.sleep(0.02)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancellation_that_comes_with_the_timeout_wins() -> None:
    async def work() -> str:
        deadline = Deadline()
        deadline.begin(0.02)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            task.cancel()
            deadline.reraise()
        finally:
            deadline.close()
        return "done"

    task = asyncio.create_task(work())
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_an_outer_timeout_is_not_taken_for_ours() -> None:
    outer = asyncio.timeout(0.02)
    with pytest.raises(TimeoutError):
        async with outer:
            await guarded(Deadline(), 60, 60)
    assert outer.expired()


def test_it_needs_a_task() -> None:
    with pytest.raises(RuntimeError):
        Deadline()
