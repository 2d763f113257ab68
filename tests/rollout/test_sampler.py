from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.core.errors import ConfigError
from hermes_rl.extensions import SAMPLERS
from hermes_rl.rollout.item_rewards import ItemRewards
from hermes_rl.rollout.sampler import (
    ByDifficulty,
    Draw,
    InOrder,
    ItemStream,
    Sampler,
    Uniform,
    content_id,
    dataset_hash,
)

IDS = [f"item-{number}" for number in range(20)]


def stream(items: list[str] | None = None, *, own: list[str] | None = None, **settings: Any) -> ItemStream:
    left = iter(own or [])

    async def next_item() -> str | None:
        return next(left, None)

    chosen = {"sampler": Uniform(), "seed": 0, "rewards": ItemRewards(), "held_out": frozenset[str](), **settings}
    return ItemStream(item_id=str, next_item=next_item, items=items, **chosen)


async def drawn(source: ItemStream, count: int, done: Mapping[int, str | None] | None = None) -> list[Draw]:
    draws = [await source.next(done) for _ in range(count)]
    return [draw for draw in draws if draw is not None]


@pytest.mark.parametrize("sampler", [InOrder(), Uniform()])
async def test_an_epoch_has_every_item_once(sampler: Sampler) -> None:
    draws = await drawn(stream(IDS, sampler=sampler), 60)
    for epoch in range(3):
        assert sorted(draw.item for draw in draws[20 * epoch : 20 * epoch + 20]) == sorted(IDS)


async def test_one_seed_fixes_the_order_and_each_epoch_has_its_own() -> None:
    first, again, other = [await drawn(stream(IDS, seed=seed), 40) for seed in (1, 1, 2)]
    assert first == again
    assert first != other
    assert [draw.item for draw in first[:20]] != [draw.item for draw in first[20:]]


@pytest.mark.parametrize("own", [False, True])
async def test_shards_share_the_stream_without_an_overlap(own: bool) -> None:
    whole = await drawn(stream(None if own else IDS, own=IDS), 12)
    parts = [await drawn(stream(None if own else IDS, own=IDS, shard=shard, shards=3), 4) for shard in range(3)]
    assert sorted(draw for part in parts for draw in part) == sorted(whole)
    assert [[draw.number for draw in part] for part in parts] == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]


@given(st.sets(st.integers(0, 19)), st.booleans())
async def test_what_is_done_is_past_and_the_rest_comes_as_ever(done: set[int], own: bool) -> None:
    whole = await drawn(stream(None if own else IDS, own=IDS), 20)
    finished = {draw.number: draw.item_id for draw in whole if draw.number in done}
    rest = await drawn(stream(None if own else IDS, own=IDS), 20 - len(done), finished)
    assert sorted(rest + [whole[number] for number in done]) == whole


async def test_a_stream_that_does_not_repeat_cannot_be_resumed() -> None:
    with pytest.raises(ConfigError, match="is not deterministic"):
        await drawn(stream(own=IDS), 1, {0: "another"})


async def test_a_past_draw_of_an_unknown_item_is_past_whatever_the_stream_gives() -> None:
    assert [draw.number for draw in await drawn(stream(own=IDS), 2, {0: None})] == [1, 2]


async def test_an_item_held_out_is_refused_for_training() -> None:
    with pytest.raises(ConfigError, match="held out"):
        await drawn(stream(IDS, held_out=frozenset({"item-3"})), 20)


async def test_the_end_of_an_authors_items_is_the_end() -> None:
    source = stream(own=["a", "b"])
    assert [draw.item for draw in await drawn(source, 5)] == ["a", "b"]


def test_no_items_at_all_say_what_to_define() -> None:
    with pytest.raises(ConfigError, match="train_items"):
        stream([])


async def test_a_sampler_that_chooses_nothing_is_told() -> None:
    class Beyond:
        def choose(self, number: int, ids: Any, rewards: ItemRewards, seed: int) -> int:
            return len(ids)

    with pytest.raises(ConfigError, match="index 20 for 20"):
        await drawn(stream(IDS, sampler=Beyond()), 1)


def rewards_of(*groups: tuple[str, list[float]], scale: float = 1.0) -> ItemRewards:
    rewards = ItemRewards()
    for item_id, scores in groups:
        rewards.add(item_id, [scale * score for score in scores])
    return rewards


def weights(rewards: ItemRewards, *ids: str) -> list[float]:
    return [ByDifficulty().weight(item_id, rewards, epoch=len(ids)) for item_id in ids]


EVEN = [0.0] * 32 + [1.0] * 32


def test_an_item_that_went_from_hopeless_to_mastered_has_the_smallest_weight() -> None:
    rewards = rewards_of(("mastered", [0.0] * 64), ("even", EVEN), ("mastered", [1.0] * 64), ("even", EVEN))
    assert weights(rewards, "mastered", "even") == [0.05, 1.0]


def test_graded_rewards_have_weight_by_their_spread() -> None:
    wide, narrow, equal = [0.2, 0.7, 0.2, 0.7], [0.4, 0.5, 0.4, 0.5], [0.7, 0.7, 0.7, 0.7]
    groups = [("wide", wide), ("narrow", narrow), ("equal", equal)] * 20
    found = weights(rewards_of(*groups), "wide", "narrow", "equal")
    # The spread of `narrow` is a fifth, its variance a 25th; the prior is 1 of about 11 degrees of freedom.
    assert found == pytest.approx([1.0, 0.13, 0.09], abs=0.01)


@given(st.lists(st.tuples(st.sampled_from(IDS), st.lists(st.sampled_from([0, 0.25, 1]), max_size=4)), max_size=30))
def test_the_scale_of_the_rewards_does_not_matter(groups: list[tuple[str, list[float]]]) -> None:
    assert weights(rewards_of(*groups), *IDS) == weights(rewards_of(*groups, scale=1024.0), *IDS)


def test_an_item_never_seen_has_the_largest_weight() -> None:
    assert weights(rewards_of(("seen", [0.0, 1.0, 0.0, 1.0])), "seen", "new") == [1.0, 1.0]
    assert weights(rewards_of(("seen", [0.0, 0.0, 0.0, 0.0])), "seen", "new") == [0.25, 1.0]


def test_one_equal_group_is_weaker_evidence_than_several() -> None:
    equal = [("item", [0.0] * 8)]
    falling = [weights(rewards_of(*equal * count, ("even", EVEN)), "item", "even")[0] for count in (1, 2, 3)]
    assert falling == sorted(falling, reverse=True) and falling[0] == pytest.approx(1 / 8, abs=0.01)


def test_an_item_regains_weight_while_other_items_are_trained() -> None:
    groups = [*[("hopeless", [0.0] * 8)] * 5, *[("even", EVEN)] * 16]
    before, soon, late = (
        weights(rewards_of(*groups, *[("even", EVEN)] * later), "hopeless", "even")[0] for later in (0, 16, 160)
    )
    assert 0.05 <= before < soon < 0.25 and late > 0.8


async def test_by_difficulty_draws_in_proportion_to_the_weights() -> None:
    ids = ["easy", "even", "hopeless"]
    rewards = rewards_of(*[("easy", [1.0] * 64), ("even", EVEN), ("hopeless", [0.0] * 64)] * 3)
    assert weights(rewards, *ids) == [0.05, 1.0, 0.05]
    counts = Counter(draw.item for draw in await drawn(stream(ids, sampler=ByDifficulty(), rewards=rewards), 3000))
    assert counts["even"] / 3000 == pytest.approx(1 / 1.1, abs=0.03)
    assert counts["easy"] / 3000 == pytest.approx(0.05 / 1.1, abs=0.02)
    assert counts["hopeless"] / 3000 == pytest.approx(0.05 / 1.1, abs=0.02)


async def test_one_seed_and_the_same_rewards_give_the_same_draws() -> None:
    rewards = rewards_of(("item-1", [0.0, 1.0]), ("item-2", [0.0, 0.0]))
    first, again, other = [
        await drawn(stream(IDS, sampler=ByDifficulty(), rewards=rewards, seed=seed), 40) for seed in (1, 1, 2)
    ]
    assert first == again != other


@pytest.mark.parametrize(("sampler", "uses"), [(InOrder(), False), (Uniform(), False), (ByDifficulty(), True)])
def test_only_samplers_that_may_look_at_rewards_use_them(sampler: Sampler, uses: bool) -> None:
    assert stream(IDS, sampler=sampler).uses_rewards == uses
    assert not stream(own=IDS, sampler=sampler).uses_rewards


def test_every_sampler_has_a_name() -> None:
    assert set(SAMPLERS.builtin) == {"in_order", "uniform", "by_difficulty"}


def test_the_dataset_is_named_by_its_items_and_their_split_whatever_the_order() -> None:
    assert dataset_hash(["a", "b"], ["c"]) == dataset_hash(["b", "a"], ["c"])
    assert dataset_hash(["a", "b"], ["c"]) != dataset_hash(["a"], ["b", "c"])
    assert content_id({"a": 1, "b": 2}) == content_id({"b": 2, "a": 1})
