"""hermes-rl beside verifiers, inspect_ai and atroposlib with the seed's loop, on the same model, tool and work.

    python benchmarks/peers/run.py                 small: a few minutes, once the environments are made
    python benchmarks/peers/run.py --full          as docs/reports/peers.md has it: about an hour and a half
    python benchmarks/peers/run.py --full --write  and puts the raw results and the tables there

Each framework runs at its pinned version in an environment of its own (scripts/engine_environment), a fresh process a
run, the frameworks in turns. The last line printed is one JSON object; exit status 1 when a goal is missed.
"""

import argparse
import json
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

CHECKOUT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(CHECKOUT))

from benchmarks.peers.measures import FULL, PEERS, SMALL, Measure, measured  # noqa: E402
from benchmarks.peers.table import told, write  # noqa: E402

FIGURES = (
    *("turns_per_second", "cpu_ms_per_turn", "kb_per_rollout", "gap_p50_ms", "gap_p99_ms"),
    *("most_connections", "model_cpu_share"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--quick", action="store_true", help="the small size, which is the default")
    parser.add_argument("--only", nargs="+", choices=PEERS, default=list(PEERS), metavar="FRAMEWORK")
    parser.add_argument("--measures", nargs="+", metavar="NAME", help="some of the measures, by name")
    parser.add_argument("--write", action="store_true", help="into docs/reports/peers.json and peers.md")
    parser.add_argument("--results", type=Path, help="write the raw results into this file")
    parser.add_argument("--add", type=Path, help="keep the measures of these raw results that are not made anew")
    arguments = parser.parse_args()
    measures = [one for one in (FULL if arguments.full else SMALL) if one.name in (arguments.measures or [one.name])]
    pythons = {name: PEERS[name].python() for name in arguments.only}
    results: dict[str, Any] = {"benchmark": "peers", "size": "full" if arguments.full else "small", "measures": {}}
    if arguments.add:
        results["measures"] = json.loads(arguments.add.read_text())["measures"]
    for one in measures:
        results["measures"][one.name] = run(one, pythons)
        # After each, as the whole takes long.
        finish(results)
        if arguments.results:
            arguments.results.write_text(json.dumps(results, indent=1) + "\n")
        if arguments.write:
            write(results)
    print(told(results))
    print(json.dumps({name: results[name] for name in ("benchmark", "figures", "goals")}))
    return 0 if all(goal["met"] for goal in results["goals"].values()) else 1


def finish(results: dict[str, Any]) -> None:
    """Say when and where, and hold what there is against the goals."""
    results |= {"date": now(), "machine": machine()}
    results["figures"] = {name: one["figures"] for name, one in results["measures"].items()}
    results["goals"] = goals(results["figures"])


def run(measure: Measure, pythons: dict[str, str]) -> dict[str, Any]:
    """All frameworks in turns; the raw runs, and the median of each figure."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
    for number in range(measure.repeats):
        for name, done in runs.items():
            # A client without retries or records says nothing about faults.
            if measure.faults and name == "bare":
                continue
            done.append(one := measured(PEERS[name], pythons[name], measure))
            shown = {key: one[key] for key in (*FIGURES, "succeeded", "finished", "error") if key in one}
            print(
                f"{measure.name} {number + 1}/{measure.repeats} {name}: {json.dumps(shown)}",
                file=sys.stderr,
                flush=True,
            )
    figures = {
        name: {
            **{key: round(median(one[key] for one in good), 4) for key in FIGURES},
            "succeeded": min(one["succeeded"] for one in good),
            "finished": all(one["finished"] for one in good),
        }
        for name, done in runs.items()
        if (good := [one for one in done if "error" not in one])
    }
    asked = {
        key: getattr(measure, key) for key in ("recording", "in_flight", "rollouts", "delay", "patience", "repeats")
    }
    return {"asked": asked, "figures": figures, "runs": runs}


def goals(figures: dict[str, Any]) -> dict[str, Any]:
    """We are ahead of each framework in turns a second, in processor time a turn, and in memory a rollout."""
    found: dict[str, Any] = {}
    for measure, key, sign in (
        ("busy_64", "turns_per_second", 1),
        ("busy_64", "cpu_ms_per_turn", -1),
        ("recorded_64", "cpu_ms_per_turn", -1),
        ("waiting", "kb_per_rollout", -1),
        ("waiting", "gap_p99_ms", -1),
    ):
        rows = figures.get(measure, {})
        for name in rows.keys() - {"bare", "hermes-rl"}:
            if "hermes-rl" in rows:
                ours, theirs = rows["hermes-rl"][key], rows[name][key]
                goal = {"goal": theirs, "measured": ours, "met": sign * (ours - theirs) > 0}
                found[f"{measure} {key} against {name}"] = goal
    return found


def now() -> str:
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def machine() -> dict[str, Any]:
    cpus = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9
    return {
        "cpu": cpus[0].partition(":")[2].strip() if cpus else platform.machine(),
        "cores": os.cpu_count(),
        "memory_gb": round(memory, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


if __name__ == "__main__":
    sys.exit(main())
