"""The processes of a run's components: started, stopped, killed and observed through their shims.

Always true: observations come from the shim's status file and the system, so a supervisor that takes over sees what the
last one saw; a launch is over only when no process with the component's tag is left.
"""

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_rl.core.child_python import python_command
from hermes_rl.core.errors import HermesRLError
from hermes_rl.core.private_files import private_folder
from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.atomic_json import read_atomic_json, write_atomic_json
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.supervision.component import ComponentObservation
from hermes_rl.orchestration.supervision.ports import free_port, is_taken
from hermes_rl.orchestration.supervision.probes import Probes
from hermes_rl.orchestration.supervision.process_tags import (
    LAUNCH_FILE,
    TAG_VARIABLE,
    shim_status_path,
    tagged_processes,
    untagged_environ,
)
from hermes_rl.orchestration.supervision.run_plan import ComponentPlan, RunPlan, fill_command
from hermes_rl.tracing.setup import TRACEPARENT

LOG_BYTES, LOG_FILES = 16 * 2**20, 4
TAIL_LINES, TAIL_CHARACTERS = 12, 1500


@dataclass(slots=True)
class Launch:
    """One launch of a component, by this or an earlier supervisor. `began` is in Unix seconds."""

    id: str
    shim: ProcessIdentity | None
    need_urls: Mapping[str, str]
    port: int | None
    began: float
    process: ProcessIdentity | None = None
    exit_code: int | None = None
    swept: bool = False
    failure: str | None = None


@dataclass(frozen=True, slots=True)
class AdoptedComponent:
    """A component that an earlier supervisor launched. `alive`: its shim is running."""

    need_urls: Mapping[str, str]
    alive: bool


class ComponentProcesses:
    def __init__(self, paths: RunPaths, plan: RunPlan) -> None:
        self._paths, self._plan = paths, plan
        self._plans = {component.name: component for component in plan.parts}
        self._launches: dict[str, Launch] = {}
        self._popens: list[subprocess.Popen[bytes]] = []
        self._probes = Probes(plan.parts)

    def adopt(self) -> dict[str, AdoptedComponent]:
        """Take over earlier launches. Kill processes that have no shim."""
        adopted = {}
        for name in self._plans:
            spec, status = self._read_spec(name), self._read_status(name)
            if spec is None:
                continue
            launch = Launch(spec["life"], None, spec["given"], spec["port"], spec["began"])
            if status is not None and status["life"] == spec["life"]:
                launch.shim = ProcessIdentity(**status["keeper"])
            self._launches[name] = launch
            has_shim = launch.shim is not None and launch.shim.alive()
            if not has_shim:
                # Including a shim that never wrote its status.
                self._sweep(name)
            adopted[name] = AdoptedComponent(launch.need_urls, has_shim)
        return adopted

    def start(self, component: str, need_urls: Mapping[str, str]) -> None:
        plan, folder = self._plans[component], self._paths.part(component)
        last = self._launches.get(component)
        launch = Launch(uuid.uuid4().hex[:12], None, dict(need_urls), None, time.time())
        self._launches[component] = launch
        try:
            if plan.listens:
                launch.port = free_port(last.port if last else None, plan.host)
            private_folder(folder)
            write_atomic_json(folder / LAUNCH_FILE, self._launch_spec(plan, launch))
            popen = subprocess.Popen(
                python_command("-m", "hermes_rl.orchestration.supervision.shim", str(folder), launch.id),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={
                    **untagged_environ(),
                    **key_environment(self._plan.keys),
                    **self._trace_environment(),
                    TAG_VARIABLE: str(folder),
                },
                start_new_session=True,
            )
        except (OSError, HermesRLError) as error:
            launch.failure = f"could not be started: {error}"
            return
        self._popens.append(popen)
        launch.shim = ProcessIdentity.from_pid(popen.pid)

    def stop(self, component: str) -> None:
        launch = self._launches.get(component)
        if launch is not None and launch.shim is not None:
            launch.shim.signal(signal.SIGTERM)

    def kill(self, component: str) -> None:
        launch = self._launches.get(component)
        for identity in (launch.shim, launch.process) if launch else ():
            if identity is not None:
                identity.signal(signal.SIGKILL)
        self._sweep(component)

    def observe(self, component: str, urls: Mapping[str, str]) -> ComponentObservation:
        launch = self._launches.get(component)
        if launch is None:
            return ComponentObservation()
        status = self._read_status(component)
        if status is not None and status["life"] == launch.id:
            launch.shim = launch.shim or ProcessIdentity(**status["keeper"])
            launch.process = ProcessIdentity(**status["process"]) if status["process"] else None
            launch.exit_code = status["exit_code"]
        shim = launch.shim is not None and launch.shim.alive()
        process = launch.process is not None and launch.process.alive()
        if not shim and not process and not launch.swept:
            # Processes that a killed shim could not end.
            process = bool(self._sweep(component))
            launch.swept = not process
        host = self._plans[component].host
        url = f"http://{host}:{launch.port}" if launch.port else None
        ready = process and shim
        if ready:
            ready = self._probes.ready(
                component, launch.id, url=url, urls={**urls, **launch.need_urls}, began=launch.began
            )
        ended = not shim and not process
        failed = ended and launch.exit_code not in {None, 0}
        return ComponentObservation(
            shim=shim,
            process=process,
            started=launch.process is not None,
            ready=ready,
            url=url,
            exit_code=launch.exit_code,
            port_taken=failed and launch.port is not None and is_taken(launch.port, host),
            problem=launch.failure
            or (log_tail(self._paths.log(component)) if ended and launch.exit_code != 0 else None),
        )

    def live_identities(self, component: str) -> tuple[ProcessIdentity | None, ProcessIdentity | None]:
        """The shim and the process, each None unless alive."""
        launch = self._launches.get(component)
        return (_if_alive(launch.shim), _if_alive(launch.process)) if launch else (None, None)

    def process_id(self, component: str) -> int | None:
        """The pid in the current or last launch."""
        launch = self._launches.get(component)
        return launch.process.pid if launch and launch.process else None

    def reap(self) -> None:
        self._popens = [popen for popen in self._popens if popen.poll() is None]

    def sweep_all(self) -> bool:
        """Kill every process tagged with this run; True when there was none."""
        found = [self._sweep(name) for name in self._plans]
        return not any(found)

    def close(self) -> None:
        self._probes.close()

    def _launch_spec(self, plan: ComponentPlan, launch: Launch) -> dict[str, Any]:
        return {
            "life": launch.id,
            "command": fill_command(plan.command, launch.port, launch.need_urls),
            "cwd": self._plan.folder if Path(self._plan.folder).is_dir() else str(self._paths.folder),
            "log": str(self._paths.log(plan.name)),
            "log_bytes": LOG_BYTES,
            "log_files": LOG_FILES,
            "keys": list(self._plan.keys),
            "stop_within": plan.patience.stop_within,
            "supervisor": supervisor_command(self._paths.run_id),
            "given": dict(launch.need_urls),
            "port": launch.port,
            "began": launch.began,
        }

    def _trace_environment(self) -> dict[str, str]:
        return {TRACEPARENT: self._plan.traceparent} if self._plan.traceparent else {}

    def _read_spec(self, component: str) -> dict[str, Any] | None:
        return read_atomic_json(self._paths.part(component) / LAUNCH_FILE)

    def _read_status(self, component: str) -> dict[str, Any] | None:
        return read_atomic_json(shim_status_path(self._paths.part(component)))

    def _sweep(self, component: str) -> list[int]:
        """Kill the processes with the component's tag and return their pids."""
        found = tagged_processes(self._paths.part(component))
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return found


def _if_alive(identity: ProcessIdentity | None) -> ProcessIdentity | None:
    return identity if identity is not None and identity.alive() else None


def log_tail(log: Path) -> str | None:
    """The last lines of a log; None when it is empty or missing."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - 4 * TAIL_CHARACTERS))
            text = file.read().decode(errors="replace")
    except OSError:
        return None
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    return "\n".join(lines[-TAIL_LINES:])[-TAIL_CHARACTERS:] or None


def supervisor_command(run_id: str) -> list[str]:
    return python_command("-m", "hermes_rl.orchestration.supervision", run_id)


def key_environment(keys: tuple[str, ...]) -> dict[str, str]:
    from hermes_rl.orchestration.keys import key_variables

    return dict(key_variables(keys))
