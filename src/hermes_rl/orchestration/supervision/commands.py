"""The commands on a run: start, stop, resume, wait for a phase.

Always true: start, stop and resume return at once, are safe to repeat, and the run outlives the caller. A run with a
folder but no supervisor, left by a killed start, can be resumed.
"""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.private_files import private_folder
from hermes_rl.orchestration.run_file import RunFile, read_run_file
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.run_state import Phase, RunState, read_state
from hermes_rl.orchestration.supervision.component_processes import supervisor_command
from hermes_rl.orchestration.supervision.desired_state import read_desired_state, write_desired_state
from hermes_rl.orchestration.supervision.failover import start_supervisor
from hermes_rl.orchestration.supervision.lifecycle import DesiredRun
from hermes_rl.orchestration.supervision.plan_builder import build_plan
from hermes_rl.orchestration.supervision.process_tags import lock_is_free
from hermes_rl.orchestration.supervision.run_plan import RunPlan
from hermes_rl.orchestration.supervision.store_record import write_record

POLL_INTERVAL = 0.1


def start_run(run_file: RunFile, *, plan: RunPlan | None = None) -> str:
    """Start the run and return its id. `plan` replaces the plan built from the run file."""
    paths = RunPaths(run_file.run_id)
    # A folder with neither file was left by a start that was killed; run.json alone belongs to a standalone trainer.
    if paths.file.exists() or (paths.folder / "run.json").exists():
        raise ConfigError(
            f"run {run_file.run_id} already exists; see it with `hermes-rl run status {run_file.run_id}`, continue it "
            f"with `hermes-rl run resume {run_file.run_id}`, or choose another id"
        )
    private_folder(paths.folder)
    try:
        (plan or build_plan(run_file)).write(paths.plan)
        write_desired_state(paths, DesiredRun.RUN)
        run_file.write(paths.file)
        # In a thread, since the caller may have an event loop running.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(lambda: asyncio.run(write_record(run_file, Phase.STARTING))).result()
    except BaseException:
        # Nothing was started, so there is nothing to resume.
        shutil.rmtree(paths.folder, ignore_errors=True)
        raise
    _start_supervisor(paths)
    return run_file.run_id


def stop_run(run_id: str) -> None:
    """Request a stop. Does nothing when the run has ended."""
    paths = _existing_run(run_id)
    saved = read_state(paths.state)
    if saved is not None and saved.phase.ended and saved.attempt >= read_desired_state(paths).attempt:
        return
    write_desired_state(paths, DesiredRun.STOP)
    if lock_is_free(paths.lock) and paths.plan.exists():
        # No supervisor is alive: start one to stop what is left and write the final state.
        _start_supervisor(paths)


def resume_run(run_id: str, *, plan: RunPlan | None = None) -> None:
    """Continue a run that was stopped, failed or interrupted. Does nothing when it is running."""
    paths = _existing_run(run_id)
    saved, desired = read_state(paths.state), read_desired_state(paths)
    if saved is not None and saved.phase is Phase.FINISHED and saved.attempt >= desired.attempt:
        raise ConfigError(
            f"run {run_id} is finished; `hermes-rl run results {run_id}` shows its results, `hermes-rl run start` "
            "starts another"
        )
    if not lock_is_free(paths.lock) and not (saved is not None and saved.phase.ended):
        if (saved is not None and saved.phase is Phase.STOPPING) or desired.wanted is DesiredRun.STOP:
            raise ConfigError(
                f"run {run_id} is still stopping; resume it once `hermes-rl run status {run_id}` says stopped"
            )
        return
    run_file = read_run_file(paths.file)
    (plan or build_plan(run_file)).write(paths.plan)
    write_desired_state(paths, DesiredRun.RUN, another_attempt=True)
    _start_supervisor(paths)


def await_phase(run_id: str, phases: Collection[Phase], seconds: float) -> RunState:
    """The state once the run is in one of these phases; TimeoutError names the phase it is in instead."""
    paths, deadline = _existing_run(run_id), time.monotonic() + seconds
    while True:
        saved = read_state(paths.state)
        if saved is not None and saved.phase in phases and saved.attempt >= read_desired_state(paths).attempt:
            return saved
        if time.monotonic() > deadline:
            where = f"{saved.phase} ({saved.reason or 'no reason given'})" if saved else "not started yet"
            raise TimeoutError(f"run {run_id} is {where} after {seconds:g} s")
        time.sleep(POLL_INTERVAL)


def _start_supervisor(paths: RunPaths) -> None:
    try:
        start_supervisor(supervisor_command(paths.run_id))
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"cannot start the supervisor of {paths.run_id}: {error}; retry with `hermes-rl run resume {paths.run_id}`"
        ) from error


def _existing_run(run_id: str) -> RunPaths:
    paths = RunPaths(run_id)
    if not paths.file.exists():
        raise ConfigError(f"there is no run {run_id!r}; `hermes-rl run list` shows all runs")
    return paths
