"""The supervisor of one run: observes, decides, acts and writes state.json, five times a second, until the run ends.

Always true: a run has one supervisor, enforced by a lock; all it knows is in state.json and the shims' status files, so
another can take over at any moment; a failed tick or a full disk is logged and does not end it.
"""

import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from io import TextIOWrapper
from logging.handlers import RotatingFileHandler
from typing import Any

from hermes_rl.core import fast_json
from hermes_rl.core.errors import HermesRLError
from hermes_rl.core.file_lock import acquire_within
from hermes_rl.core.private_files import open_private, private_folder
from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.reconciler.driver import StateWriter, drive
from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.run_state import ComponentStatus, Phase, RunState, read_state
from hermes_rl.orchestration.supervision.component import Component
from hermes_rl.orchestration.supervision.component_processes import AdoptedComponent, ComponentProcesses
from hermes_rl.orchestration.supervision.desired_state import DesiredState, read_desired_state
from hermes_rl.orchestration.supervision.lifecycle import (
    KillComponent,
    RunObservation,
    RunProgress,
    StartComponent,
    StopComponent,
    decide,
)
from hermes_rl.orchestration.supervision.run_plan import Role, read_plan
from hermes_rl.orchestration.supervision.store_record import RunRecord
from hermes_rl.tracing.setup import Tracing, export_span

log = logging.getLogger(__name__)

LOG_BYTES, LOG_FILES = 2**20, 3
POLL_INTERVAL = 0.2
# Longer than a dying supervisor takes to release its lock.
LOCK_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class AttemptTimes:
    """Unix seconds of this attempt; `ran_before` is the total duration of earlier attempts, in seconds."""

    attempt: int
    started_at: float
    changed_at: float
    ran_before: float = 0.0


class Supervisor:
    def __init__(self, paths: RunPaths, saved: RunState | None, desired: DesiredState) -> None:
        self._paths = paths
        plan = read_plan(paths.plan)
        self._plan = plan
        self._processes = ComponentProcesses(paths, plan)
        adopted = self._processes.adopt()
        self._progress = restore_progress(RunProgress.new(plan.parts), saved, adopted, desired, time.monotonic())
        self._me = ProcessIdentity.from_pid(os.getpid())
        self._times = attempt_times(saved, desired, time.time())
        self._state_file = StateWriter(self._write_state, log.warning)
        self._record = RunRecord(paths)

    def run(self, lock: int) -> None:
        drive(self._tick, lock, POLL_INTERVAL, lambda error: log.error("supervision tick failed", exc_info=error))
        self._record.close()
        self._processes.close()
        self._trace()

    def _tick(self) -> bool:
        """Whether the run is over."""
        self._processes.reap()
        observation = self._observe()
        before = self._progress.phase
        self._progress, actions = decide(self._progress, observation, time.monotonic())
        if self._progress.phase is not before:
            self._times = replace(self._times, changed_at=time.time())
            log.info("%s: %s", self._progress.phase, self._progress.reason or "")
        for action in actions:
            log.info("%s", action)
            match action:
                case StartComponent(component, need_urls):
                    self._processes.start(component, need_urls)
                case StopComponent(component):
                    self._processes.stop(component)
                case KillComponent(component):
                    self._processes.kill(component)
        self._state_file.put(self._state())
        written = self._state_file.written
        # The final phase is written and no process is left.
        return bool(written and written.phase.ended) and self._processes.sweep_all()

    def _observe(self) -> RunObservation:
        urls = {name: component.url for name, component in self._progress.components.items() if component.url}
        components = {plan.name: self._processes.observe(plan.name, urls) for plan in self._progress.plan}
        desired = read_desired_state(self._paths)
        if self._progress.ending is None:
            # A `resume` that arrives while the run is active is already being served.
            self._times = replace(self._times, attempt=max(desired.attempt, self._times.attempt))
        trainer = self._trainer_report()
        limit = self._reached_limit() or trainer.get("limit")
        return RunObservation(components, desired.wanted, trainer.get("state") == "complete", limit)

    def _reached_limit(self) -> str | None:
        minutes, limit = (time.time() - self._times.started_at) / 60, self._plan.max_minutes
        return None if limit is None or minutes < limit else f"{minutes:.1f} of {limit:g} minutes"

    def _trainer_report(self) -> dict[str, Any]:
        """The trainer's run.json; empty for one of an earlier launch, which the pid tells."""
        known = {self._processes.process_id(trainer.name) for trainer in self._progress.with_role(Role.TRAINER)} - {
            None
        }
        try:
            trainer_run = fast_json.loads((self._paths.folder / "run.json").read_bytes())
        except (OSError, ValueError):
            return {}
        return dict(trainer_run) if trainer_run.get("pid") in known else {}

    def _write_state(self, state: RunState) -> None:
        replace(state, said_at=time.time()).write(self._paths.state)
        self._record.put(state.phase)

    def _trace(self) -> None:
        """Export the run's own span, the parent of its components' spans."""
        if self._plan.trace is None or self._plan.traceparent is None:
            return
        progress = self._progress
        try:
            export_span(
                Tracing.from_option(self._plan.trace),
                self._plan.traceparent,
                "run",
                began=self._times.started_at,
                attributes={"run": self._paths.run_id, "attempt": self._times.attempt, "phase": str(progress.phase)},
                error=str(progress.phase) if progress.phase is Phase.FAILED else None,
                report=log.warning,
            )
        except HermesRLError as error:
            log.warning("cannot export the run's span: %s", error)

    def _state(self) -> RunState:
        progress = self._progress
        return RunState(
            run_id=self._paths.run_id,
            phase=progress.phase,
            supervisor=None if progress.phase.ended else self._me,
            parts={
                plan.name: self._component_status(plan.name, progress.components[plan.name]) for plan in progress.plan
            },
            reason=progress.reason,
            started_at=self._times.started_at,
            changed_at=self._times.changed_at,
            ran_before=self._times.ran_before,
            ending=progress.ending,
            complete=progress.complete,
            attempt=self._times.attempt,
        )

    def _component_status(self, name: str, component: Component) -> ComponentStatus:
        shim, process = self._processes.live_identities(name)
        return ComponentStatus(
            state=component.state,
            keeper=shim,
            process=process,
            url=component.url,
            restarts=component.restarts,
            exit_code=component.exit_code,
            problem=component.fatal or component.problem,
        )


def attempt_times(saved: RunState | None, desired: DesiredState, now: float) -> AttemptTimes:
    if saved is None:
        return AttemptTimes(desired.attempt, now, now)
    if saved.attempt == desired.attempt:
        return AttemptTimes(saved.attempt, saved.started_at, saved.changed_at, saved.ran_before)
    until = saved.changed_at if saved.phase.ended else saved.said_at
    return AttemptTimes(desired.attempt, now, now, saved.ran_before + max(0.0, until - saved.started_at))


def restore_progress(
    progress: RunProgress,
    saved: RunState | None,
    adopted: Mapping[str, AdoptedComponent],
    desired: DesiredState,
    now: float,
) -> RunProgress:
    """Progress as the last supervisor left it. A live component counts as starting until a probe finds it ready."""
    components = dict(progress.components)
    if saved is not None and saved.attempt != desired.attempt:
        saved = None
    for name, new in progress.components.items():
        component = new
        status = saved.parts.get(name) if saved is not None else None
        if saved is not None and status is not None:
            was_ready = status.state is UnitState.READY or saved.phase is Phase.RUNNING
            component = replace(component, restarts=status.restarts, was_ready=was_ready, url=status.url)
        ended_unseen = status is not None and status.state is not UnitState.WAITING
        if name in adopted and (adopted[name].alive or ended_unseen):
            component = replace(component, state=UnitState.STARTING, since=now, need_urls=adopted[name].need_urls)
        components[name] = component
    if saved is None:
        return replace(progress, components=components)
    return replace(
        progress,
        components=components,
        phase=saved.phase,
        ending=saved.ending,
        complete=saved.complete,
        reason=saved.reason,
    )


class _PrivateLog(RotatingFileHandler):
    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", opener=open_private)


def main(run_id: str) -> None:
    """Set up the log and supervise the run."""
    path = RunPaths(run_id).log("supervisor")
    # Supervise even when the log cannot be written.
    logging.raiseExceptions = False
    try:
        private_folder(path.parent)
        handler: logging.Handler = _PrivateLog(path, maxBytes=LOG_BYTES, backupCount=LOG_FILES - 1, delay=True)
    except OSError:
        handler = logging.NullHandler()
    logging.basicConfig(  # noqa: TID251 (a file, not the terminal)
        format="%(asctime)s %(process)d %(levelname)s %(message)s", level=logging.INFO, handlers=[handler]
    )
    log.info("supervising %s", run_id)
    supervise(run_id)


def supervise(run_id: str) -> None:
    """Supervise until the run ends; return early when another supervisor holds the lock or there is nothing to do."""
    paths = RunPaths(run_id)
    lock = open_private(paths.lock, os.O_RDWR | os.O_CREAT)
    if not acquire_within(lock, LOCK_TIMEOUT, poll_seconds=0.05):
        return
    while _has_work(paths):
        _run_attempt(paths, lock)
    # A `resume` waits for this lock, and the process's last threads may take seconds to end.
    os.close(lock)


def _has_work(paths: RunPaths) -> bool:
    saved = read_state(paths.state)
    return saved is None or not saved.phase.ended or saved.attempt < read_desired_state(paths).attempt


def _run_attempt(paths: RunPaths, lock: int) -> None:
    saved, desired = read_state(paths.state), read_desired_state(paths)
    try:
        supervisor = Supervisor(paths, saved, desired)
    except Exception as error:
        log.exception("cannot supervise the run")
        reason = f"supervision failed to start: {error}; fix that, then `hermes-rl run resume {paths.run_id}`"
        now = time.time()
        failed = RunState(paths.run_id, Phase.FAILED, None, reason=reason, changed_at=now, said_at=now)
        times = attempt_times(saved, desired, now)
        replace(
            failed, started_at=times.started_at, ran_before=times.ran_before, attempt=times.attempt, ending=Phase.FAILED
        ).write(paths.state)
        return
    supervisor.run(lock)
