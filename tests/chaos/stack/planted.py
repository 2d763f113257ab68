"""A small history that kept every promise, in a real store and lineage, and faults to plant in it.

    python -m tests.chaos.stack.planted FOLDER PLANT

In the namespaces of a chaos: a whole part whose run is this history, with one fault planted in it.
"""

import asyncio
import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from unittest.mock import patch

from hermes_rl.orchestration.run_state import Phase, RunState
from hermes_rl.store.database.store import open_store
from hermes_rl.training.checkpoints import Checkpoint, Lineage
from tests.chaos.stack import part
from tests.chaos.stack.referee import Referee
from tests.chaos.stack.scene import Scene
from tests.chaos.trajectory.grounds import Disk
from tests.store.database.making import make_failed, make_group, make_rollout, with_trainer

SAID = "ab!?"
WORTH = 0.5
DRAWS, STEPS = 4, 2
FINISHED = RunState("run", Phase.FINISHED, None)


def write_history(folder: Path, spool: Path) -> None:
    """Four groups of two rollouts and one that failed; two batches learned from, each by one step."""
    (folder / "weights").mkdir(parents=True)
    spool.mkdir(parents=True)
    lineage = Lineage(folder / "lineage.jsonl")
    lineage.add(Checkpoint(0, 0, (), "state", "sampler"))

    async def written() -> None:
        async with open_store(folder / "trajectories.db") as store:
            environment = await with_trainer(store, batch_size=4)
            for draw in range(DRAWS):
                said = [{"role": "user", "content": "say"}, {"role": "assistant", "content": SAID}]
                rollouts = (*(make_rollout(index, messages=said, score=WORTH) for index in range(2)), make_failed(2))
                await store.add(environment, make_group(id=f"g{draw}", draw=draw, rollouts=rollouts))
            await store.heartbeat(environment, running=0, cursor=DRAWS)
            for step in range(1, STEPS + 1):
                batch = await store.lease("trainer", seconds=60)
                assert batch is not None
                lineage.add(Checkpoint(step, step, (batch.id,), "state", "sampler"))
                await store.ack(batch.id)

    asyncio.run(written())


def _change(folder: Path, *statements: str) -> None:
    with closing(sqlite3.connect(folder / "trajectories.db")) as books, books:
        for statement in statements:
            books.execute(statement)


def _lose_a_group(folder: Path) -> None:
    _change(folder, "DELETE FROM groups WHERE draw = 3", "DELETE FROM outcomes WHERE place = 4")
    _change(folder, "DELETE FROM batch_groups WHERE place = 4")


def _lose_from_the_queue(folder: Path) -> None:
    _change(folder, "DELETE FROM outcomes WHERE place = 4")


def _forget_a_step(folder: Path) -> None:
    lines = (folder / "lineage.jsonl").read_text().splitlines()
    (folder / "lineage.jsonl").write_text("\n".join(lines[:-1]) + "\n")


def _learn_twice(folder: Path) -> None:
    last = json.loads((folder / "lineage.jsonl").read_text().splitlines()[-1])
    with (folder / "lineage.jsonl").open("a") as file:
        file.write(json.dumps({**last, "final": True}) + "\n")


def _store_twice(folder: Path) -> None:
    _change(folder, "UPDATE groups SET draw = 2 WHERE draw = 3")


def _put_into_two_batches(folder: Path) -> None:
    _change(folder, "INSERT INTO batch_groups (batch, place) VALUES (1, 4)")


def _score_a_failure(folder: Path) -> None:
    _change(folder, "UPDATE rollouts SET score = 0.0 WHERE score IS NULL AND place = 1")


def _score_nothing(folder: Path) -> None:
    _change(folder, "UPDATE rollouts SET score = 0.0 WHERE number = 0 AND place = 1")


def _leave_a_sandbox(folder: Path) -> None:
    ledgers = Path(os.environ["HERMES_HOME"]) / "rl" / "sandboxes"
    ledgers.mkdir(parents=True)
    (ledgers / "1-a.jsonl").write_text('{"name": "gone"}\n{"name": "left"}\n{"name": "gone", "ended": true}\n{"na')


def _leave_a_process(_folder: Path) -> None:
    subprocess.Popen(["sleep", "61"])


# Each with the promise that it breaks, and how often.
PLANTS: dict[str, tuple[Callable[[Path], None], str, int]] = {
    "a group lost": (_lose_a_group, "lost", 2),
    "a group lost from the queue": (_lose_from_the_queue, "lost", 1),
    "a step forgotten": (_forget_a_step, "lost", 1),
    "a batch learned from twice": (_learn_twice, "doubled", 1),
    "a draw stored twice": (_store_twice, "doubled", 1),
    "a group in two batches": (_put_into_two_batches, "doubled", 1),
    "a failure scored": (_score_a_failure, "scored_faults", 1),
    "an empty answer scored": (_score_nothing, "scored_faults", 1),
    "a sandbox left": (_leave_a_sandbox, "leaked", 1),
}
ONLY_OF_A_PART: dict[str, tuple[Callable[[Path], None], str, int]] = {
    "a process left": (_leave_a_process, "leaked", 1),
}


def main(folder: Path, planted: str) -> None:
    def begin(scene: Scene, _steps: int, _seed: int) -> None:
        write_history(scene.places.folder, scene.spool)
        FINISHED.write(scene.places.state)
        if planted:
            (PLANTS | ONLY_OF_A_PART)[planted][0](scene.places.folder)

    def carry_out(_referee: Referee, _disk: Disk, _seed: int) -> None:
        """Nothing befalls it."""

    with (
        patch.object(Scene, "begin", begin),
        patch.object(Referee, "carry_out", carry_out),
        patch.object(part, "steps_for", lambda _minutes: STEPS),
        patch.object(part, "LEFT", 1.0),
    ):
        part.main(folder, 0, 1.0, 0, Path("model"), Path("engine"))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
