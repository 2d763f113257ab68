"""The desired state of a run: written by commands, read by the supervisor.

Always true: the file can be written on a full disk; concurrent writers are serialized; each attempt has a number.
"""

import os
import time
from dataclasses import asdict, dataclass

from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.atomic_json import read_atomic_json, write_atomic_json
from hermes_rl.orchestration.reconciler.driver import lock_desired
from hermes_rl.orchestration.run_paths import RunPaths
from hermes_rl.orchestration.supervision.lifecycle import DesiredRun


@dataclass(frozen=True, slots=True)
class DesiredState:
    wanted: DesiredRun = DesiredRun.RUN
    attempt: int = 1


def read_desired_state(paths: RunPaths) -> DesiredState:
    saved = read_atomic_json(paths.wanted)
    return DesiredState() if saved is None else DesiredState(DesiredRun(saved["wanted"]), saved["attempt"])


def write_desired_state(paths: RunPaths, wanted: DesiredRun, *, another_attempt: bool = False) -> None:
    with lock_desired(paths.wanted):
        attempt = read_desired_state(paths).attempt + another_attempt
        by = asdict(ProcessIdentity.from_pid(os.getpid()))
        write_atomic_json(paths.wanted, {"wanted": wanted, "attempt": attempt, "at": time.time(), "by": by})
