"""A test that hangs on uvloop fails at its time limit."""

import asyncio
import signal
import time

import pytest

from tests.support.product_loop import product_loop


def test_the_time_limit_ends_a_coroutine_that_waits_on_uvloop() -> None:
    def limit(*_: object) -> None:
        pytest.fail("Timeout")

    async def waits() -> None:
        while True:
            await asyncio.sleep(0.01)

    previous = signal.signal(signal.SIGUSR1, limit)
    began = time.monotonic()
    try:
        with asyncio.Runner(loop_factory=product_loop) as runner:
            runner.get_loop().call_later(0.05, signal.raise_signal, signal.SIGUSR1)
            with pytest.raises(asyncio.CancelledError, match="Timeout"):
                runner.run(asyncio.wait_for(waits(), 5))
    finally:
        signal.signal(signal.SIGUSR1, previous)
    assert time.monotonic() - began < 5
