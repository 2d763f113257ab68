import pytest

from hermes_rl.store.codec import decode
from tests.chaos.trajectory.lots import KINDS, ROLLOUTS, Lot, lot_of, make


@pytest.mark.parametrize("kind", KINDS)
def test_a_lot_makes_the_same_bytes_each_time(kind: str) -> None:
    assert make(Lot("p0", 3), kind) == make(Lot("p0", 3), kind)


def test_two_lots_differ_in_more_than_their_names() -> None:
    one, other = (decode(make(Lot("p0", number), "small")) for number in (1, 2))
    assert one.rollouts[0].sequences != other.rollouts[0].sequences


def test_a_lot_is_known_by_its_id() -> None:
    group = decode(make(Lot("p0", 3)))
    assert lot_of(group.id) == Lot("p0", 3)
    assert (group.draw, len(group.rollouts)) == (3, ROLLOUTS[Lot("p0", 3).kind])
