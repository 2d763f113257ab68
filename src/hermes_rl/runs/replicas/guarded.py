"""A worker's guard as a process: starts the worker, and ends all of it when whoever asked for it is gone.

    python -m hermes_rl.runs.replicas.guarded ORDER

Always true: the worker and whatever it started are gone when standard input is closed, so nothing survives the replica
that it belongs to. ORDER is JSON, a command and a folder; what becomes of it is told on standard output, what it says
goes to standard error.
"""

import json
import sys

from hermes_rl.runs.supervision.guard import guard

if __name__ == "__main__":
    guard(json.loads(sys.argv[1]), 2, 0, 1)
