from typing import Any

from hermes_rl.api.atropos.queue_view import QueueView, environment_status
from hermes_rl.store.database.registrations import EnvironmentRow, TrainerRow
from hermes_rl.store.database.views import Backlog, Status


def environment(number: int, *, group_size: int = 4, weight: float = 1.0, minimum: float = 0.0) -> EnvironmentRow:
    settings = {"max_token_length": 100}
    return EnvironmentRow(number, "e", str(number), group_size, weight, minimum, settings, 0.0, True, 0, None)


def told(waiting: dict[int, tuple[int, int]], asking: EnvironmentRow, *others: EnvironmentRow) -> dict[str, Any]:
    """What the asking one is told when so many groups and rollouts of each environment wait."""
    backlog = {number: Backlog(groups, rollouts) for number, (groups, rollouts) in waiting.items()}
    look = QueueView(Status(0, backlog, {}, None, TrainerRow("atropos", 16)), [asking, *others], 3)
    return environment_status(look, asking, [asking, *others])


def test_the_queue_is_counted_in_groups_of_the_one_who_asks() -> None:
    assert told({1: (2, 8), 2: (3, 12)}, environment(1), environment(2))["queue_size"] == 5


def test_what_others_owe_to_their_minimum_does_not_count() -> None:
    assert told({2: (3, 12)}, environment(1), environment(2, minimum=0.5))["queue_size"] == 1


def test_its_own_groups_are_told_apart() -> None:
    assert told({1: (2, 8), 2: (3, 12)}, environment(1), environment(2))["self_queue_size"] == 2


def test_larger_groups_than_announced_are_seen() -> None:
    assert told({1: (2, 16)}, environment(1))["max_group_size"] == 8


def test_minimums_leave_the_rest_unallocated() -> None:
    assert told({}, environment(1, minimum=0.25), environment(2, minimum=0.25))["unallocated_fraction"] == 0.5


def test_weights_share_the_inference() -> None:
    assert told({}, environment(1, weight=3.0), environment(2))["env_weight"] == 0.75


def test_no_environment_is_starved() -> None:
    assert told({}, environment(1, weight=0.0), environment(2))["env_weight"] == 0.01
