from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from hermes_rl.store.database.queue import QueuedGroup, Share, accepted, capacity, choose_batch, minimums, room

ENVIRONMENTS = st.integers(1, 4)
WAITING = st.lists(st.tuples(ENVIRONMENTS, st.integers(1, 16)), max_size=40).map(
    lambda pairs: [QueuedGroup(place, *pair) for place, pair in enumerate(pairs, 1)]
)
SHARES = st.dictionaries(ENVIRONMENTS, st.builds(Share, st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.floats(0, 1)))
FREE_SHARES = st.dictionaries(ENVIRONMENTS, st.builds(Share, st.sampled_from([0.0, 0.5, 1.0, 3.0])))
SIZES = st.integers(1, 64)
LIVE = st.sets(ENVIRONMENTS)


def total(groups: list[QueuedGroup] | tuple[QueuedGroup, ...], environment: int | None = None) -> int:
    return sum(group.size for group in groups if environment in {None, group.environment})


def queue(*pairs: tuple[int, int]) -> list[QueuedGroup]:
    return [QueuedGroup(place, *pair) for place, pair in enumerate(pairs, 1)]


@given(WAITING, SIZES, SHARES, LIVE)
def test_a_batch_reaches_its_size_or_is_none(
    waiting: list[QueuedGroup], size: int, shares: dict[int, Share], live: set[int]
) -> None:
    chosen = choose_batch(waiting, size, shares, live)
    assert not chosen or total(chosen) >= size


@given(WAITING, SIZES, SHARES, LIVE)
def test_each_environment_gives_its_oldest_groups(
    waiting: list[QueuedGroup], size: int, shares: dict[int, Share], live: set[int]
) -> None:
    chosen = choose_batch(waiting, size, shares, live)
    for environment in {group.environment for group in chosen}:
        own = [group for group in waiting if group.environment == environment]
        taken = [group for group in chosen if group.environment == environment]
        assert taken == own[: len(taken)]


@given(WAITING, SIZES, SHARES, LIVE)
def test_the_oldest_group_of_all_is_in_every_batch(
    waiting: list[QueuedGroup], size: int, shares: dict[int, Share], live: set[int]
) -> None:
    chosen = choose_batch(waiting, size, shares, live)
    assert not chosen or chosen[0] == waiting[0]


@given(WAITING, SIZES, SHARES)
def test_a_queue_that_holds_a_batch_gives_one_when_every_environment_is_dead(
    waiting: list[QueuedGroup], size: int, shares: dict[int, Share]
) -> None:
    assert bool(choose_batch(waiting, size, shares, set())) == (total(waiting) >= size)


@given(WAITING, SIZES, SHARES, LIVE)
def test_minimums_are_honoured_as_far_as_there_are_groups(
    waiting: list[QueuedGroup], size: int, shares: dict[int, Share], live: set[int]
) -> None:
    chosen = choose_batch(waiting, size, shares, live)
    due = minimums(waiting, size, shares, live)
    assert not chosen or (due is not None and all(total(chosen, name) >= count for name, count in due.items()))


@given(WAITING, SIZES, SHARES, LIVE)
def test_a_batch_waits_only_for_a_live_environment_with_a_minimum(
    waiting: list[QueuedGroup], size: int, shares: dict[int, Share], live: set[int]
) -> None:
    if total(waiting) >= size and not choose_batch(waiting, size, shares, live):
        assert any(shares[name].minimum > 0 for name in live & set(shares))


@given(WAITING, SIZES, SHARES, LIVE)
def test_no_environment_gives_a_last_group_that_the_batch_could_do_without(
    waiting: list[QueuedGroup], size: int, shares: dict[int, Share], live: set[int]
) -> None:
    chosen = choose_batch(waiting, size, shares, live)
    due = minimums(waiting, size, shares, live) or {}
    for environment in {group.environment for group in chosen[1:]}:
        last = [group for group in chosen if group.environment == environment][-1]
        enough_left = total(chosen, environment) - last.size >= due.get(environment, 0)
        assert last == waiting[0] or not enough_left or total(chosen) - last.size < size


@given(WAITING, SIZES)
def test_a_lone_environment_is_served_first_in_first_out(waiting: list[QueuedGroup], size: int) -> None:
    alone = [QueuedGroup(group.place, 1, group.size) for group in waiting]
    needed = next((count for count, sum_ in enumerate(accumulate(group.size for group in alone), 1) if sum_ >= size), 0)
    assert choose_batch(alone, size, {}, {1}) == tuple(alone[:needed])


@given(WAITING, SIZES, FREE_SHARES, LIVE)
def test_everything_that_waits_is_given_out_in_the_end(
    waiting: list[QueuedGroup], size: int, shares: dict[int, Share], live: set[int]
) -> None:
    left = waiting
    while chosen := choose_batch(left, size, shares, live):
        left = [group for group in left if group not in chosen]
    assert total(left) < size


def test_a_flood_from_one_environment_leaves_the_others_their_share() -> None:
    flood = [*[(1, 4)] * 20, *[(2, 4)] * 4]
    assert total(choose_batch(queue(*flood), 16, {}, {1, 2}), 2) == 8


def test_a_heavier_environment_has_the_larger_share() -> None:
    waiting = queue(*[(1, 1)] * 20, *[(2, 1)] * 20)
    assert total(choose_batch(waiting, 16, {2: Share(weight=3.0)}, {1, 2}), 2) == 12


def test_what_an_environment_leaves_of_its_share_goes_to_the_others() -> None:
    assert total(choose_batch(queue(*[(1, 4)] * 20, (2, 4)), 16, {}, {1, 2}), 1) == 12


def test_groups_of_twelve_make_a_batch_of_thirty_two() -> None:
    assert len(choose_batch(queue(*[(1, 12)] * 20), 32, {}, {1})) == 3


def test_a_live_environment_with_a_minimum_and_no_groups_is_waited_for() -> None:
    assert choose_batch(queue(*[(1, 4)] * 8), 16, {2: Share(minimum=0.25)}, {1, 2}) == ()


def test_a_dead_environment_with_a_minimum_is_waited_for_by_nobody() -> None:
    assert total(choose_batch(queue(*[(1, 4)] * 8), 16, {2: Share(minimum=0.25)}, {1})) == 16


def test_capacity_grows_by_a_batch_with_each_version() -> None:
    def at(version: int) -> int:
        return capacity(max_staleness=2, version=version, batch_size=8, accepted=0, running=0)

    assert at(5) - at(4) == 8


def test_capacity_counts_what_is_accepted_and_what_is_running() -> None:
    assert capacity(max_staleness=1, version=0, batch_size=8, accepted=5, running=3) == 8


def test_batches_that_reach_beyond_their_size_do_not_use_up_the_capacity() -> None:
    def empty_queue_at(version: int) -> int:
        done = accepted(version=version, batch_size=32, waiting=0, in_training=0)
        return capacity(max_staleness=0, version=version, batch_size=32, accepted=done, running=0)

    assert empty_queue_at(1_000) == empty_queue_at(0) == 32


def test_an_environment_whose_minimum_is_not_met_has_room_in_a_full_queue() -> None:
    assert room(0, Share(minimum=0.25), batch_size=32, waiting=4, running=0) == 4


def test_an_environment_whose_minimum_is_met_has_no_room_in_a_full_queue() -> None:
    assert room(-5, Share(minimum=0.25), batch_size=32, waiting=8, running=0) == 0
