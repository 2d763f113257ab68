"""Being told to stop: the first reason and its deadline count, and signals go from gentle to at once."""

import asyncio
import os
import signal

import pytest

from hermes_rl.core.shutdown import Stopped, StopSignal


async def test_the_first_reason_counts() -> None:
    stop = StopSignal(10)
    stop.request("one")
    stop.request("another")
    assert stop.reason == "one"
    assert 9 < stop.remaining() <= 10


async def test_there_is_no_deadline_before_it_is_told() -> None:
    assert StopSignal(10).remaining() == float("inf")


async def test_work_that_is_done_first_gives_its_result() -> None:
    assert await StopSignal(10).run_until_stopped(asyncio.sleep(0, "done")) == "done"


async def test_work_is_cancelled_when_it_is_told_to_stop() -> None:
    stop, cancelled = StopSignal(10), asyncio.Event()

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()

    asyncio.get_running_loop().call_later(0.05, stop.request, "enough")
    with pytest.raises(Stopped):
        await stop.run_until_stopped(work())
    assert cancelled.is_set()


async def test_the_first_signal_tells_whoever_heeds_it() -> None:
    stop = StopSignal(10)
    with stop.on_signals(), stop.graceful():
        os.kill(os.getpid(), signal.SIGTERM)
        async with asyncio.timeout(5):
            await stop.wait()
    assert stop.reason == "SIGTERM"


@pytest.mark.parametrize("heeded", [True, False])
async def test_a_second_signal_or_one_that_nobody_heeds_cancels(heeded: bool) -> None:
    stop = StopSignal(10)

    async def run() -> None:
        with stop.on_signals():
            if heeded:
                with stop.graceful():
                    await asyncio.sleep(60)
            await asyncio.sleep(60)

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    for _ in range(2 if heeded else 1):
        assert not task.done()
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.05)
    with pytest.raises(asyncio.CancelledError):
        await task
