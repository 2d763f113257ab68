"""How many rollouts are in flight at once: memory, the event loop's lag, where it bends; in one process and in four.

    python benchmarks/in_flight.py                 small: hundreds of rollouts, a model that takes 1 s
    python benchmarks/in_flight.py --full          10,000 in one process, 40,000 over four, a model that takes 30 s
    python benchmarks/in_flight.py --full --write  and puts the results into docs/reports/in_flight.json and .md

A replica is a process that makes groups of `benchmarks/peers/ours.py` as `hermes-rl process` does, records and rewards
included: five turns, four tool calls. The models are processes on loopback addresses of their own (20,000 descriptors a
process and 28,000 ports a destination are the usual limits), each answering on its own clock, so that rollouts are not
in step. Always true: what is said to be in flight was counted by the models, as requests that waited at one moment.
"""

import argparse
import json
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.in_flight_replica import Replica, Watch  # noqa: E402
from benchmarks.peers.measures import Model  # noqa: E402
from benchmarks.peers.run import machine, now  # noqa: E402

PAGE = HERE.parent / "docs" / "reports" / "in_flight.md"
BEGIN, END = "<!-- begin of what benchmarks/in_flight.py writes -->", "<!-- end -->"
HOSTS = ("127.0.0.1", "127.0.0.2", "127.0.0.3", "127.0.0.4")
COLUMNS = (
    *("in flight (counted)", "processes", "model's s", "turns/s", "CPU ms a turn", "KB a rollout", "MB a process"),
    *("lag ms p50 / p99 / worst", "worst while all begin", "ms between turns p50 / p99", "succeeded", "what bends"),
)
# Where it bends: rollouts begin to wait for the process and not for the model.
LAG_GOAL_MS, GAP_GOAL_MS = 100.0, 1000.0


@dataclass(frozen=True)
class Level:
    in_flight: int
    delay: float
    replicas: int = 1

    @property
    def each(self) -> int:
        return self.in_flight // self.replicas


SMALL = (Level(64, 1.0), Level(128, 1.0), Level(128, 0.2), Level(256, 1.0, replicas=2))
FULL = (
    *(Level(count, 30.0) for count in (1_000, 2_500, 5_000, 10_000, 16_000)),
    *(Level(10_000, delay) for delay in (10.0, 5.0, 3.0)),
    Level(40_000, 30.0, replicas=4),
)


def measured(level: Level) -> dict[str, Any]:
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        models = [held.enter_context(Model("null", host)) for host in HOSTS]
        urls = [model.url for model in models]
        replicas = [
            held.enter_context(Replica(number, level.each, level.delay, urls, folder, alone=level.replicas == 1))
            for number in range(level.replicas)
        ]
        for replica in replicas:
            replica.said()
        for model in models:
            model.set_delay(level.delay)
            model.stats()
        watch = held.enter_context(Watch(models, min(1.0, level.delay / 5)))
        for replica in replicas:
            replica.say("go")
        told = [json.loads(replica.said()) for replica in replicas]
        row = figures(level, told, [model.stats() for model in models])
        return row | {"counted_in_flight": watch.most_waiting(), "machine_mb": round(watch.taken_mb())}


def figures(level: Level, told: list[dict[str, Any]], stats: list[dict[str, Any]]) -> dict[str, Any]:
    turns, seconds = sum(one["turns"] for one in stats), max(one["seconds"] for one in told)
    grown = sum(one["peak_kb"] - one["before_kb"] for one in told)
    row = {
        **asdict(level),
        "succeeded": sum(one["right"] for one in told) / (level.each * level.replicas),
        "turns_per_second": round(turns / seconds, 1),
        "offered_turns_per_second": round(level.in_flight / level.delay, 1),
        "cpu_ms_per_turn": round(sum(one["cpu_seconds"] for one in told) * 1000 / max(turns, 1), 4),
        "cpu_share_of_a_core": round(max(one["cpu_seconds"] / one["seconds"] for one in told), 3),
        "kb_per_rollout": round(grown / level.in_flight, 1),
        "peak_mb_a_process": round(max(one["peak_kb"] for one in told) / 1024, 1),
        "lag_p50_ms": round(max(one["lag_p50_ms"] for one in told), 2),
        "lag_p99_ms": round(max(one["lag_p99_ms"] for one in told), 2),
        "lag_worst_ms": round(max(one["lag_worst_ms"] for one in told), 2),
        "lag_beginning_ms": round(max(one["lag_beginning_ms"] for one in told), 2),
        "gap_p50_ms": round(max(one["gap_p50"] for one in stats) * 1000, 2),
        "gap_p99_ms": round(max(one["gap_p99"] for one in stats) * 1000, 2),
        "causes": sorted({cause for one in told for cause in one["causes"]}),
    }
    return row | {"bends": bends(row)}


def bends(row: dict[str, Any]) -> list[str]:
    """What no longer holds at this level."""
    found = []
    if row["succeeded"] < 1.0:
        found.append(f"{1 - row['succeeded']:.2%} of the rollouts failed: {', '.join(row['causes'])}")
    if row["lag_p99_ms"] > LAG_GOAL_MS:
        found.append("the loop's lag")
    if row["gap_p99_ms"] > GAP_GOAL_MS:
        found.append("the time between turns")
    if row["cpu_share_of_a_core"] > 0.9:
        found.append("the core is full")
    return found


def table(results: dict[str, Any]) -> str:
    where = results["machine"]
    on = f"{where['cores']} cores ({where['cpu']}), {where['memory_gb']} GB, Linux {where['kernel']}"
    lines = [
        f"Measured on {results['date']}, size {results['size']}: {on}, Python {where['python']}.",
        "",
        f"| {' | '.join(COLUMNS)} |",
        "|---" * len(COLUMNS) + "|",
    ]
    lines += [
        (
            f"| {row['in_flight']:,} ({row['counted_in_flight']:,}) | {row['replicas']} | {row['delay']:g} "
            f"| {row['turns_per_second']:,.0f} | {row['cpu_ms_per_turn']:.2f} | {row['kb_per_rollout']:.0f} "
            f"| {row['peak_mb_a_process']:,.0f} | {row['lag_p50_ms']:.1f} / {row['lag_p99_ms']:.0f} "
            f"/ {row['lag_worst_ms']:.0f} | {row['lag_beginning_ms']:,.0f} "
            f"| {row['gap_p50_ms']:.1f} / {row['gap_p99_ms']:.0f} "
            f"| {row['succeeded']:.2%} | {', '.join(row['bends']) or '–'} |"
        )
        for row in results["figures"].values()
    ]
    return "\n".join(lines)


def goals(rows: dict[str, Any]) -> dict[str, Any]:
    """Each level with the slowest model, which is what a run has, succeeds whole and in time."""
    slowest = max(row["delay"] for row in rows.values())
    found: dict[str, Any] = {}
    for name, row in rows.items():
        if row["delay"] == slowest:
            counted, wanted = row["counted_in_flight"], row["in_flight"]
            found[f"{name}: in flight"] = {"goal": wanted, "measured": counted, "met": counted >= wanted}
            found[f"{name}: succeeded"] = {"goal": 1.0, "measured": row["succeeded"], "met": row["succeeded"] == 1.0}
            lag = row["lag_p99_ms"]
            found[f"{name}: lag p99 ms"] = {"goal": LAG_GOAL_MS, "measured": lag, "met": lag <= LAG_GOAL_MS}
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--quick", action="store_true", help="the small size, which is the default")
    parser.add_argument("--levels", nargs="+", metavar="N/SECONDS/REPLICAS", help="levels of your own")
    parser.add_argument("--write", action="store_true", help="into docs/reports/in_flight.json and .md")
    parser.add_argument("--results", type=Path, help="write the raw results into this file")
    arguments = parser.parse_args()
    levels = [level_of(text) for text in arguments.levels or ()] or (FULL if arguments.full else SMALL)
    rows: dict[str, Any] = {}
    for level in levels:
        name = f"{level.in_flight}_{level.delay:g}s_{level.replicas}"
        rows[name] = measured(level)
        print(f"{name}: {json.dumps(rows[name])}", file=sys.stderr, flush=True)
    size = "full" if arguments.full else "small"
    results: dict[str, Any] = {
        "benchmark": "in_flight",
        "size": size,
        "date": now(),
        "machine": machine(),
        "figures": rows,
    }
    results["goals"] = goals(rows)
    if arguments.results:
        arguments.results.write_text(json.dumps(results, indent=1) + "\n")
    if arguments.write:
        PAGE.with_suffix(".json").write_text(json.dumps(results, indent=1) + "\n")
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{rest.partition(END)[2]}")
    print(table(results))
    print(json.dumps({name: results[name] for name in ("benchmark", "figures", "goals")}))
    return 0 if all(goal["met"] for goal in results["goals"].values()) else 1


def level_of(text: str) -> Level:
    count, delay, replicas = text.split("/")
    return Level(int(count), float(delay), int(replicas))


if __name__ == "__main__":
    sys.exit(main())
