"""What each process of a run holds at a moment: rollouts, groups, batches, requests, commands in sandboxes.

Always true: it is read from the books and from /proc, never asked of the process itself; None means that nothing would
be missed if the process were gone.
"""

from dataclasses import asdict, dataclass
from typing import Any

from tests.chaos.stack.scene import Scene, busy_sandboxes, sandboxes


@dataclass(frozen=True, slots=True)
class Work:
    """Under way in the whole run. Rollouts are those of groups that were begun; `requests` wait at the engine."""

    rollouts: int = 0
    queued: int = 0
    batches: int = 0
    requests: int = 0
    sandboxes: int = 0
    commands: int = 0

    def told(self) -> dict[str, Any]:
        return asdict(self)


def work_of(scene: Scene) -> Work:
    [(running,)] = scene.ask("SELECT COALESCE(SUM(running), 0) FROM environments") or [(0,)]
    [(queued,)] = scene.ask("SELECT COUNT(*) FROM queue") or [(0,)]
    [(batches,)] = scene.ask("SELECT COUNT(*) FROM batches WHERE state = 'leased'") or [(0,)]
    [(requests,)] = scene.ask_engine("SELECT COUNT(*) FROM futures WHERE LOWER(status) = 'pending'") or [(0,)]
    return Work(running, queued, batches, requests, len(sandboxes()), len(busy_sandboxes()))


def held_by(target: str, work: Work) -> str | None:
    """In words; None when it holds nothing."""
    name = target.removeprefix("keeper ").removeprefix("guard ")
    rollouts = f"{work.rollouts} rollouts" if work.rollouts else None
    batch = "a batch on loan" if work.batches else None
    requests = f"{work.requests} requests" if work.requests else None
    commands = f"{work.commands} commands in sandboxes" if work.commands else None
    queued = f"{work.queued} groups" if work.queued else None
    holds = {
        "engine": (requests,),
        "engine server": (requests,),
        "engine worker": (requests,),
        "api": (queued, batch, rollouts),
        "trainer": (batch, requests),
        "env": (commands, rollouts if work.sandboxes or work.requests else None),
        "sandbox": ("a command" if work.commands else None,),
    }
    # The supervisor, the disk, the whole network: whatever is under way is theirs.
    held = holds.get(name, (commands, requests, batch, queued))
    return ", ".join(filter(None, held)) or None
