"""The matrix of faults: what befalls a run, at which moment; and what must be true afterwards in every cell.

Always asked of a cell: the status is true within five seconds of the fault, the run comes to its end with every step
taken once, by itself or after `resume`, and no process is left.
"""

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.run_state import Phase, RunState
from hermes_rl.orchestration.status.derive import LivePhase
from hermes_rl.orchestration.supervision.commands import stop_run
from tests.chaos.runs.stage import SERVICES, Stage

TRUE_WITHIN = 5.0
STEPS = 6
RUNNING, STOPPING, EXPORTING = "running", "stopping", "exporting"
STARTING = tuple(f"starting {part}" for part in SERVICES)
ROOT = Path(__file__).parents[3]


@dataclass(frozen=True, slots=True)
class Cell:
    fault: str
    target: str
    moment: str

    def __str__(self) -> str:
        return f"{self.fault} {self.target} while {self.moment}"


@dataclass(frozen=True, slots=True)
class Outcome:
    cell: str
    true_after: float
    seconds: float
    breach: str | None


def matrix() -> list[Cell]:
    return [
        *(Cell("kill", target, moment) for moment in (*STARTING, RUNNING, STOPPING) for target in _there_at(moment)),
        *(Cell("kill", target, EXPORTING) for target in ("supervisor", "part engine", "part export", "everything")),
        *(Cell("freeze", f"part {part}", RUNNING) for part in SERVICES),
        Cell("freeze", "supervisor", RUNNING),
        *(Cell("take the port of", part, RUNNING) for part in ("engine", "api", "trainer")),
        *(Cell("fill the disk under", "the run", moment) for moment in ("starting trainer", RUNNING)),
        *(Cell("give a bad configuration to", part, "starting") for part in SERVICES),
        Cell("raise in setup of", "env", "starting"),
        *(Cell("stop", "the run", moment) for moment in STARTING),
        Cell("kill", "manager", "starting"),
        Cell("kill", "manager", "before the supervisor"),
    ]


def sample(number: int, seed: int) -> list[Cell]:
    """Some cells, each kind before any comes twice; freezing a supervisor takes half a minute to be seen."""
    cells = [cell for cell in matrix() if cell.fault != "freeze"]
    random.Random(seed).shuffle(cells)
    first = list({_kind(cell): cell for cell in reversed(cells)}.values())
    return (first + [cell for cell in cells if cell not in first])[:number]


def _kind(cell: Cell) -> str:
    """What is killed, or what else befalls it."""
    return cell.target.partition(" ")[0] if cell.fault == "kill" else cell.fault


def _there_at(moment: str) -> list[str]:
    parts: tuple[str, ...] = SERVICES
    if moment in STARTING:
        part = moment.removeprefix("starting ")
        parts = ("engine", "api") if part in {"engine", "api"} else SERVICES[: SERVICES.index(part) + 1]
    single = ["supervisor", *(f"{what} {part}" for part in parts for what in ("keeper", "part"))]
    return [*single, "supervisor and keepers", "everything"]


def run_cell(cell: Cell, home: Path) -> Outcome:
    """One cell in a home of its own."""
    began = time.monotonic()
    os.environ["HERMES_HOME"] = str(home)
    stage, true_after, breach = Stage("faulty"), 0.0, None
    try:
        with _ground(cell, home):
            stage = Stage("faulty", _manner(cell), **_patience(cell))
            true_after = FAULTS[cell.fault](stage, cell)
            breach = _after(stage)
    except (AssertionError, OSError, KeyError, subprocess.SubprocessError) as error:
        breach = f"{type(error).__name__}: {error}"
    finally:
        stage.kill_all()
    return Outcome(str(cell), round(true_after, 2), round(time.monotonic() - began, 1), breach)


def _after(stage: Stage) -> str | None:
    """What is wrong when all is over; None if nothing is."""
    stage.await_nothing_left()
    steps = (stage.places.folder / "steps.txt").read_text().split()
    if steps != [str(step) for step in range(1, STEPS + 1)]:
        return f"the steps are {steps}"
    return None if stage.places.weights.is_dir() else "there are no weights"


def _kill(stage: Stage, cell: Cell) -> float:
    if cell.target == "manager":
        return _kill_manager(stage, cell)
    _reach(stage, cell.moment)
    stage.release()
    kind, _, part = cell.target.partition(" ")
    if cell.target == "everything":
        stage.kill_all()
    elif cell.target == "supervisor and keepers":
        keepers = [stage.keeper(part) for part in SERVICES if stage.note(part)]
        for identity in (stage.supervisor(), *keepers):
            identity.signal(signal.SIGKILL)
    else:
        _identity(stage, kind, part).signal(signal.SIGKILL)
    true_after = stage.await_truth(TRUE_WITHIN)
    _to_the_end(stage)
    return true_after


def _identity(stage: Stage, kind: str, part: str) -> ProcessIdentity:
    if kind == "supervisor":
        return stage.supervisor()
    return stage.keeper(part) if kind == "keeper" else stage.process(part)


def _kill_manager(stage: Stage, cell: Cell) -> float:
    early = cell.moment != "starting"
    program = f"""
import os, signal
from hermes_rl.orchestration.supervision import commands
from tests.chaos.runs.stage import Stage
if {early}:
    commands._start_supervisor = lambda paths: os.kill(os.getpid(), signal.SIGKILL)
Stage({stage.run_id!r}, {_manner(cell)!r}).start()
os.kill(os.getpid(), signal.SIGKILL)
"""
    path = os.pathsep.join((str(ROOT), str(ROOT / "src")))
    ended = subprocess.run([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path}, check=False)
    if ended.returncode != -signal.SIGKILL:
        raise AssertionError(f"the manager ended with {ended.returncode}")
    true_after = stage.await_truth(TRUE_WITHIN)
    if early:
        stage.resume()
    _to_the_end(stage)
    return true_after


def _freeze(stage: Stage, cell: Cell) -> float:
    _reach(stage, cell.moment)
    stage.release()
    kind, _, part = cell.target.partition(" ")
    _identity(stage, kind, part).signal(signal.SIGSTOP)
    true_after = stage.await_truth(TRUE_WITHIN)
    _to_the_end(stage)
    return true_after


def _take_port(stage: Stage, cell: Cell) -> float:
    _reach(stage, cell.moment)
    before = stage.state
    url = (before.parts[cell.target].url or "") if before else ""
    port = int(url.rpartition(":")[2])
    stage.keeper(cell.target).signal(signal.SIGKILL)
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

        def taken() -> bool:
            with suppress(OSError):
                thief.bind(("127.0.0.1", port))
                return True
            return False

        stage.await_(taken, 10, "the port")
        thief.listen()
        true_after = stage.await_truth(TRUE_WITHIN)
        stage.release()
        _to_the_end(stage)
    return true_after


def _fill_disk(stage: Stage, cell: Cell) -> float:
    _reach(stage, cell.moment)
    ballast = stage.places.folder.parents[1] / "ballast"
    with suppress(OSError), ballast.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    stage.release()
    true_after = stage.await_truth(TRUE_WITHIN)
    # Long enough for parts to fail by it, and for the run to give up; what it says must stay true.
    end = time.monotonic() + 4
    while time.monotonic() < end:
        stage.await_truth(TRUE_WITHIN)
        time.sleep(0.2)
    stop_run(stage.run_id)
    stage.await_phase(Phase.STOPPED, Phase.FAILED)
    stage.await_nothing_left()
    ballast.unlink()
    stage.resume()
    _to_the_end(stage)
    return true_after


def _bad_configuration(stage: Stage, cell: Cell) -> float:
    state, true_after = _failed(stage, f"{cell.target} was told to fail")
    if state.parts[cell.target].restarts:
        raise AssertionError("it was tried again")
    _restored(stage)
    return true_after


def _raise_in_setup(stage: Stage, cell: Cell) -> float:
    _, true_after = _failed(stage, "setup fails")
    _restored(stage)
    return true_after


def _failed(stage: Stage, why: str) -> tuple[RunState, float]:
    """A run that cannot but fail, and says why."""
    stage.hold()
    stage.start()
    state = stage.await_phase(Phase.FAILED)
    true_after = stage.await_truth(TRUE_WITHIN)
    if why not in (state.reason or ""):
        raise AssertionError(f"the reason does not say why: {state.reason}")
    return state, true_after


def _restored(stage: Stage) -> None:
    """What it failed by is gone, and it goes on to its end."""
    stage.await_nothing_left()
    stage.behave(_quick())
    stage.release()
    stage.resume()
    _to_the_end(stage)


def _stop(stage: Stage, cell: Cell) -> float:
    _reach(stage, cell.moment)
    stop_run(stage.run_id)
    stop_run(stage.run_id)
    stage.await_phase(Phase.STOPPED)
    true_after = stage.await_truth(TRUE_WITHIN)
    stage.await_nothing_left()
    stage.release()
    stage.resume()
    _to_the_end(stage)
    return true_after


FAULTS: dict[str, Callable[[Stage, Cell], float]] = {
    "kill": _kill,
    "freeze": _freeze,
    "take the port of": _take_port,
    "fill the disk under": _fill_disk,
    "give a bad configuration to": _bad_configuration,
    "raise in setup of": _raise_in_setup,
    "stop": _stop,
}


def _quick() -> dict[str, Any]:
    return {"trainer": {"steps": STEPS, "seconds": 0.05}}


def _manner(cell: Cell) -> dict[str, Any]:
    manner = _quick()
    if cell.moment in STARTING:
        part = cell.moment.removeprefix("starting ")
        manner[part] = {**manner.get(part, {}), "slow": 1.5}
    if cell.moment == STOPPING:
        manner["env"] = {"lingers": 1.5}
    if cell.moment == EXPORTING:
        manner["export"] = {"takes": 1.5}
    if cell.fault == "give a bad configuration to":
        manner[cell.target] = {"exit": 2}
    if cell.fault == "raise in setup of":
        manner[cell.target] = {"raises": True}
    return manner


def _patience(cell: Cell) -> dict[str, float]:
    # A part that does not answer is given up on by this deadline.
    return {"ready_within": 3.0} if cell.fault == "freeze" else {}


def _reach(stage: Stage, moment: str) -> None:
    """Start the run and wait for the moment; the trainer takes no step before it is released, but for an export."""
    if moment != EXPORTING:
        stage.hold()
    stage.start()
    if moment in STARTING:
        part = moment.removeprefix("starting ")
        stage.await_(lambda: stage.note(part).get("process"), saying=f"{part} begun")
        stage.await_(lambda: stage.state and stage.state.parts[part].process, saying=f"{part} seen")
    elif moment == EXPORTING:
        stage.await_(lambda: stage.note("export").get("process"), saying="the export")
    else:
        stage.await_phase(Phase.RUNNING)
        if moment == STOPPING:
            stop_run(stage.run_id)
            stage.await_phase(Phase.STOPPING)


def _to_the_end(stage: Stage) -> None:
    """To FINISHED: by itself, or by `resume` from wherever it ended."""

    def over() -> LivePhase | None:
        phase = stage.phase
        return phase if phase.ended and not stage.processes() else None

    for _ in range(3):
        phase = stage.await_(over, 90, "an end")
        if phase is LivePhase.FINISHED:
            return
        if phase is LivePhase.FAILED:
            raise AssertionError(f"it failed: {stage.picture()}")
        stage.release()
        stage.resume()
        stage.await_(lambda: not stage.phase.ended or stage.phase is LivePhase.FINISHED, 30, "resumed")
    raise AssertionError(f"it never finished: {stage.picture()}")


@contextmanager
def _ground(cell: Cell, home: Path) -> Iterator[None]:
    """A small disk of its own where it is to be filled."""
    home.mkdir(parents=True, exist_ok=True)
    if cell.fault != "fill the disk under":
        yield
        return
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(home)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(home)], check=True)
