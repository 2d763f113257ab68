"""Which groups of a file a resumed run generates again: those with a failure that may have passed since.

Such a failure is that of an endpoint, a sandbox host, a tool's server or a judge; never one of the policy or of the
author's code. Always true: the old groups are in FILE.failed.jsonl before they leave the file.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from hermes_rl.console.live_display import write_line
from hermes_rl.core import fast_json
from hermes_rl.core.trajectory import Group
from hermes_rl.rollout.filters import Retries
from hermes_rl.store.records import RecordWriter, read_groups

# Groups without a failed rollout need not be parsed.
FAILED = b'"failure":{'


def set_aside_failed(
    path: Path, retries: Retries, check: Callable[[Group], None], replacing: Callable[[Path], object] = lambda _: None
) -> int:
    """Move the groups to generate again to another file; returns how many there were.

    `check` may refuse the file; `replacing` is called with the file that is about to replace it.
    """
    again = set()
    for group in _failed_groups(path):
        if any(retries.may_pass(rollout.failure) for rollout in group.rollouts):
            check(group)
            again.add((group.draw, group.item_id))
    if not again:
        return 0
    aside, kept = path.with_suffix(".failed.jsonl"), path.with_name(f"{path.name}.part")
    kept.unlink(missing_ok=True)
    moved = 0
    with path.open("rb") as lines, RecordWriter(aside) as old, RecordWriter(kept) as new:
        for line in lines:
            if not line.endswith(b"\n"):
                break
            record: dict[str, Any] = fast_json.loads(line)
            chosen = (record["draw"], record["item_id"]) in again
            moved += chosen
            (old if chosen else new).write(record)
        old.sync()
        new.sync()
    replacing(kept)
    kept.replace(path)
    write_line(
        f"{moved} groups with rollouts that failed for a reason outside the model are generated again; the old ones "
        f"are in {aside}"
    )
    return moved


def _failed_groups(path: Path) -> list[Group]:
    with path.open("rb") as lines:
        if not any(FAILED in line for line in lines):
            return []
    return [group for group in read_groups(path) if any(rollout.failure for rollout in group.rollouts)]
