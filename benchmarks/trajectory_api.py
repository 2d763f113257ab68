"""The trajectory API beside Atropos' own run-api and beside the bare databases, in one run, alternating.

Both servers are real processes on loopback with one worker each, called by the same client from processes of its own
(trajectory_api_client.py) with bodies made beforehand, groups of 16 rollouts; all bodies and answers as they are, none
in gzip. Ours is posted the binary form with messages; run-api, and our Atropos routes beside it, JSON without them.

- Ingest: groups a second that were answered, eight clients at once. Ours answers for what is on disk.
- Batch: 128 sequences, from the first request to the last byte: lease and read, or GET /batch.
- Ratio to bare: our posts over HTTP to a loop that does nothing but write the same bytes as durably: SQLite with WAL,
  full sync and the same pages, one transaction a group; PostgreSQL with EXTERNAL storage, one transaction a group on
  each of eight connections. Before either writes, PostgreSQL makes a checkpoint, or one would pay for the other's.
  Clients, servers and databases share the machine.
- Others: small requests while groups come in and batches go out without a pause; for ours status, health, and an
  environment's heartbeat, which is a write; for run-api its status and an environment's.
- Memory: resident size of the API while groups queue up and nobody takes them.

Goals are held against groups of 8,192 tokens a rollout and the median of the rounds' own ratios.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from benchmarks.trajectory_api_measures import CLIENTS, TOKENS, Bench  # noqa: E402
from benchmarks.trajectory_api_servers import PLACE, atropos_environment  # noqa: E402
from tests.store.database.postgres_server import PostgresServer  # noqa: E402

LADDER = (512, 2048, 8192, 32768)
QUEUED = 10_000
GOALS = {
    "ingest_to_run_api": (">=", 30.0),
    "batch_to_run_api": (">=", 50.0),
    "others_p99_ms": ("<", 50.0),
    "memory_growth_mb": ("<", 64.0),
    "sqlite_to_bare": (">=", 0.7),
    "postgres_to_bare": (">=", 0.6),
}


class Plan(NamedTuple):
    """How much is measured."""

    ladder: tuple[int, ...]
    rounds: int
    warm_mb: int
    busy_s: float
    queued: dict[int, int]


QUICK = Plan((TOKENS,), 1, 300, 4.0, {512: 2_000})
FULL = Plan(LADDER, 3, 900, 10.0, {512: QUEUED, TOKENS: QUEUED})


def summary(rounds: list[dict[str, float]]) -> dict[str, float]:
    """The median of each figure, and of each ratio taken within a round."""
    figures = {name: median(one[name] for one in rounds) for name in rounds[0]}
    ratios = {
        "ingest_to_run_api": lambda one: one["sqlite"] / one["run_api"],
        "batch_to_run_api": lambda one: one["run_api_batch_s"] / one["batch_s"],
        "atropos_routes_ingest_to_run_api": lambda one: one["atropos_routes"] / one["run_api"],
        "atropos_routes_batch_to_run_api": lambda one: one["run_api_batch_s"] / one["atropos_routes_batch_s"],
        "sqlite_to_bare": lambda one: one["sqlite"] / one["bare_sqlite"],
        "sqlite_one_client_to_bare": lambda one: one["sqlite_one_client"] / one["bare_sqlite"],
        "postgres_to_bare": lambda one: one["postgres"] / one["bare_postgres"],
    }
    figures |= {name: median(map(ratio, rounds)) for name, ratio in ratios.items()}
    return {name: float(f"{value:.3g}") for name, value in figures.items()}


def held(measured: dict[str, float]) -> dict[str, dict[str, Any]]:
    return {
        name: {
            "goal": f"{sign} {goal:g}",
            "measured": measured[name],
            "met": measured[name] >= goal if sign == ">=" else measured[name] < goal,
        }
        for name, (sign, goal) in GOALS.items()
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round at 8,192 tokens, in about a minute")
    parser.add_argument("--atropos", type=Path, help="an environment with atroposlib 0.4.0; made when it is not given")
    given = parser.parse_args()
    plan = QUICK if given.quick else FULL
    atropos = given.atropos or atropos_environment()
    ladder: dict[int, dict[str, float]] = {}
    with (
        tempfile.TemporaryDirectory(prefix="hermes-rl-bench-", dir=PLACE) as place,
        PostgresServer() as postgres,
    ):
        bench = Bench(Path(place), atropos, postgres)
        for tokens in {*plan.ladder, *plan.queued}:
            bench.make(tokens)
        bench.warm_up(plan.warm_mb)
        for tokens in plan.ladder:
            rounds = plan.rounds if tokens <= TOKENS else 1
            ladder[tokens] = summary([bench.round(tokens) for _ in range(rounds)])
            print(f"{tokens} tokens: {json.dumps(ladder[tokens])}", flush=True)
        busy = bench.busy(plan.busy_s)
        print(f"others: {json.dumps(busy)}", flush=True)
        queued = {tokens: bench.queue_up(tokens, count) for tokens, count in plan.queued.items()}
        print(f"memory: {json.dumps(queued)}", flush=True)
    goals = held(
        {
            **ladder[TOKENS],
            "others_p99_ms": busy["ours"]["p99_ms"],
            "memory_growth_mb": max(one["growth_mb"] for one in queued.values()),
        }
    )
    figures = {"rollouts": 16, "clients": CLIENTS, "ladder": ladder, "others": busy, "memory": queued}
    print(json.dumps({"benchmark": "trajectory_api", "figures": figures, "goals": goals}))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
