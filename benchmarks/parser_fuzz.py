"""Fuzzes every tool-call parser: no exception, little CPU for any input, and time in proportion to the text.

The inputs are those of tests/parsers/fuzz.py. The last line is one JSON object; exit status 1 says that a
goal is missed.
"""

import argparse
import json
import sys
import time
from typing import Any

from hermes_rl.extensions import PARSERS
from tests.parsers.fuzz import CPU_GOAL_MS, RATIO_GOAL, Findings, climb, fuzz

INPUTS_GOAL = 1_000_000


def report(found: Findings, inputs_goal: int, seconds: float) -> dict[str, Any]:
    figures = {
        "parsers": len(PARSERS.builtin),
        "inputs": found.inputs,
        "inputs_of_64_kb": found.large_inputs,
        "megabytes": round(found.characters / 1e6, 1),
        "calls_read": found.calls,
        "broken_calls_reported": found.broken,
        "faults": found.faults[:10],
        "worst_cpu_ms": round(found.worst_ms, 2),
        "worst_input": found.worst_input,
        "worst_ratio_64_kb_to_1_mb": round(found.worst_ratio, 2),
        "worst_shape": found.worst_shape,
        "largest_cpu_ms_at_1_mb": round(found.largest_ms, 1),
        "seconds": round(seconds, 1),
    }
    goals = {
        "inputs": {"goal": f">= {inputs_goal}", "measured": found.inputs, "met": found.inputs >= inputs_goal},
        "exceptions": {"goal": "0", "measured": len(found.faults), "met": not found.faults},
        "cpu_ms_up_to_64_kb": {
            "goal": f"< {CPU_GOAL_MS:g}",
            "measured": figures["worst_cpu_ms"],
            "met": found.worst_ms < CPU_GOAL_MS,
        },
        "time_per_byte_64_kb_to_1_mb": {
            "goal": f"< {RATIO_GOAL:g}",
            "measured": figures["worst_ratio_64_kb_to_1_mb"],
            "met": found.worst_ratio < RATIO_GOAL,
        },
    }
    return {"benchmark": "parser_fuzz", "figures": figures, "goals": goals}


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--inputs", type=int, default=INPUTS_GOAL, help="how many to try (default: 1,000,000)")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--quick", action="store_true", help="100,000 inputs and every ninth shape: under a minute")
    chosen = options.parse_args()
    count = 100_000 if chosen.quick else chosen.inputs
    found, began = Findings(), time.monotonic()

    def progress(done: int) -> None:
        if done % (count // 20 or 1) == 0:
            print(
                f"{done:>9} of {count} inputs, {time.monotonic() - began:.0f} s, worst {found.worst_ms:.1f} ms",
                flush=True,
            )

    fuzz(count, chosen.seed, found, progress)
    print("the ladder from 64 KB to 1 MB", flush=True)
    climb(found, every=9 if chosen.quick else 1)
    result = report(found, count, time.monotonic() - began)
    print(json.dumps(result, ensure_ascii=False))
    return 0 if all(goal["met"] for goal in result["goals"].values()) else 1


if __name__ == "__main__":
    sys.exit(main())
