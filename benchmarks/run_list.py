"""Listing recorded runs with what each really is, beside bare SQLite reading the same rows, alternating.

Bare: `SELECT` of all rows by sqlite3 and their settings parsed, which knows neither folders nor processes. Ours opens
the store, reads every run's folder and looks for the processes of those that have not ended. The first call of a new
process, with its imports, is measured apart.
"""

import argparse
import json
import os
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from hermes_rl.orchestration.run_paths import runs_database
from hermes_rl.orchestration.run_state import Phase
from hermes_rl.orchestration.status.run_list import list_runs

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

GOAL_MS = 200.0
RUNS = 200
FIRST = """
import time
began = time.perf_counter()
from hermes_rl.orchestration.status.run_list import list_runs
list_runs()
print((time.perf_counter() - began) * 1000)
"""


def make_runs(count: int) -> None:
    """Mostly ended ones, as a home has them after some weeks, each with 100 steps of metrics."""
    from tests.support.recorded_runs import make_run, record, run_file, write_steps

    phases = [Phase.FINISHED, Phase.FINISHED, Phase.STOPPED, Phase.FAILED, Phase.RUNNING]
    files = [run_file(f"words-{number:04}") for number in range(count)]
    for number, file in enumerate(files):
        write_steps(make_run(file.run_id, phase=phases[number % 5], file=file), 100)
    record(*((file, phases[number % 5]) for number, file in enumerate(files)))


def bare() -> int:
    connection = sqlite3.connect(runs_database())
    try:
        return len([json.loads(settings) for (settings,) in connection.execute("SELECT settings FROM runs")])
    finally:
        connection.close()


def timed(work: Any) -> tuple[float, int]:
    began = time.perf_counter()
    count = work()
    return (time.perf_counter() - began) * 1000, count


def first_of_a_process() -> float:
    done = subprocess.run([sys.executable, "-c", FIRST], check=True, capture_output=True, text=True)
    return float(done.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="5 times, in a few seconds")
    repeats = 5 if parser.parse_args().quick else 30
    runs: dict[str, list[float]] = {"ours": [], "bare": [], "first_of_a_process": []}
    listed = 0
    with TemporaryDirectory() as folder:
        os.environ["HERMES_HOME"] = folder
        make_runs(RUNS)
        for _ in range(repeats):
            taken, listed = timed(lambda: len(list_runs()))
            runs["ours"].append(taken)
            runs["bare"].append(timed(bare)[0])
        runs["first_of_a_process"] = [first_of_a_process() for _ in range(min(repeats, 5))]
    usual = median(runs["ours"])
    goals: dict[str, dict[str, Any]] = {
        "milliseconds_for_200_runs": {"goal": GOAL_MS, "measured": round(usual, 1), "met": usual < GOAL_MS},
        "runs_listed": {"goal": RUNS, "measured": listed, "met": listed == RUNS},
    }
    figures = {f"median_ms_{name}": round(median(taken), 2) for name, taken in runs.items()}
    figures["slowest_ms_ours"] = round(max(runs["ours"]), 2)
    print(json.dumps({"benchmark": "run_list", "figures": {"runs": RUNS, **figures}, "goals": goals}))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
