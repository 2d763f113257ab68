from hermes_rl.training.version_holds import MAX_HELD_VERSIONS, VersionHolds


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_version_is_held_until_its_last_holder_lets_go() -> None:
    holds = VersionHolds()
    assert holds.hold("a", 3, 60) and holds.hold("b", 3, 60)
    holds.hold("a", 3, 0)
    assert holds.versions == {3}
    holds.hold("b", 3, 0)
    assert holds.versions == set()


def test_a_holder_that_is_not_heard_of_again_holds_nothing_for_long() -> None:
    clock = Clock()
    holds = VersionHolds(clock)
    holds.hold("dead", 3, 60)
    holds.hold("alive", 4, 60)
    clock.now = 50
    holds.hold("alive", 4, 60)
    clock.now = 61
    assert holds.versions == {4}


def test_a_holder_holds_one_version() -> None:
    holds = VersionHolds()
    holds.hold("a", 3, 60)
    holds.hold("a", 4, 60)
    assert holds.versions == {4}


def test_the_number_of_held_versions_is_limited() -> None:
    holds = VersionHolds()
    for version in range(MAX_HELD_VERSIONS):
        assert holds.hold(str(version), version, 60)
    assert not holds.hold("late", 99, 60)
    assert holds.hold("late", 1, 60)
    assert holds.versions == set(range(MAX_HELD_VERSIONS))
