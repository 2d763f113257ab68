"""`python -m hermes_rl.runs.supervision RUN_ID`: supervise a run, in the background and on its own."""

import os
import sys
from contextlib import suppress
from dataclasses import asdict

from hermes_rl.processes import Identity
from hermes_rl.runs.places import RunPlaces
from hermes_rl.runs.steady import write_steadily

if __name__ == "__main__":
    # Whoever started it waits for this process only; its child is nobody's.
    if child := os.fork():
        with suppress(OSError):
            write_steadily(RunPlaces(sys.argv[1]).coming, asdict(Identity.of(child)))
        os._exit(0)
    os.setsid()

    from hermes_rl.runs.supervision.process import main

    main(sys.argv[1])
