"""Sandboxes and the deaths of their owners."""

from hermes_rl.core.process_identity import ProcessIdentity
from tests.chaos.stack.tenancy import GRACE, Tenancy

FIRST, SECOND = ProcessIdentity(10, "a"), ProcessIdentity(11, "b")
ROOM, OTHER = ProcessIdentity(20, "c"), ProcessIdentity(21, "d")


def test_a_sandbox_may_stay_as_long_as_its_owner_lives() -> None:
    tenancy = Tenancy()
    for now in range(100):
        tenancy.see(now, FIRST, [ROOM], alive=True)
    assert tenancy.overstayed == set()


def test_a_sandbox_that_leaves_soon_after_its_owner_has_not_overstayed() -> None:
    tenancy = Tenancy()
    tenancy.see(0, FIRST, [ROOM], alive=True)
    tenancy.see(1, FIRST, [ROOM], alive=False)
    tenancy.see(GRACE, SECOND, [OTHER], alive=True)
    tenancy.see(3 * GRACE, SECOND, [OTHER], alive=True)
    assert tenancy.overstayed == set()


def test_a_sandbox_that_is_there_long_after_its_owner_has_overstayed() -> None:
    tenancy = Tenancy()
    tenancy.see(0, FIRST, [ROOM], alive=True)
    tenancy.see(1, FIRST, [ROOM], alive=False)
    tenancy.see(2 * GRACE, FIRST, [ROOM], alive=False)
    assert tenancy.overstayed == {ROOM}


def test_a_new_owner_does_not_take_over_the_sandboxes_of_the_last() -> None:
    tenancy = Tenancy()
    tenancy.see(0, FIRST, [ROOM], alive=True)
    tenancy.see(1, SECOND, [ROOM, OTHER], alive=True)
    tenancy.see(2 * GRACE, SECOND, [ROOM, OTHER], alive=True)
    assert tenancy.overstayed == {ROOM}
