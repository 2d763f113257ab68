#!/usr/bin/env python3
"""Nodes of a Ray cluster killed, removed, cut off, drained and added while replicas serve: no group lost or doubled.

scripts/replica_chaos.py                       three nodes on this machine, two of them lost: about three minutes
scripts/replica_chaos.py --full                ten faults, 3,000 items: nodes, a drain, a resize, the driver
scripts/replica_chaos.py --postgresql          two APIs over one PostgreSQL, each killed too
scripts/replica_chaos.py --namespaces          nodes in network namespaces, one cut off too; as root
scripts/replica_chaos.py --namespaces --full   twelve faults, 3,000 items
scripts/replica_chaos.py --faults kill,cut --items 500 --seed 3

A real trajectory API, a scripted model, `hermes-rl serve --on ray`. Needs the extra `ray`. Progress is on stderr, the
last line is one JSON object; exit status 1 when a group is lost or doubled, a fault was not made, the fleet did not end
well, or its rate did not come back.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.chaos.replicas.chaos import Cluster, Scene, run
from tests.chaos.replicas.namespaces import HEAD, NamespaceCluster, enter
from tests.orchestration.replicas.ray_cluster import RayCluster
from tests.store.database.postgres_server import PostgresServer

SOME = ("kill", "remove")
FULL = ("kill", "drain", "remove", "resize", "kill", "driver", "kill", "drain", "remove", "kill")
SOME_FAR = ("kill", "cut", "remove")
FULL_FAR = ("kill", "cut", "remove", "slow", "drain", "kill", "resize", "cut", "driver", "remove", "kill", "slow")
REGAINED = 0.9


def main(arguments: argparse.Namespace) -> int:
    # Told to end, it leaves no process and no namespace either.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    namespaces: bool = arguments.namespaces
    if namespaces:
        enter()
    few, many = (SOME_FAR, FULL_FAR) if namespaces else (SOME, FULL)
    kinds: tuple[str, ...] = many if arguments.full else few
    if arguments.postgresql:
        # Between the others, so that each API dies while it has work.
        kinds = tuple(one for kind in kinds for one in (kind, "api"))
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        os.environ["HERMES_HOME"] = f"{folder}/nodes"
        cluster: Cluster
        if namespaces:
            cluster = stack.enter_context(NamespaceCluster(nodes=3))
        else:
            cluster = stack.enter_context(RayCluster(nodes=3, in_threads=True))
        database = stack.enter_context(PostgresServer()).new_schema() if arguments.postgresql else None
        scene = Scene(
            items=arguments.items or (3000 if arguments.full else 400),
            faults=tuple(arguments.faults.split(",")) if arguments.faults else kinds,
            host=HEAD if namespaces else "127.0.0.1",
            database=database,
            apis=2 if arguments.postgresql else 1,
            seed=arguments.seed,
        )
        load = round(os.getloadavg()[0], 1)
        found = asyncio.run(run(scene, cluster, Path(folder), tell))
    where = {
        "cluster": "namespaces" if namespaces else "one machine",
        "database": "PostgreSQL, two APIs" if arguments.postgresql else "SQLite",
        "seed": scene.seed,
        "load": [load, round(os.getloadavg()[0], 1)],
    }
    return verdict({**found, **where})


def verdict(found: dict[str, Any]) -> int:
    made, regained = len(found["faults"]), found.get("rate_after_to_before_median") or 0.0
    goals = {
        "lost": {"goal": 0, "measured": found["lost"], "met": found["lost"] == 0},
        "doubled": {"goal": 0, "measured": found["doubled"], "met": found["doubled"] == 0},
        "exit": {"goal": 0, "measured": found["exit"], "met": found["exit"] == 0},
        "faults": {"goal": found["faults_wanted"], "measured": made, "met": made == found["faults_wanted"]},
        "rate after to before": {"goal": REGAINED, "measured": regained, "met": regained >= REGAINED},
    }
    print(json.dumps({"benchmark": "replica_chaos", "figures": found, "goals": goals}))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


def tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--namespaces", action="store_true", help="nodes in network namespaces of their own; root")
    parser.add_argument("--postgresql", action="store_true", help="two APIs over a PostgreSQL of its own")
    parser.add_argument("--full", action="store_true", help="all faults, many items")
    parser.add_argument(
        "--faults", help="kill, remove, drain, resize, driver, api; cut and slow with --namespaces; with commas"
    )
    parser.add_argument("--items", type=int)
    parser.add_argument("--seed", type=int, default=0)
    sys.exit(main(parser.parse_args()))
