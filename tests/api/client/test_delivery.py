import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from hermes_rl.api.client.connection import ApiError, ApiUnavailableError
from hermes_rl.api.client.delivery import Delivery
from hermes_rl.api.client.destination import ResumeState
from hermes_rl.api.client.spool import Spool
from hermes_rl.api.schemas import ItemScores, Posted, WorkGrant

SOON = 10.0


class ScriptedDestination:
    """Takes groups, with the faults an API can have. `tries` is every post it saw, `taken` what it kept."""

    kind = "scripted"
    keeps_scores = False

    def __init__(self) -> None:
        self.away = False
        self.lost_answers = 0
        self.refused: dict[bytes, ApiError] = {}
        self.error: Exception | None = None
        self.seconds = 0.0
        self.tries: list[bytes] = []
        self.taken: list[bytes] = []
        self.posting = 0
        self.most_at_once = 0

    @property
    def withheld(self) -> Mapping[str, int]:
        return {}

    async def register(self) -> ResumeState:
        return ResumeState()

    async def work(self, *, running: int, wanted: int, cursor: int | None = None) -> WorkGrant:
        return WorkGrant(granted=wanted, version=0)

    async def new_scores(self) -> Sequence[ItemScores]:
        return ()

    async def leave(self) -> None:
        pass

    async def post(self, data: bytes) -> Posted:
        self.tries.append(data)
        self.posting += 1
        self.most_at_once = max(self.most_at_once, self.posting)
        try:
            await asyncio.sleep(self.seconds)
        finally:
            self.posting -= 1
        if self.error is not None:
            raise self.error
        if self.away:
            raise ApiUnavailableError("nobody there", kind="unreachable")
        if data in self.refused:
            raise self.refused[data]
        new = data not in self.taken
        if new:
            self.taken.append(data)
        if self.lost_answers:
            self.lost_answers -= 1
            raise ApiUnavailableError("broke off", kind="unreachable")
        return Posted(new=new, place=self.taken.index(data))


async def test_groups_reach_the_destination_in_order(tmp_path: Path) -> None:
    destination = ScriptedDestination()
    async with Spool(tmp_path) as spool, Delivery(destination, spool) as delivery:
        for draw in range(20):
            await delivery.put(b"%d" % draw, draw)
        assert await delivery.flush(SOON) == 0
    assert destination.taken == [b"%d" % draw for draw in range(20)]


async def test_one_group_is_posted_at_a_time(tmp_path: Path) -> None:
    destination = ScriptedDestination()
    destination.seconds = 0.005
    async with Spool(tmp_path) as spool, Delivery(destination, spool) as delivery:
        await asyncio.gather(*(delivery.put(b"%d" % draw, draw) for draw in range(10)))
        await delivery.flush(SOON)
    assert destination.most_at_once == 1


async def test_putting_does_not_wait_for_a_slow_api(tmp_path: Path) -> None:
    destination = ScriptedDestination()
    destination.seconds = 60
    async with Spool(tmp_path) as spool, Delivery(destination, spool) as delivery:
        async with asyncio.timeout(SOON):
            for draw in range(5):
                await delivery.put(b"x", draw)
        assert delivery.spooled == 5


async def test_while_the_api_is_away_the_spool_grows_and_says_why(tmp_path: Path) -> None:
    destination = ScriptedDestination()
    destination.away = True
    async with Spool(tmp_path) as spool, Delivery(destination, spool) as delivery:
        for draw in range(3):
            await delivery.put(b"%d" % draw, draw)
        assert await delivery.flush(0.3) == 3
        assert (delivery.spooled, delivery.posted, delivery.last_error) == (3, 0, "nobody there")
        assert delivery.away_since is not None


async def test_when_the_api_is_back_all_is_posted_in_order(tmp_path: Path) -> None:
    destination = ScriptedDestination()
    destination.away = True
    async with Spool(tmp_path) as spool, Delivery(destination, spool) as delivery:
        for draw in range(5):
            await delivery.put(b"%d" % draw, draw)
        await delivery.flush(0.1)
        destination.away = False
        assert await delivery.flush(SOON) == 0
        assert (delivery.posted, delivery.away_since, delivery.last_error) == (5, None, None)
    assert destination.taken == [b"0", b"1", b"2", b"3", b"4"]


async def test_a_flush_does_not_wait_for_the_next_try(tmp_path: Path) -> None:
    destination = ScriptedDestination()
    asked = ApiUnavailableError("full", status=429, kind="queue_full")
    asked.retry_after = 3600.0
    destination.error = asked
    async with Spool(tmp_path) as spool, Delivery(destination, spool) as delivery:
        await delivery.put(b"x", 0)
        while delivery.last_error is None:
            await asyncio.sleep(0.001)
        destination.error = None
        assert await delivery.flush(SOON) == 0


async def test_an_api_that_asks_for_a_pause_is_given_it(tmp_path: Path) -> None:
    destination = ScriptedDestination()
    asked = ApiUnavailableError("full", status=429, kind="queue_full")
    asked.retry_after = 3600.0
    destination.error = asked
    async with Spool(tmp_path) as spool, Delivery(destination, spool) as delivery:
        await delivery.put(b"x", 0)
        while delivery.last_error is None:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.4)
        assert len(destination.tries) == 1


async def test_a_group_whose_answer_was_lost_is_posted_again(tmp_path: Path) -> None:
    destination = ScriptedDestination()
    destination.lost_answers = 1
    async with Spool(tmp_path) as spool, Delivery(destination, spool) as delivery:
        await delivery.put(b"a", 0)
        await delivery.put(b"b", 1)
        assert await delivery.flush(SOON) == 0
    assert destination.tries == [b"a", b"a", b"b"]
    assert destination.taken == [b"a", b"b"]


@pytest.mark.parametrize("status", [400, 413, 415, 422])
async def test_a_group_the_api_will_never_take_is_set_aside_and_holds_up_no_other(tmp_path: Path, status: int) -> None:
    destination = ScriptedDestination()
    destination.refused[b"bad"] = ApiError("no group", status=status, kind="bad_group")
    async with Spool(tmp_path) as spool, Delivery(destination, spool) as delivery:
        for draw, data in enumerate([b"bad", b"good"]):
            await delivery.put(data, draw)
        assert await delivery.flush(SOON) == 0
        assert (delivery.refused, delivery.posted) == (1, 1)
        assert delivery.away_since is None
    (reason,) = (tmp_path / "refused").glob("*.reason")
    assert reason.read_text() == f"{status} bad_group: no group\n"


@pytest.mark.parametrize("status", [401, 403, 404, 500])
async def test_a_refusal_that_is_not_the_groups_fault_keeps_it(tmp_path: Path, status: int) -> None:
    destination = ScriptedDestination()
    destination.error = ApiError("not you", status=status, kind="unauthorised")
    async with Spool(tmp_path) as spool, Delivery(destination, spool) as delivery:
        await delivery.put(b"a", 0)
        await delivery.flush(0.1)
        destination.error = None
        assert await delivery.flush(SOON) == 0
    assert destination.taken == [b"a"]


async def test_what_is_left_is_posted_in_the_next_life(tmp_path: Path) -> None:
    destination = ScriptedDestination()
    destination.away = True
    async with Spool(tmp_path) as spool, Delivery(destination, spool) as delivery:
        await delivery.put(b"a", 0)
    destination.away = False
    async with Spool(tmp_path) as spool, Delivery(destination, spool) as delivery:
        assert await delivery.flush(SOON) == 0
    assert destination.taken == [b"a"]


async def test_an_end_in_the_middle_of_a_post_keeps_the_group(tmp_path: Path) -> None:
    destination = ScriptedDestination()
    destination.seconds = 60
    async with Spool(tmp_path) as spool:
        async with Delivery(destination, spool) as delivery:
            await delivery.put(b"a", 0)
            while not destination.tries:
                await asyncio.sleep(0.001)
        assert spool.draws == {0}


async def test_a_defect_in_a_destination_is_raised_and_not_slept_over(tmp_path: Path) -> None:
    destination = ScriptedDestination()
    destination.error = KeyError("defect")

    async def deliver(spool: Spool) -> None:
        async with Delivery(destination, spool) as delivery:
            await delivery.put(b"a", 0)
            await delivery.flush(SOON)

    async with Spool(tmp_path) as spool:
        with pytest.raises(KeyError, match="defect"):
            await deliver(spool)
        assert spool.draws == {0}
