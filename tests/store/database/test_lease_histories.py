"""Any history of adds, leases, acknowledgements, returns and lapses, beside a model of it in a few lists."""

import asyncio
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes_rl.store.database.errors import LeaseLostError
from hermes_rl.store.database.registrations import TrainerRow
from hermes_rl.store.database.store import Store, open_store
from tests.store.database.making import make_group

BATCH = 4
STEPS = st.one_of(
    st.tuples(st.just("add"), st.integers(1, 5)),
    st.tuples(st.just("lease"), st.just(0)),
    st.tuples(st.just("lease and let it lapse"), st.just(0)),
    st.tuples(st.sampled_from(["ack", "release", "extend"]), st.integers(0, 9)),
    st.tuples(st.just("open again"), st.just(0)),
)


class Model:
    """Places that wait, and places by batch that are on loan; a lapsed batch is told apart from one that is held."""

    def __init__(self) -> None:
        self.sizes: dict[int, int] = {}
        self.waiting: list[int] = []
        self.held: dict[int, list[int]] = {}
        self.overdue: set[int] = set()
        self.lapsed: dict[int, list[int]] = {}
        self.acknowledged: dict[int, list[int]] = {}

    def expected(self) -> list[int]:
        for batch in sorted(self.overdue):
            self.lapsed[batch] = self.held.pop(batch)
            self.waiting = sorted(self.waiting + self.lapsed[batch])
        self.overdue.clear()
        taken: list[int] = []
        for place in self.waiting:
            taken.append(place)
            if sum(self.sizes[one] for one in taken) >= BATCH:
                return taken
        return []

    def lease(self, batch: int, places: list[int], *, overdue: bool) -> None:
        self.waiting = [place for place in self.waiting if place not in places]
        self.held[batch] = places
        if overdue:
            self.overdue.add(batch)

    def hold(self, batch: int) -> bool:
        """Whether the batch is held, or can be again."""
        if batch in self.lapsed and set(self.lapsed[batch]) <= set(self.waiting):
            self.waiting = [place for place in self.waiting if place not in self.lapsed[batch]]
            self.held[batch] = self.lapsed.pop(batch)
        return batch in self.held


async def play(path: Path, steps: list[tuple[str, int]]) -> None:
    model = Model()
    batches: list[int] = []
    rest = steps
    while rest:
        async with open_store(path) as store:
            await store.register_trainer(TrainerRow("trainer", BATCH))
            environment = (await store.register_environment("e")).id
            while rest:
                (what, number), *rest = rest
                if what == "open again":
                    break
                if what == "add":
                    place = (await store.add(environment, make_group(number))).place
                    model.sizes[place] = number
                    model.waiting.append(place)
                elif what.startswith("lease"):
                    await play_lease(store, model, batches, overdue=what != "lease")
                elif batches:
                    await play_end(store, model, what, batches[number % len(batches)])
            assert (await store.status()).total.waiting_groups == len(model.waiting) + sum(
                len(model.held[batch]) for batch in model.overdue
            )
            trained = [tally for tally in await store.tallies() if tally.outcome == "trained"]
            assert sum(tally.groups for tally in trained) == sum(map(len, model.acknowledged.values()))


async def play_lease(store: Store, model: Model, batches: list[int], *, overdue: bool) -> None:
    expected = model.expected()
    batch = await store.lease("trainer", seconds=-1 if overdue else 600)
    assert [group.place for group in batch.groups] == expected if batch else expected == []
    if batch:
        model.lease(batch.id, expected, overdue=overdue)
        batches.append(batch.id)


async def play_end(store: Store, model: Model, what: str, batch: int) -> None:
    if what == "release":
        assert await store.release(batch) == (batch in model.held)
        model.waiting = sorted(model.waiting + model.held.pop(batch, []))
        model.overdue.discard(batch)
        return
    again = batch in model.acknowledged
    can = model.hold(batch)
    try:
        if what == "ack":
            assert await store.ack(batch) == (not again)
            if not again:
                model.acknowledged[batch] = model.held.pop(batch)
        else:
            await store.extend(batch, 600)
        assert can or again
        model.overdue.discard(batch)
    except LeaseLostError:
        assert not can and not (again and what == "ack")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(STEPS, max_size=30))
def test_every_history_goes_as_the_model_says(steps: list[tuple[str, int]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(play(Path(place) / "store.db", steps))
