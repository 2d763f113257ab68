"""The evidence of a run that is over: counted in the store, the lineage, the spool, the ledgers and /proc.

Always true: it only reads.
"""

import json
import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from hermes_rl.core.messages import final_response
from hermes_rl.core.paths import rl_home
from hermes_rl.orchestration.run_state import RunState
from hermes_rl.store.codec import decode
from hermes_rl.training.checkpoints import Lineage
from tests.chaos.stack.chaos_env import share
from tests.chaos.stack.verdict import Evidence, Scored

CONTROL_GROUPS = Path("/sys/fs/cgroup")


def gathered(
    folder: Path,
    state: RunState,
    steps: int,
    *,
    seen: Sequence[int],
    spool: Path,
    processes: dict[int, str],
    overstayed: Sequence[str] = (),
    control_groups: Sequence[str] = (),
) -> Evidence:
    """Of the run in this folder."""
    checkpoints = Lineage(folder / "lineage.jsonl").checkpoints
    with closing(sqlite3.connect(folder / "trajectories.db")) as books:

        def rows(sql: str) -> list[tuple[Any, ...]]:
            return books.execute(sql).fetchall()

        return Evidence(
            phase=str(state.phase),
            attempts=state.attempt,
            steps=steps,
            lineage_steps=[one.step for one in checkpoints if not one.final],
            exported=(folder / "weights").is_dir(),
            draws=[draw for (draw,) in rows("SELECT draw FROM groups ORDER BY place")],
            seen=seen,
            in_spool=_draws(spool),
            refused=_draws(spool / "refused"),
            cursor=max((cursor or 0 for (cursor,) in rows("SELECT cursor_draw FROM environments")), default=0),
            trainable=[place for (place,) in rows("SELECT place FROM groups WHERE withheld IS NULL")],
            queued=[place for (place,) in rows("SELECT place FROM queue")],
            outcomes=dict(rows("SELECT place, outcome FROM outcomes")),
            causes=[cause for (cause,) in rows("SELECT cause FROM outcomes WHERE outcome = 'dropped'")],
            batches=dict(rows("SELECT id, state FROM batches")),
            batch_groups=[(batch, place) for batch, place in rows("SELECT batch, place FROM batch_groups")],
            learned=[batch for one in checkpoints for batch in one.batches],
            rollouts=list(_rollouts(books)),
            processes=processes,
            overstayed=overstayed,
            ledgers=[name for living, name in ledgered() if living],
            control_groups=control_groups,
        )


def control_groups() -> set[str]:
    """Those of sandboxes, on the whole machine."""
    # Others' come and go meanwhile, which `walk` bears and `glob` does not.
    found = (Path(folder, name) for folder, names, _ in os.walk(CONTROL_GROUPS) for name in names)
    return {str(path) for path in found if path.name.startswith("hermes-rl-")}


def _draws(folder: Path) -> list[int]:
    return [int(path.stem.partition("-")[2]) for path in folder.glob("*.group")]


def _rollouts(books: sqlite3.Connection) -> Iterator[Scored]:
    """What the store's rows say, beside what was said in the rollouts themselves."""
    told = {
        (place, number): (score, failure)
        for place, number, score, failure in books.execute("SELECT place, number, score, failure FROM rollouts")
    }
    for place, name, data in books.execute(
        "SELECT g.place, g.id, b.data FROM groups g JOIN blobs b ON b.place = g.place"
    ):
        for number, rollout in enumerate(decode(data).rollouts):
            score, failure = told.get((place, number), (rollout.score, None))
            said = any(message.get("role") == "assistant" for message in rollout.messages)
            expected = share(final_response(rollout.messages)) if said else None
            yield Scored(f"{name}/{number}", score, failure, expected)


def ledgered() -> Iterator[tuple[bool, str]]:
    """The sandboxes that stand in ledgers, and whether they never ended; half a line is passed over."""
    for path in (rl_home() / "sandboxes").glob("*.jsonl"):
        with suppress(FileNotFoundError):
            living: dict[str, bool] = {}
            for line in path.read_text().splitlines():
                with suppress(ValueError):
                    entry = json.loads(line)
                    living[entry["name"]] = not entry.get("ended")
            yield from ((alive, name) for name, alive in living.items())
