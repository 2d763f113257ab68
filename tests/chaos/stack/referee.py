"""The referee of a chaos: strikes as the schedule says, writes down what was hit, and watches the run get over it.

Always true: a fault is struck when its turn has come and the one before it was got over, or given up on; what was
struck is on disk at once; the run is only ever looked at.
"""

import json
import random
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.run_state import Phase
from tests.chaos.stack.evidence import ledgered
from tests.chaos.stack.held import Work, held_by, work_of
from tests.chaos.stack.pacing import QUICK, paced
from tests.chaos.stack.scene import Scene, sandboxes
from tests.chaos.stack.schedule import Fault
from tests.chaos.stack.strikes import MissedError, strike
from tests.chaos.stack.tenancy import Tenancy
from tests.chaos.trajectory.grounds import Disk

# A victim that holds nothing after this is struck all the same.
PATIENCE = 30.0
TRIES = 3
RECOVERY = 240.0
START, FINISH = 900.0, 900.0
TICK, LOOK_EVERY = 0.05, 0.5


class EndedError(Exception):
    """The run is over before the chaos is."""


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault as it went. `held` is in words, None when its victim had nothing; `work` all that was under way.

    `recovered` are the seconds from its end until every part was ready and another group had come in; None if never.
    """

    number: int
    kind: str
    form: str
    target: str
    at: float
    seconds: float
    amount: float
    step: int
    held: str | None
    work: dict[str, Any]
    recovered: float | None
    missed: str | None = None


class Referee:
    """`struck` are the faults so far, `sandbox_names` all that stood in a ledger."""

    def __init__(self, folder: Path, scene: Scene, faults: tuple[Fault, ...], minutes: float, steps: int) -> None:
        self._folder, self._scene, self._faults = folder, scene, faults
        self._seconds, self._steps = minutes * 60, steps
        self._began = 0.0
        self._next_look = 0.0
        self._recovering = False
        self._stored = 0
        self.sandbox_names: set[str] = set()
        self.tenancy = Tenancy()
        self.struck: list[Struck] = []

    def carry_out(self, disk: Disk, seed: int) -> None:
        """Every fault of the schedule in its turn; then in peace to the end."""
        scene = self._scene
        scene.await_phase(Phase.RUNNING, Phase.FAILED, seconds=START)
        self._began = time.monotonic()
        draw = random.Random(seed)
        with suppress(EndedError):
            for fault in self._faults:
                self._until(lambda fault=fault: self._elapsed >= fault.at, self._seconds * 10)  # type: ignore[misc]
                self._strike(fault, disk, draw)
        self._seconds = 0.0
        scene.set_pace(QUICK)
        with suppress(EndedError):
            self._until(lambda: False, FINISH)

    @property
    def _elapsed(self) -> float:
        return time.monotonic() - self._began

    def _strike(self, fault: Fault, disk: Disk, draw: random.Random) -> None:
        struck = self._struck(fault, disk, draw)
        # A victim may be gone between the look at it and the strike: another is waited for.
        for _ in range(TRIES):
            if struck.missed is None:
                break
            struck = self._struck(fault, disk, draw)
        over, groups, self._recovering = time.monotonic(), self._groups(), True
        try:
            if self._until(lambda: self._scene.is_whole() and self._groups() > groups, RECOVERY):
                struck = replace(struck, recovered=round(time.monotonic() - over, 2))
        finally:
            # Also of a fault that the run did not survive.
            self._recovering = False
            self._note(struck)

    def _note(self, struck: Struck) -> None:
        self.struck.append(struck)
        with (self._folder / "faults.jsonl").open("a") as file:
            file.write(json.dumps(asdict(struck)) + "\n")
        told = struck.missed or f"holding {struck.held or 'nothing'}, whole again after {struck.recovered} s"
        _tell(f"{len(self.struck)}/{len(self._faults)} at {struck.at:.0f} s, step {struck.step}: {struck.kind}, {told}")

    def _struck(self, fault: Fault, disk: Disk, draw: random.Random) -> Struck:
        """The fault when it is over, once its victim holds work or has held none for long."""
        work, held = Work(), None

        def is_busy() -> bool:
            nonlocal work, held
            work = work_of(self._scene)
            held = held_by(fault.kind.target, work)
            return held is not None

        self._until(is_busy, PATIENCE)
        at, step, missed, kind = round(self._elapsed, 1), self._scene.step, None, fault.kind
        try:
            # The end of the run in the middle of it is seen again by whoever waits next.
            with suppress(EndedError):
                strike(self._scene, disk, fault, draw, self._bear)
        except MissedError as error:
            missed = str(error)
        measure = (fault.seconds, fault.amount, step, held, work.told(), None, missed)
        return Struck(fault.number, str(kind), kind.form, kind.target, at, *measure)

    def _groups(self) -> int:
        """In the store, as far as it could be read."""
        [(count,)] = self._scene.ask("SELECT COUNT(*) FROM groups") or [(0,)]
        self._stored = max(self._stored, int(count))
        return self._stored

    def _bear(self, seconds: float) -> None:
        self._until(lambda: False, seconds)

    def _until(self, there: Callable[[], bool], seconds: float) -> bool:
        """Whether it came to be; the run is looked after meanwhile."""
        end = time.monotonic() + seconds
        while not there():
            if time.monotonic() > end:
                return False
            self._look_after()
            time.sleep(TICK)
        return True

    def _look_after(self) -> None:
        if time.monotonic() < self._next_look:
            return
        self._next_look = time.monotonic() + LOOK_EVERY
        self.sandbox_names.update(name for _, name in ledgered())
        if self._scene.note("env").get("process"):
            owner = self._scene.process("env")
            self.tenancy.see(time.monotonic(), owner, map(ProcessIdentity.from_pid, sandboxes()), alive=owner.alive())
        state = self._scene.state
        if state is not None and state.phase.ended:
            raise EndedError(state.phase)
        if self._seconds:
            left = self._seconds - self._elapsed
            steps_left = self._steps - self._scene.step
            self._scene.set_pace(paced(left, steps_left, recovering=self._recovering))


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
