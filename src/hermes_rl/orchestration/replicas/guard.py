"""A worker's guard process: starts the worker, and kills all of its processes when the owner is gone.

    python -m hermes_rl.orchestration.replicas.guard SPEC

Always true: the worker and everything it started end when standard input is closed, so nothing outlives the replica.
SPEC is JSON with `command` and `cwd`; the pid and exit code go to stdout, the worker's output to stderr.
"""

import json
import sys

from hermes_rl.orchestration.supervision.subreaper import run_subreaper

if __name__ == "__main__":
    run_subreaper(json.loads(sys.argv[1]), 2, 0, 1)
