"""What a selection removes, decided from facts alone."""

import pytest

from hermes_rl.orchestration.cleanup.plan import DiskItem, ItemKind, Selection, disk_bytes, plan

DAY = 86_400.0
NOW = 1_000 * DAY
ITEMS = [
    DiskItem(ItemKind.RUN, "old", last_used=NOW - 30 * DAY),
    DiskItem(ItemKind.RUN, "new", last_used=NOW - DAY),
    DiskItem(ItemKind.RUN, "live", last_used=NOW - 30 * DAY, keep="running"),
    DiskItem(ItemKind.IMAGE, "old-image", last_used=NOW - 30 * DAY),
    DiskItem(ItemKind.LOGS, "old", last_used=NOW),
    DiskItem(ItemKind.LEFTOVER, "half", last_used=NOW),
]


def removed(selection: Selection) -> set[tuple[ItemKind, str]]:
    return {(item.kind, item.name) for item in plan(ITEMS, selection, NOW).remove} - {(ItemKind.LEFTOVER, "half")}


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (Selection(names=frozenset({"new"})), {(ItemKind.RUN, "new")}),
        (Selection(kinds=frozenset({ItemKind.IMAGE})), {(ItemKind.IMAGE, "old-image")}),
        (Selection(kinds=frozenset({ItemKind.IMAGE}), older_than=31 * DAY), set()),
        (Selection(kinds=frozenset({ItemKind.LOGS})), {(ItemKind.LOGS, "old")}),
    ],
)
def test_all_criteria_must_hold(selection: Selection, expected: set[tuple[ItemKind, str]]) -> None:
    assert removed(selection) == expected


def test_only_what_was_last_used_longer_ago_is_older() -> None:
    assert removed(Selection(kinds=frozenset({ItemKind.RUN, ItemKind.IMAGE}), older_than=14 * DAY)) == {
        (ItemKind.RUN, "old"),
        (ItemKind.LOGS, "old"),
        (ItemKind.IMAGE, "old-image"),
    }


def test_what_must_be_kept_is_told_and_not_removed() -> None:
    chosen = plan(ITEMS, Selection(names=frozenset({"live"})), NOW)
    assert [item.name for item in chosen.kept] == ["live"]
    assert [item.name for item in chosen.remove] == ["half"]


def test_a_run_takes_its_logs_along() -> None:
    assert removed(Selection(kinds=frozenset({ItemKind.RUN}), older_than=14 * DAY)) == {
        (ItemKind.RUN, "old"),
        (ItemKind.LOGS, "old"),
    }


def test_a_run_that_is_kept_keeps_its_logs() -> None:
    items = [DiskItem(ItemKind.RUN, "live", keep="running"), DiskItem(ItemKind.LOGS, "live")]
    assert plan(items, Selection(kinds=frozenset({ItemKind.RUN})), NOW).remove == []


def test_leftovers_go_with_any_removal() -> None:
    chosen = plan(ITEMS, Selection(names=frozenset({"new"})), NOW)
    assert "half" in {item.name for item in chosen.remove}


def test_a_file_that_two_items_share_counts_once_in_their_total() -> None:
    shared = frozenset({(1, 2, 100)})
    items = [DiskItem(ItemKind.CI, "a", bytes=150, links=shared), DiskItem(ItemKind.CI, "b", bytes=100, links=shared)]
    assert disk_bytes(items) == 150
