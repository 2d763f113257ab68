"""The desired state of a run: written by commands, read by the supervisor.

Always true: the file can be written on a full disk; concurrent writers are serialized; each attempt has a number.
"""

import fcntl
import os
import time
from dataclasses import asdict, dataclass

from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.atomic_json import read_atomic_json, write_atomic_json
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.supervision.lifecycle import DesiredRun


@dataclass(frozen=True, slots=True)
class DesiredState:
    wanted: DesiredRun = DesiredRun.RUN
    attempt: int = 1


def read_desired_state(paths: RunPaths) -> DesiredState:
    saved = read_atomic_json(paths.wanted)
    return DesiredState() if saved is None else DesiredState(DesiredRun(saved["wanted"]), saved["attempt"])


def write_desired_state(paths: RunPaths, wanted: DesiredRun, *, another_attempt: bool = False) -> DesiredState:
    folder = os.open(paths.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        desired = DesiredState(wanted, read_desired_state(paths).attempt + another_attempt)
        by = asdict(ProcessIdentity.from_pid(os.getpid()))
        write_atomic_json(
            paths.wanted, {"wanted": desired.wanted, "attempt": desired.attempt, "at": time.time(), "by": by}
        )
    finally:
        os.close(folder)
    return desired
