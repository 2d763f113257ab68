"""The lives of a run's parts: started, asked to end, killed and looked at, through their keepers.

Always true: what is seen of a part comes from its keeper's note and from the system, so a supervisor that takes over
sees what the last one saw; a life is over only when nothing that bears the part's mark is left.
"""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_rl.errors import HermesRLError
from hermes_rl.processes import Identity
from hermes_rl.runs.places import RunPlaces
from hermes_rl.runs.steady import read_steadily, write_steadily
from hermes_rl.runs.supervision.marks import MARK, ORDER, marked, note_of, unmarked_environ
from hermes_rl.runs.supervision.part_life import PartFacts
from hermes_rl.runs.supervision.parts import PartPlan, Plan, filled
from hermes_rl.runs.supervision.ports import free_port, is_taken
from hermes_rl.runs.supervision.probes import Probes
from hermes_rl.tracing.opening import TRACEPARENT

LOG_BYTES, LOG_FILES = 16 * 2**20, 4
LAST_LINES, LAST_CHARACTERS = 12, 1500


@dataclass(slots=True)
class Life:
    """One life of a part, whoever started it. `began` is in Unix seconds."""

    id: str
    keeper: Identity | None
    given: Mapping[str, str]
    port: int | None
    began: float
    process: Identity | None = None
    exit_code: int | None = None
    swept: bool = False
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class Adopted:
    """A part that was started before we were: the addresses it was given, and whether anything of it lives."""

    given: Mapping[str, str]
    lives: bool


class Lives:
    def __init__(self, places: RunPlaces, plan: Plan) -> None:
        self._places, self._plan = places, plan
        self._plans = {part.name: part for part in plan.parts}
        self._lives: dict[str, Life] = {}
        self._handles: list[subprocess.Popen[bytes]] = []
        self._probes = Probes(plan.parts)

    def adopt(self) -> dict[str, Adopted]:
        """Take over what was started before. What nobody keeps is ended."""
        adopted = {}
        for name in self._plans:
            order, note = self._order(name), self._note(name)
            if order is None:
                continue
            life = Life(order["life"], None, order["given"], order["port"], order["began"])
            if note is not None and note["life"] == order["life"]:
                life.keeper = Identity(**note["keeper"])
            self._lives[name] = life
            kept = life.keeper is not None and life.keeper.alive()
            if not kept:
                # Also a keeper that never came to write its note.
                self._sweep(name)
            adopted[name] = Adopted(life.given, kept)
        return adopted

    def start(self, part: str, given: Mapping[str, str]) -> None:
        plan, folder = self._plans[part], self._places.part(part)
        last = self._lives.get(part) or self._remembered(part)
        life = Life(uuid.uuid4().hex[:12], None, dict(given), None, time.time())
        self._lives[part] = life
        try:
            if plan.listens:
                life.port = free_port(last.port if last else None, plan.host)
            folder.mkdir(parents=True, exist_ok=True)
            write_steadily(folder / ORDER, self._ordered(plan, life))
            handle = subprocess.Popen(
                [sys.executable, "-m", "hermes_rl.runs.supervision.keeper", str(folder), life.id],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={**unmarked_environ(), **variables(self._plan.keys), **self._span(), MARK: str(folder)},
                start_new_session=True,
            )
        except (OSError, HermesRLError) as error:
            life.failure = f"it could not be started: {error}"
            return
        self._handles.append(handle)
        life.keeper = Identity.of(handle.pid)

    def stop(self, part: str) -> None:
        life = self._lives.get(part)
        if life is not None and life.keeper is not None:
            life.keeper.signal(signal.SIGTERM)

    def kill(self, part: str) -> None:
        life = self._lives.get(part)
        for identity in (life.keeper, life.process) if life else ():
            if identity is not None:
                identity.signal(signal.SIGKILL)
        self._sweep(part)

    def seen(self, part: str, urls: Mapping[str, str]) -> PartFacts:
        life = self._lives.get(part)
        if life is None:
            return PartFacts()
        note = self._note(part)
        if note is not None and note["life"] == life.id:
            life.keeper = life.keeper or Identity(**note["keeper"])
            life.process = Identity(**note["process"]) if note["process"] else None
            life.exit_code = note["exit_code"]
        keeper = life.keeper is not None and life.keeper.alive()
        process = life.process is not None and life.process.alive()
        if not keeper and not process and not life.swept:
            # Also what its keeper could not end, being killed itself.
            process = bool(self._sweep(part))
            life.swept = not process
        host = self._plans[part].host
        url = f"http://{host}:{life.port}" if life.port else None
        ready = process and keeper
        if ready:
            ready = self._probes.ready(part, life.id, url=url, urls={**urls, **life.given}, began=life.began)
        ended = not keeper and not process
        failed = ended and life.exit_code not in {None, 0}
        return PartFacts(
            keeper=keeper,
            process=process,
            begun=life.process is not None,
            ready=ready,
            url=url,
            exit_code=life.exit_code,
            port_taken=failed and life.port is not None and is_taken(life.port, host),
            problem=life.failure or (self._last_lines(part) if ended and life.exit_code != 0 else None),
        )

    def identities(self, part: str) -> tuple[Identity | None, Identity | None]:
        """The keeper and the process, where they live."""
        life = self._lives.get(part)
        return (_living(life.keeper), _living(life.process)) if life else (None, None)

    def process_id(self, part: str) -> int | None:
        """Of its present or last life."""
        life = self._lives.get(part)
        return life.process.pid if life and life.process else None

    def reap(self) -> None:
        self._handles = [handle for handle in self._handles if handle.poll() is None]

    def nothing_left(self) -> bool:
        """Ends whatever of this run nobody keeps; whether there was nothing."""
        found = [self._sweep(name) for name in self._plans]
        return not any(found)

    def close(self) -> None:
        self._probes.close()

    def _ordered(self, plan: PartPlan, life: Life) -> dict[str, Any]:
        return {
            "life": life.id,
            "command": filled(plan.command, life.port, life.given),
            "cwd": self._plan.folder if Path(self._plan.folder).is_dir() else str(self._places.folder),
            "log": str(self._places.log(plan.name)),
            "log_bytes": LOG_BYTES,
            "log_files": LOG_FILES,
            "keys": list(self._plan.keys),
            "stop_within": plan.patience.stop_within,
            "supervisor": supervisor_command(self._places.run_id),
            "given": dict(life.given),
            "port": life.port,
            "began": life.began,
        }

    def _span(self) -> dict[str, str]:
        return {TRACEPARENT: self._plan.traceparent} if self._plan.traceparent else {}

    def _remembered(self, part: str) -> Life | None:
        order = self._order(part)
        return None if order is None else Life(order["life"], None, {}, order["port"], order["began"])

    def _order(self, part: str) -> dict[str, Any] | None:
        return read_steadily(self._places.part(part) / ORDER)

    def _note(self, part: str) -> dict[str, Any] | None:
        return read_steadily(note_of(self._places.part(part)))

    def _sweep(self, part: str) -> list[int]:
        """Kill what bears the part's mark."""
        found = marked(self._places.part(part))
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found

    def _last_lines(self, part: str) -> str | None:
        return last_lines(self._places.log(part))


def _living(identity: Identity | None) -> Identity | None:
    return identity if identity is not None and identity.alive() else None


def last_lines(log: Path) -> str | None:
    """What a log ends with, in few words."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4 * LAST_CHARACTERS))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-LAST_LINES:])[-LAST_CHARACTERS:] or None


def supervisor_command(run_id: str) -> list[str]:
    return [sys.executable, "-m", "hermes_rl.runs.supervision", run_id]


def variables(keys: tuple[str, ...]) -> dict[str, str]:
    """The keys that parts are given, by the names of their variables."""
    from hermes_rl.runs.keys import key_variables

    return dict(key_variables(keys))
