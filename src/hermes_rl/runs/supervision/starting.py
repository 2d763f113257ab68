"""What people do with a run: start it, stop it, go on with it, wait for it.

Always true: each returns at once and may be called again; whoever calls may die afterwards. A run whose folder is
written and whose supervisor was never started is there to be resumed.
"""

import asyncio
import shutil
import subprocess
import time
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor

from hermes_rl.errors import ConfigError
from hermes_rl.runs.places import RunPlaces
from hermes_rl.runs.run_file import RunFile, read_run_file
from hermes_rl.runs.states import Phase, RunState, read_state
from hermes_rl.runs.supervision.lifecycle import Wanted
from hermes_rl.runs.supervision.lives import supervisor_command
from hermes_rl.runs.supervision.marks import lock_is_free
from hermes_rl.runs.supervision.parts import Plan
from hermes_rl.runs.supervision.plan import plan_of
from hermes_rl.runs.supervision.record import written
from hermes_rl.runs.supervision.succession import start_supervisor
from hermes_rl.runs.supervision.wanted import read_wish, write_wish

ASK_EVERY = 0.1


def start_run(run_file: RunFile, *, plan: Plan | None = None) -> str:
    """The run's id. `plan` stands for another than the run file's own."""
    places = RunPlaces(run_file.run_id)
    # A folder with neither is what a start that was killed left behind; a trainer's alone has the second.
    if places.file.exists() or (places.folder / "run.json").exists():
        raise ConfigError(
            f"there is a run {run_file.run_id} already; `hermes-rl run status {run_file.run_id}` shows it, `hermes-rl "
            f"run resume {run_file.run_id}` goes on with it, another id starts another"
        )
    places.folder.mkdir(parents=True, exist_ok=True)
    try:
        (plan or plan_of(run_file)).write(places.plan)
        write_wish(places, Wanted.RUN)
        run_file.write(places.file)
        _apart(run_file, Phase.STARTING)
    except BaseException:
        # Nothing of it was started, and nothing is to be resumed.
        shutil.rmtree(places.folder, ignore_errors=True)
        raise
    _start(places)
    return run_file.run_id


def stop_run(run_id: str) -> None:
    """Say that it is to stop. One that has ended stays as it is."""
    places = _known(run_id)
    told = read_state(places.state)
    if told is not None and told.phase.ended and told.attempt >= read_wish(places).attempt:
        return
    write_wish(places, Wanted.STOP)
    if lock_is_free(places.lock) and places.plan.exists():
        # Nobody is there to heed it: one comes, ends what is left and says that it has ended.
        _start(places)


def resume_run(run_id: str, *, plan: Plan | None = None) -> None:
    """Go on with a run that was stopped, failed or interrupted; nothing when it runs."""
    places = _known(run_id)
    told, wish = read_state(places.state), read_wish(places)
    if told is not None and told.phase is Phase.FINISHED and told.attempt >= wish.attempt:
        raise ConfigError(
            f"the run {run_id} has taken its last step; `hermes-rl run results {run_id}` shows what came of it, and "
            "`hermes-rl run start` starts another"
        )
    if not lock_is_free(places.lock) and not (told is not None and told.phase.ended):
        if (told is not None and told.phase is Phase.STOPPING) or wish.wanted is Wanted.STOP:
            raise ConfigError(
                f"the run {run_id} is still stopping; `hermes-rl run status {run_id}` tells when it has, then resume it"
            )
        return
    run_file = read_run_file(places.file)
    (plan or plan_of(run_file)).write(places.plan)
    write_wish(places, Wanted.RUN, another_attempt=True)
    _start(places)


def await_phase(run_id: str, phases: Collection[Phase], seconds: float) -> RunState:
    """The state once it is in one of these phases; TimeoutError says where it is instead."""
    places, deadline = _known(run_id), time.monotonic() + seconds
    while True:
        told = read_state(places.state)
        if told is not None and told.phase in phases and told.attempt >= read_wish(places).attempt:
            return told
        if time.monotonic() > deadline:
            where = f"{told.phase}, {told.reason or 'for no reason given'}" if told else "not yet begun"
            raise TimeoutError(f"the run {run_id} is {where} after {seconds:g} s")
        time.sleep(ASK_EVERY)


def _start(places: RunPlaces) -> None:
    try:
        start_supervisor(supervisor_command(places.run_id))
    except (OSError, subprocess.SubprocessError) as error:
        raise ConfigError(
            f"the supervisor of {places.run_id} cannot be started: {error}; `hermes-rl run resume {places.run_id}` "
            "tries again"
        ) from error


def _known(run_id: str) -> RunPlaces:
    places = RunPlaces(run_id)
    if not places.file.exists():
        raise ConfigError(f"there is no run {run_id!r}; `hermes-rl run list` shows those there are")
    return places


def _apart(run_file: RunFile, phase: Phase) -> None:
    """Write the record from a thread, since whoever calls may have an event loop running."""
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: asyncio.run(written(run_file, phase))).result()
