import asyncio
from dataclasses import replace

import pytest

from hermes_rl.store.codec import open_group
from hermes_rl.store.container import BadGroupError
from hermes_rl.store.database import groups
from hermes_rl.store.database.errors import UnknownEnvironmentError
from hermes_rl.store.database.groups import Retention
from hermes_rl.store.database.store import Store, open_engine, open_store
from hermes_rl.store.database.views import RolloutQuery
from tests.store.database.making import add_groups, make_failed, make_group, make_rollout, with_trainer


async def test_a_group_comes_back_byte_for_byte(store: Store) -> None:
    environment = await with_trainer(store)
    data = make_group()
    added = await store.add(environment, data)
    found = await store.group(added.place)
    assert found is not None and found.data == data


async def test_a_group_is_found_by_its_id(store: Store) -> None:
    added = await store.add(await with_trainer(store), make_group(id="this"))
    found = await store.group("this")
    assert found is not None and found.place == added.place


async def test_a_group_is_still_there_after_the_store_was_closed(address: str) -> None:
    async with open_store(address) as store:
        await store.add(await with_trainer(store), make_group(id="this"))
    async with open_store(address) as store:
        assert await store.group("this") is not None


async def test_the_same_id_twice_counts_once(store: Store) -> None:
    environment = await with_trainer(store)
    first = await store.add(environment, make_group(id="same"))
    second = await store.add(environment, make_group(id="same", version=7))
    assert (second.new, second.place) == (False, first.place)


async def test_the_first_of_two_groups_of_one_id_is_kept(store: Store) -> None:
    environment = await with_trainer(store)
    first = make_group(id="same")
    await store.add(environment, first)
    await store.add(environment, make_group(id="same", version=7))
    found = await store.group("same")
    assert found is not None and found.data == first


async def test_the_same_id_many_times_at_once_counts_once(store: Store) -> None:
    environment = await with_trainer(store)
    data = make_group(id="same")
    added = await asyncio.gather(*(store.add(environment, data) for _ in range(32)))
    assert sum(one.new for one in added) == 1


async def test_posts_at_once_through_two_stores_count_once(address: str) -> None:
    async with open_store(address) as one, open_store(address) as other:
        environment = await with_trainer(one)
        posts = [make_group(id=f"group {number}") for number in range(24)]
        await asyncio.gather(
            *(one.add(environment, data) for data in posts), *(other.add(environment, data) for data in reversed(posts))
        )
        assert (await one.status()).total.waiting_groups == 24


async def test_places_follow_the_order_of_posts(store: Store) -> None:
    places = await add_groups(store, await with_trainer(store), 5)
    assert places == sorted(set(places))


async def test_bytes_that_are_no_group_are_refused(store: Store) -> None:
    environment = await with_trainer(store)
    with pytest.raises(BadGroupError):
        await store.add(environment, b"garbage")


async def test_a_bad_group_spoils_no_post_beside_it(store: Store) -> None:
    environment = await with_trainer(store)
    posts = [make_group(), b"garbage", make_group()]
    done = await asyncio.gather(*(store.add(environment, data) for data in posts), return_exceptions=True)
    assert [isinstance(one, BadGroupError) for one in done] == [False, True, False]


async def test_a_post_of_an_unknown_environment_is_refused(store: Store) -> None:
    with pytest.raises(UnknownEnvironmentError, match="register"):
        await store.add(77, make_group())


async def test_a_refused_post_spoils_none_that_shares_its_commit(store: Store) -> None:
    environment = await with_trainer(store)
    posts = [store.add(number, make_group()) for number in [environment, 77] * 8]
    done = await asyncio.gather(*posts, return_exceptions=True)
    assert [isinstance(one, UnknownEnvironmentError) for one in done] == [False, True] * 8
    assert (await store.status()).total.waiting_groups == 8


async def test_a_group_without_a_score_is_kept_and_waits_for_nobody(store: Store) -> None:
    environment = await with_trainer(store)
    await store.add(environment, make_group(rollouts=(make_failed(),)))
    [tally] = await store.tallies()
    assert (tally.outcome, tally.cause, tally.groups) == ("dropped", "no_score", 1)
    assert (await store.status()).total.waiting_groups == 0


async def test_rollouts_are_listed_newest_first(store: Store) -> None:
    environment = await with_trainer(store)
    places = await add_groups(store, environment, 2, size=2)
    listed = (await store.rollouts()).rollouts
    assert [(one.place, one.rollout.number) for one in listed] == [
        *((places[1], number) for number in (1, 0)),
        *((places[0], number) for number in (1, 0)),
    ]


async def test_pages_hold_every_rollout_once(store: Store) -> None:
    await add_groups(store, await with_trainer(store), 3, size=3)
    seen: list[int] = []
    end: int | None = None
    while True:
        page = await store.rollouts(before=end, limit=4)
        seen += [one.id for one in page.rollouts]
        end = page.end
        if end is None:
            break
    assert len(seen) == len(set(seen)) == 9


@pytest.mark.parametrize(
    ("wanted", "numbers"),
    [
        (RolloutQuery(text="needle"), {1}),
        (RolloutQuery(text="hay needle"), {1}),
        (RolloutQuery(text="needle missing"), set()),
        (RolloutQuery(text='"needle" OR *'), {1}),
        (RolloutQuery(text="  "), {0, 1, 2}),
        (RolloutQuery(lowest_score=0.6), {1}),
        (RolloutQuery(highest_score=0.6), {0}),
        (RolloutQuery(stop_reason="natural"), {0, 1}),
        (RolloutQuery(failure="sandbox"), {2}),
        (RolloutQuery(seat="buyer"), {1}),
        (RolloutQuery(item_id="item", text="hay", lowest_score=0.1), {1}),
        (RolloutQuery(environment=999), set()),
    ],
)
async def test_rollouts_are_found_by_what_they_are(store: Store, wanted: RolloutQuery, numbers: set[int]) -> None:
    needle = make_rollout(1, text="hay, needle or hay", score=0.75, seat="buyer")
    rollouts = (make_rollout(text="only hay"), needle, make_failed(2))
    rollouts = (replace(rollouts[0], messages=[]), *rollouts[1:])
    await store.add(await with_trainer(store), make_group(rollouts=rollouts))
    await store.index_texts()
    assert {one.rollout.number for one in (await store.rollouts(wanted)).rollouts} == numbers


async def test_odd_text_is_kept_and_found(store: Store) -> None:
    odd = "nul \0 and snowman ☃ word"
    await store.add(await with_trainer(store), make_group(rollouts=(make_rollout(text=odd, item_id="a\0b"),)))
    await store.index_texts()
    [listed] = (await store.rollouts(RolloutQuery(text="snowman"))).rollouts
    assert listed.rollout.item_id == "a\ufffdb"


async def test_a_seed_beyond_64_bits_is_kept(store: Store) -> None:
    await store.add(await with_trainer(store), make_group(rollouts=(make_rollout(seed=2**90),)))
    [listed] = (await store.rollouts()).rollouts
    assert int(listed.rollout.seed) == 2**90


async def test_bytes_of_groups_that_wait_or_are_leased_are_never_let_go(store: Store) -> None:
    await add_groups(store, await with_trainer(store, batch_size=4), 2)
    await store.lease("trainer", seconds=60)
    assert await store.discard(Retention(seconds=-1, bytes=0)) == 0


async def test_old_bytes_are_let_go_and_rows_stay(store: Store) -> None:
    [place] = await add_groups(store, await with_trainer(store, batch_size=4), 1)
    batch = await store.lease("trainer", seconds=60)
    assert batch is not None
    await store.ack(batch.id)
    await store.index_texts()
    assert await store.discard(Retention(seconds=-1)) == 1
    found = await store.group(place)
    assert found is not None and found.data is None
    assert len((await store.rollouts(RolloutQuery(text="hello"))).rollouts) == 4


async def test_young_bytes_are_kept(store: Store) -> None:
    await store.add(await with_trainer(store), make_group(split="eval"))
    assert await store.discard(Retention(seconds=3600)) == 0


async def test_the_oldest_bytes_are_let_go_until_the_rest_fits(store: Store) -> None:
    environment = await with_trainer(store)
    posts = [make_group(id=f"group {number}", split="eval") for number in range(4)]
    for data in posts:
        await store.add(environment, data)
    await store.index_texts()
    await store.discard(Retention(bytes=2 * max(map(len, posts))))
    kept = [await store.group(open_group(data).group["id"]) for data in posts]
    assert [one is not None and one.data is not None for one in kept] == [False, False, True, True]


async def test_a_group_whose_bytes_were_let_go_is_still_known_by_its_id(store: Store) -> None:
    environment = await with_trainer(store)
    data = make_group(split="eval")
    await store.add(environment, data)
    await store.index_texts()
    await store.discard(Retention(bytes=0))
    assert not (await store.add(environment, data)).new


async def test_words_are_indexed_by_themselves_in_the_end(store: Store) -> None:
    await store.add(await with_trainer(store), make_group(rollouts=(make_rollout(text="needle"),)))
    async with asyncio.timeout(20):
        while not (await store.rollouts(RolloutQuery(text="needle"))).rollouts:
            await asyncio.sleep(0.01)


async def test_words_that_were_not_indexed_when_the_store_closed_are_indexed_later(address: str) -> None:
    async with open_engine(address) as engine:
        store = Store(engine)
        rollout = make_rollout(text="needle")
        await store.add(await with_trainer(store), make_group(split="eval", rollouts=(rollout,)))
        assert not await store.discard(Retention(bytes=0))
        store.close()
    async with open_store(address) as store:
        await store.index_texts()
        assert (await store.rollouts(RolloutQuery(text="needle"))).rollouts


async def test_scores_are_those_of_all_replicas_in_the_order_they_came(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "SETTLE_SECONDS", -1)
    one, two, other = [
        (await store.register_environment(name, instance=instance)).id
        for name, instance in [("e", "0/2"), ("e", "1/2"), ("another", "")]
    ]
    failed = (make_rollout(0, score=0.25), make_failed(1), make_rollout(2, score=1.0))
    places = [
        (await store.add(environment, data)).place
        for environment, data in [
            (one, make_group(rollouts=failed)),
            (other, make_group(2)),
            (one, make_group(2, split="eval")),
            (two, make_group(2)),
            (one, make_group(rollouts=(make_failed(),))),
        ]
    ]
    assert await store.group_scores(one) == await store.group_scores(two)
    assert [(found.place, found.item_id, found.scores) for found in await store.group_scores(one)] == [
        (places[0], "item", (0.25, 1.0)),
        (places[3], "item", (0.5, 0.5)),
        (places[4], "item", ()),
    ]


async def test_scores_are_read_in_pages(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "SETTLE_SECONDS", -1)
    environment = await with_trainer(store)
    places = await add_groups(store, environment, 5)
    found, page = [], await store.group_scores(environment, limit=2)
    while page:
        found += [group.place for group in page]
        page = await store.group_scores(environment, after=found[-1], limit=2)
    assert found == places


async def test_scores_of_an_unknown_environment_say_to_register(store: Store) -> None:
    with pytest.raises(UnknownEnvironmentError, match="register"):
        await store.group_scores(7)


async def test_scores_outlive_the_bytes_of_their_groups(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups, "SETTLE_SECONDS", -1)
    environment = await with_trainer(store)
    await store.add(environment, make_group(withheld="equal_scores"))
    await store.index_texts()
    assert await store.discard(Retention(bytes=0)) == 1
    assert [group.scores for group in await store.group_scores(environment)] == [(0.5,) * 4]
