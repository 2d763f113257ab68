#!/usr/bin/env python3
"""Every fault at every moment of a run, with stand-ins for its parts: killed, frozen, no port, no disk, misconfigured.

scripts/run_faults.py                     the whole matrix, three cells at a time: about ten minutes on two cores
scripts/run_faults.py --sample 10 --seed 3
scripts/run_faults.py --only "kill everything"
scripts/run_faults.py --real              one real run on the tiny model, each kind of process killed: five minutes

In every cell the status must be true within five seconds, the run must come to its end, by itself or by `resume`, with
every step taken once, and no process may be left. Progress is on stderr, the last line is one JSON object; exit status
1 on any breach. Disks are filled on a small tmpfs, for which it must be root.
"""

import argparse
import json
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from tests.chaos.runs.faults import matrix, run_cell, sample
from tests.chaos.runs.real import real_run


def main(told: argparse.Namespace) -> int:
    if told.real:
        with tempfile.TemporaryDirectory() as place:
            came_of_it = real_run(Path(place))
        print(json.dumps(came_of_it))
        return 1 if came_of_it["breaches"] else 0
    cells = sample(told.sample, told.seed) if told.sample else matrix()
    cells = [cell for cell in cells if told.only in str(cell)]
    outcomes = []
    with tempfile.TemporaryDirectory() as place, ProcessPoolExecutor(told.jobs) as workers:
        running = [workers.submit(run_cell, cell, Path(place) / str(number)) for number, cell in enumerate(cells)]
        for done in as_completed(running):
            outcome = done.result()
            outcomes.append(outcome)
            print(
                f"{len(outcomes)}/{len(cells)} {outcome.cell}: {outcome.breach or 'held'}, true after "
                f"{outcome.true_after} s, {outcome.seconds} s in all",
                file=sys.stderr,
                flush=True,
            )
    breaches = {outcome.cell: outcome.breach for outcome in outcomes if outcome.breach}
    times = sorted(outcome.true_after for outcome in outcomes)
    report = {
        "cells": len(outcomes),
        "held": len(outcomes) - len(breaches),
        "true_after_median": times[len(times) // 2] if times else None,
        "true_after_most": times[-1] if times else None,
        "breaches": breaches,
    }
    print(json.dumps(report))
    return 1 if breaches or not outcomes else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sample", type=int, help="so many cells, not all")
    parser.add_argument("--seed", type=int, default=0, help="of the sample (%(default)s)")
    parser.add_argument("--only", default="", help="cells with this in their name")
    parser.add_argument("--jobs", type=int, default=3, help="cells at a time (%(default)s)")
    parser.add_argument("--real", action="store_true", help="one real run on the tiny model, with the real engine")
    sys.exit(main(parser.parse_args()))
