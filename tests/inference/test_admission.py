import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.inference.admission import EngineGoneError, Gate
from hermes_rl.inference.concurrency_limiter import AIMDLimiter, LimiterConfig


def gate(limit: int) -> Gate:
    return Gate(AIMDLimiter(LimiterConfig(initial=limit, maximum=limit)))


async def entered(door: Gate, name: str, order: list[str]) -> None:
    await door.enter()
    order.append(name)


async def test_no_more_pass_than_the_limit_allows() -> None:
    door, order = gate(2), list[str]()
    tasks = [asyncio.create_task(entered(door, name, order)) for name in "abc"]
    await asyncio.sleep(0)
    assert (order, door.queued, door.limiter.in_flight) == (["a", "b"], 1, 2)
    door.answered(1.0)
    await asyncio.gather(*tasks)
    assert (order, door.queued) == (["a", "b", "c"], 0)


async def test_those_who_wait_pass_in_the_order_they_came() -> None:
    door, order = gate(1), list[str]()
    tasks = [asyncio.create_task(entered(door, name, order)) for name in "abcd"]
    for _ in range(4):
        await asyncio.sleep(0)
        door.abandoned()
    await asyncio.gather(*tasks)
    assert order == list("abcd")


async def test_one_that_is_cancelled_while_it_waits_leaves_no_trace() -> None:
    door, order = gate(1), list[str]()
    await door.enter()
    waiting = asyncio.create_task(entered(door, "waits", order))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    assert (door.queued, door.limiter.in_flight) == (0, 1)


async def test_one_that_is_cancelled_as_it_is_let_in_gives_its_place_to_the_next() -> None:
    door, order = gate(1), list[str]()
    await door.enter()
    first, second = (asyncio.create_task(entered(door, name, order)) for name in ("first", "second"))
    await asyncio.sleep(0)
    door.answered(1.0)
    first.cancel()
    await asyncio.wait({first, second})
    assert (order, door.limiter.in_flight) == (["second"], 1)


async def test_a_refusal_lets_nobody_in_while_more_is_in_flight_than_fits() -> None:
    door, order = gate(3), list[str]()
    for _ in range(3):
        await door.enter()
    waiting = asyncio.create_task(entered(door, "waits", order))
    await asyncio.sleep(0)
    door.refused()
    await asyncio.sleep(0)
    assert (order, door.limiter.limit, door.limiter.in_flight) == ([], 2, 2)
    waiting.cancel()
    await asyncio.wait({waiting})


@settings(deadline=None)
@given(st.integers(1, 8), st.lists(st.sampled_from(["answered", "refused", "lost", "abandoned"]), max_size=60))
def test_while_nothing_is_in_flight_nobody_waits(limit: int, outcomes: list[str]) -> None:
    async def play() -> None:
        door = Gate(AIMDLimiter(LimiterConfig(initial=limit)), clock=iter(range(1000)).__next__)
        waiting = [asyncio.create_task(door.enter()) for _ in range(40)]
        for name in outcomes:
            await asyncio.sleep(0)
            if door.limiter.in_flight:
                getattr(door, name)(*((1.0,) if name == "answered" else ()))
            assert door.limiter.in_flight or not door.queued
        for one in waiting:
            one.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)

    asyncio.run(play())


async def test_those_who_wait_for_an_engine_that_is_lost_are_turned_away() -> None:
    door = gate(2)
    for _ in range(2):
        await door.enter()
    waiting = [asyncio.create_task(door.enter()) for _ in range(3)]
    await asyncio.sleep(0)
    door.lost()
    door.lost()
    outcomes = await asyncio.gather(*waiting, return_exceptions=True)
    # One loss alone says nothing, so the first was let in after it.
    assert [type(outcome) for outcome in outcomes] == [type(None), EngineGoneError, EngineGoneError]
    assert (door.queued, door.limiter.in_flight, door.limiter.limit) == (0, 1, 1)
