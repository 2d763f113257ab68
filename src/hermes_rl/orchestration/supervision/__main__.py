"""`python -m hermes_rl.orchestration.supervision RUN_ID`: supervise a run, in the background and on its own."""

import os
import sys
from contextlib import suppress
from dataclasses import asdict

from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.atomic_json import write_atomic_json
from hermes_rl.orchestration.run_paths import RunPaths

if __name__ == "__main__":
    # The caller waits for this process only; the child is detached.
    if child := os.fork():
        with suppress(OSError):
            write_atomic_json(RunPaths(sys.argv[1]).coming, asdict(ProcessIdentity.from_pid(child)))
        os._exit(0)
    os.setsid()

    from hermes_rl.orchestration.supervision.supervisor import main

    main(sys.argv[1])
