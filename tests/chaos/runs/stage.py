"""A run of stand-ins, and an eye on it that does not go by what it says of itself."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.atomic_json import read_atomic_json
from hermes_rl.orchestration.run_file import EnvironmentEntry, RunFile
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.run_state import Phase, RunState, read_state
from hermes_rl.orchestration.status.derive import LivePhase, live_phase
from hermes_rl.orchestration.status.inspect import gather_facts
from hermes_rl.orchestration.supervision.commands import resume_run, start_run
from hermes_rl.orchestration.supervision.process_tags import lock_is_free, tagged_processes
from hermes_rl.orchestration.supervision.run_plan import ComponentPlan, ComponentTimeouts, Role, RunPlan

STAND_IN = Path(__file__).with_name("stand_in.py")
PATIENCE = ComponentTimeouts(ready_within=30.0, stop_within=3.0, first_pause=0.1, longest_pause=0.5, most_failures=4)
SERVICES = ("engine", "api", "trainer", "env")


def run_file(run_id: str) -> RunFile:
    entry = EnvironmentEntry(name="env", reference="env.py")
    return RunFile(run_id=run_id, name=run_id, preset="stand-in", environments=(entry,))


def plan(run_id: str, **patience: Any) -> RunPlan:
    folder = str(RunPaths(run_id).folder)
    how = replace(PATIENCE, **patience)

    def part(name: str, role: Role, *words: str, needs: tuple[str, ...] = ()) -> ComponentPlan:
        command = (sys.executable, "-S", str(STAND_IN), name, folder, *words)
        return ComponentPlan(name, role, command, needs, patience=how)

    parts = (
        part("engine", Role.ENGINE, "{port}"),
        part("api", Role.API, "{port}"),
        part("trainer", Role.TRAINER, "{port}", "{url:api}", needs=("engine", "api")),
        part("env", Role.ENVIRONMENT, "0", "{url:api}", needs=("api", "trainer")),
        part("export", Role.EXPORT, "0", "{url:engine}", needs=("engine",)),
    )
    return RunPlan(parts, folder="/")


class Stage:
    """One run of stand-ins; `manner` is how they behave."""

    def __init__(self, run_id: str, manner: dict[str, Any] | None = None, **patience: Any) -> None:
        self.run_id, self.places, self._patience = run_id, RunPaths(run_id), patience
        self._manner = manner or {}

    def start(self) -> None:
        self.behave(self._manner)
        start_run(run_file(self.run_id), plan=plan(self.run_id, **self._patience))

    def behave(self, manner: dict[str, Any]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.write_text(json.dumps(manner))

    def hold(self) -> None:
        """No steps until it is let go."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._file.with_suffix(".hold").touch()

    def release(self) -> None:
        self._file.with_suffix(".hold").unlink(missing_ok=True)

    def resume(self) -> None:
        resume_run(self.run_id, plan=plan(self.run_id, **self._patience))

    @property
    def _file(self) -> Path:
        return self.places.folder.parents[1] / f"manner-{self.run_id}.json"

    @property
    def state(self) -> RunState | None:
        return read_state(self.places.state)

    @property
    def phase(self) -> LivePhase:
        return live_phase(gather_facts(self.run_id))

    @property
    def steps(self) -> int:
        with suppress(FileNotFoundError):
            return len((self.places.folder / "steps.txt").read_text().split())
        return 0

    def note(self, part: str) -> dict[str, Any]:
        return read_atomic_json(self.places.part(part) / "note.json") or {}

    def keeper(self, part: str) -> ProcessIdentity:
        return ProcessIdentity(**self.note(part)["keeper"])

    def process(self, part: str) -> ProcessIdentity:
        return ProcessIdentity(**(self.note(part)["process"] or {"pid": 0, "began": ""}))

    def supervisor(self) -> ProcessIdentity:
        state = self.state
        return (state and state.supervisor) or ProcessIdentity(0, "")

    def processes(self) -> list[int]:
        """All that bear the mark of the run, and its supervisor."""
        found = tagged_processes(self.places.folder)
        supervisor = self.supervisor()
        return [*found, *([supervisor.pid] if supervisor.alive() else [])]

    def kill_all(self) -> None:
        """As when the machine goes down: nobody sees the others die."""
        pids = [self.supervisor().pid if self.supervisor().alive() else 0, *tagged_processes(self.places.folder)]
        for pid in pids:
            with suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGSTOP)
        for pid in pids + tagged_processes(self.places.folder):
            with suppress(ProcessLookupError):
                if pid:
                    os.kill(pid, signal.SIGKILL)

    def lies(self) -> list[str]:
        """What is said of the run at this moment and is not so."""
        phase, living, state = self.phase, self.processes(), self.state
        found = []
        if living and phase.ended:
            found.append(f"{phase}, but {len(living)} processes live")
        coming = gather_facts(self.run_id).supervisor_starting
        if not living and lock_is_free(self.places.lock) and not phase.ended and not coming:
            found.append(f"{phase}, but nothing lives")
        # Of a run whose supervisor is gone, the status says itself what lives.
        spoken_for = state.parts if state is not None and self.supervisor().alive() else {}
        for name, part in spoken_for.items():
            if part.state == "ready" and not (part.process and part.process.alive()):
                found.append(f"{name} is said to be ready, and is dead")
        if state is not None and state.phase.ended and any(part.process for part in state.parts.values()):
            found.append("it has ended with a process")
        return found

    def await_(self, what: Callable[[], Any], seconds: float = 60.0, saying: str = "") -> Any:
        deadline = time.monotonic() + seconds
        while not (found := what()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {seconds:g} s: {saying or what}; {self.picture()}")
            time.sleep(0.05)
        return found

    def await_phase(self, *phases: Phase, seconds: float = 60.0) -> RunState:
        def there() -> RunState | None:
            state = self.state
            return state if state is not None and state.phase in phases else None

        state: RunState = self.await_(there, seconds, f"phase {phases}")
        return state

    def await_truth(self, seconds: float = 5.0) -> float:
        """Seconds until nothing false is said, twice in a row."""
        began = time.monotonic()
        self.await_(lambda: not self.lies() and not self.lies(), seconds, "the truth")
        return time.monotonic() - began

    def await_nothing_left(self, seconds: float = 60.0) -> None:
        self.await_(lambda: not self.processes() and lock_is_free(self.places.lock), seconds, "no process left")

    def picture(self) -> str:
        state = self.state
        if state is None:
            return "nothing said"
        parts = {name: (part.state.value, part.problem) for name, part in state.parts.items()}
        living = f"live: {self.phase}, {len(self.processes())} processes, lock free: {lock_is_free(self.places.lock)}"
        return f"{state.phase} ({state.reason}) {parts}, {living}"
