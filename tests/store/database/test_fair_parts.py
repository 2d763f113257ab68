"""How environments share the room for rollouts: decisions without a database."""

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from hermes_rl.store.database.queue import Claim, fair_room, fair_shares

WEIGHTS = st.sampled_from([0.0, 0.5, 1.0, 3.0])
CLAIMS = st.dictionaries(
    st.integers(1, 5),
    st.builds(Claim, st.sampled_from(["fast", "slow"]), WEIGHTS, st.integers(0, 60), st.integers(0, 60)),
    min_size=1,
)
TOTALS = st.integers(0, 200)


def held(claims: dict[int, Claim]) -> int:
    return sum(claim.held for claim in claims.values())


@settings(deadline=None)
@given(TOTALS, CLAIMS)
def test_parts_are_together_all_that_there_is_or_is_asked_for(total: int, claims: dict[int, Claim]) -> None:
    asked = sum(claim.demand for claim in claims.values())
    assert math.isclose(sum(fair_shares(total, claims).values()), min(total, asked), abs_tol=1e-6)


@settings(deadline=None)
@given(TOTALS, CLAIMS)
def test_nobodys_part_is_more_than_it_asks_for(total: int, claims: dict[int, Claim]) -> None:
    assert all(part <= claims[name].demand + 1e-6 for name, part in fair_shares(total, claims).items())


@settings(deadline=None)
@given(TOTALS, CLAIMS)
def test_whoever_has_less_than_it_asks_for_has_as_much_by_weight_as_any_other(
    total: int, claims: dict[int, Claim]
) -> None:
    parts = fair_shares(total, claims)
    weighted = {name: claim for name, claim in claims.items() if claim.weight}
    short = [name for name, claim in weighted.items() if parts[name] < claim.demand - 1e-6]
    for name in short:
        level = parts[name] / claims[name].weight
        assert all(parts[other] / claim.weight <= level + 1e-6 for other, claim in weighted.items())


@settings(deadline=None)
@given(st.integers(-50, 200), CLAIMS, st.integers(1, 64))
def test_more_than_is_free_is_only_given_against_what_others_hold_beyond_their_parts(
    free: int, claims: dict[int, Claim], batch_size: int
) -> None:
    for name, own in claims.items():
        given_room = fair_room(free, claims, name, batch_size)
        parts = fair_shares(free + held(claims), claims)
        beyond = sum(max(0.0, one.held - parts[other]) for other, one in claims.items() if one.kind != own.kind)
        assert 0 <= given_room <= max(0, free) + beyond + 1e-6


@settings(deadline=None)
@given(st.integers(1, 200), CLAIMS, st.integers(1, 64))
def test_while_anything_is_free_somebody_who_asks_is_given_some(
    free: int, claims: dict[int, Claim], batch_size: int
) -> None:
    asking = [name for name, claim in claims.items() if claim.wanted]
    assert not asking or any(fair_room(free, claims, name, batch_size) for name in asking)


@settings(deadline=None)
@given(st.integers(0, 200), WEIGHTS, st.integers(0, 60), st.integers(1, 64))
def test_an_environment_alone_has_all_that_is_free(free: int, weight: float, runs: int, batch_size: int) -> None:
    assert fair_room(free, {1: Claim("one", weight, runs, wanted=200)}, 1, batch_size) == free


@settings(deadline=None)
@given(st.integers(1, 64), st.integers(1, 500))
def test_a_fast_environment_has_its_part_of_a_batch_however_much_a_slow_one_runs(batch_size: int, runs: int) -> None:
    claims = {1: Claim("slow", 1.0, runs, 1000), 2: Claim("fast", 1.0, 0, 1000)}
    assert fair_room(0, claims, 2, batch_size) >= min(batch_size // 2, runs // 2)


def test_replicas_of_one_environment_wait_for_each_other() -> None:
    claims = {1: Claim("one", 1.0, 16, 8), 2: Claim("one", 1.0, 0, 8)}
    assert fair_room(0, claims, 2, 8) == 0


def test_what_one_does_not_ask_for_is_the_others() -> None:
    claims = {1: Claim("slow", 1.0, 2, 0), 2: Claim("fast", 1.0, 0, 100)}
    assert fair_room(30, claims, 2, 8) == 30


def test_what_others_wait_for_is_left_to_them() -> None:
    claims = {1: Claim("slow", 1.0, 16, 100), 2: Claim("fast", 1.0, 12, 100)}
    assert fair_room(4, claims, 1, 8) == 0
    assert fair_room(4, claims, 2, 8) == 4
