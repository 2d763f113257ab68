#!/usr/bin/env python3
"""The trajectory API under `kill -9`: four producers, a consumer, and a referee who kills them and the API.

scripts/api_chaos.py sqlite                        the whole of it: about ten minutes
scripts/api_chaos.py postgresql                    and the database restarted ten times
scripts/api_chaos.py postgresql --replicas 3       over three APIs; callers go to the next when one is away
scripts/api_chaos.py postgresql --replicas 3 --throughput 600
                                                   no kills: groups of 16×2048 tokens a second with one API and with 3

Every group whose post was answered must be delivered, acknowledged exactly once and in order per environment, also when
the disk was full meanwhile. It mounts a small disk, so it is run as root. Progress is on stderr; a table of what the
killed held follows, and the last line is one JSON object. Exit status 1 on any breach, or when less than 70% of the
kills hit work in progress.
"""

import argparse
import json
import signal
import sys
from pathlib import Path

from tests.chaos.trajectory.chaos import Scene, run
from tests.chaos.trajectory.grounds import DATABASES
from tests.chaos.trajectory.referee import Plan
from tests.chaos.trajectory.report import LEAST_IN_PROGRESS, table
from tests.chaos.trajectory.throughput import measure


def main(arguments: argparse.Namespace) -> int:
    if arguments.throughput:
        print(json.dumps([measure(count, arguments.throughput) for count in sorted({1, arguments.replicas})]))
        return 0
    restarts = arguments.restarts if arguments.database == "postgresql" else 0
    plan = Plan(arguments.api, arguments.producers, arguments.consumer, restarts, disk_full=not arguments.no_disk_full)
    outcome = run(
        Scene(
            arguments.database,
            plan,
            replicas=arguments.replicas,
            seed=arguments.seed,
            pace=arguments.pace,
            most_seconds=arguments.most_seconds,
        )
    )
    if arguments.json is not None:
        arguments.json.write_text(json.dumps(outcome.report, indent=1) + "\n")
    print(table(outcome.kills))
    print(json.dumps({name: value for name, value in outcome.report.items() if name != "held"}))
    return 1 if outcome.breaches or outcome.report["in_progress"] < LEAST_IN_PROGRESS else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("database", choices=DATABASES)
    parser.add_argument("--api", type=int, default=100, metavar="N", help="kills of the API (%(default)s)")
    parser.add_argument("--producers", type=int, default=50, metavar="N", help="kills of producers (%(default)s)")
    parser.add_argument("--consumer", type=int, default=50, metavar="N", help="kills of the consumer (%(default)s)")
    parser.add_argument("--restarts", type=int, default=10, metavar="N", help="of PostgreSQL (%(default)s)")
    parser.add_argument("--no-disk-full", action="store_true", help="never fill the store's disk")
    parser.add_argument("--replicas", type=int, default=1, metavar="N", help="APIs over one PostgreSQL (%(default)s)")
    parser.add_argument("--throughput", type=int, metavar="GROUPS", help="measure with so many groups; kill nothing")
    parser.add_argument("--seed", type=int, default=0, help="of the order and the moments (%(default)s)")
    parser.add_argument("--pace", type=float, default=0.2, metavar="S", help="longest pause of an actor (%(default)s)")
    parser.add_argument("--most-seconds", type=float, default=1500, metavar="S", help="for all kills (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the whole report, with what each kill hit")
    told = parser.parse_args()
    # So that whoever ends it leaves no process and no mount behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if (told.replicas > 1 or told.throughput) and told.database != "postgresql":
        parser.error("several APIs share one PostgreSQL, not one SQLite file")
    sys.exit(main(told))
