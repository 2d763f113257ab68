#!/usr/bin/env python3
"""A whole run of the tiny model, and faults of every kind on every process of it, on a schedule with a seed.

scripts/stack_chaos.py                          four minutes of faults
scripts/stack_chaos.py --seed 7 --minutes 120   two hours, in runs of twenty minutes each; the same command goes on

Killed, paused, cut off, with lost packets, on a slow network, on a full disk, with wrong clocks: supervisor, keepers,
guards, engine, trajectory API, trainer, environment and sandboxes. Every run must complete by itself with nothing lost,
doubled or leaked and no fault scored, counted in the store, the weights' lineage and /proc; 70% of the faults must hit
work in progress. All of it is in namespaces of its own, for which it must be root. Progress is on stderr; report.md and
report.json are in the folder, and the last line is one JSON object. Exit status 1 on any breach.
"""

import argparse
import json
import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
sys.path.insert(0, str(CHECKOUT))

from scripts.hf_model import model_folder  # noqa: E402
from tests.chaos.stack.chaos import carried_out, lengths, missing  # noqa: E402
from tests.chaos.stack.report import broken  # noqa: E402
from tests.support.skyrl_engine import skyrl_environment  # noqa: E402


def main(told: argparse.Namespace) -> int:
    if lacking := missing():
        print("\n".join(lacking), file=sys.stderr)
        return 2
    folder = told.folder or CHECKOUT / "build" / "stack-chaos" / f"seed-{told.seed}-{told.minutes:g}-minutes"
    folder.mkdir(parents=True, exist_ok=True)
    parts = lengths(told.minutes, told.part)
    report = carried_out(folder, told.seed, parts, model_folder("tiny"), skyrl_environment())
    breaches = broken(report)
    for text in breaches:
        print(f"breach: {text}", file=sys.stderr)
    short = {name: value for name, value in report.items() if name not in {"faults", "breaches"}}
    print(json.dumps({**short, "report": str(folder / "report.md"), "breaches": breaches}))
    return 1 if breaches else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0, help="of what is struck and when (%(default)s)")
    parser.add_argument("--minutes", type=float, default=4.0, help="of faults (%(default)g)")
    parser.add_argument("--part", type=float, default=20.0, help="minutes of one run at most (%(default)g)")
    parser.add_argument("--folder", type=Path, help="for the report and what to go on from; below build/ if left out")
    sys.exit(main(parser.parse_args()))
