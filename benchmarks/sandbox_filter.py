"""The start of a bubblewrap sandbox with and without its seccomp filter, alternating, and a command of many calls.

Each round starts one sandbox of each kind, the first one by turns, and runs one command that opens a file many times.
Prints medians, and the median of the rounds' ratios; exits with 1 if starts with the filter take over 5 % longer.
"""

import argparse
import asyncio
import json
import sys
import time
from statistics import median

import uvloop

from hermes_rl.sandbox.backends import bubblewrap
from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend
from hermes_rl.sandbox.seccomp import compile_filter

GOAL = 1.05
CALLS = "perl -e 'for (1 .. 100_000) { open my $file, q(<), q(/etc/passwd); close $file }'"


async def measure_once(backend: BubblewrapBackend, *, filtered: bool) -> tuple[float, float]:
    """Seconds of a start with its first command, and of the command with many calls."""
    vars(bubblewrap)["compile_filter"] = compile_filter if filtered else lambda _: b""
    began = time.perf_counter()
    async with await backend.start() as sandbox:
        status = await sandbox.exec("grep ^Seccomp: /proc/self/status", timeout=60)
        started = time.perf_counter() - began
        assert status.stdout.split() == [b"Seccomp:", b"2" if filtered else b"0"]
        began = time.perf_counter()
        assert (await sandbox.exec(CALLS, timeout=120)).exit_code == 0
        return started, time.perf_counter() - began


async def measure(rounds: int) -> dict[str, dict[str, float]]:
    backend = BubblewrapBackend()
    seconds: dict[bool, list[tuple[float, float]]] = {True: [], False: []}
    for number in range(rounds + 1):
        for filtered in (True, False) if number % 2 else (False, True):
            seconds[filtered].append(await measure_once(backend, filtered=filtered))
    await backend.close()
    figures = {}
    for column, name in enumerate(("start", "100,000 opens")):
        # The first round fills caches.
        with_filter = [each[column] for each in seconds[True][1:]]
        without = [each[column] for each in seconds[False][1:]]
        figures[name] = {
            "rounds": rounds,
            "without_ms": round(median(without) * 1000, 2),
            "with_ms": round(median(with_filter) * 1000, 2),
            "ratio": round(median(one / other for one, other in zip(with_filter, without, strict=True)), 3),
        }
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="measured rounds, after one that is not counted")
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        figures = runner.run(measure(parser.parse_args().rounds))
    met = figures["start"]["ratio"] <= GOAL
    print(f"{'met   ' if met else 'MISSED'} start with the filter: {figures['start']['ratio']} (goal <= {GOAL})")
    print(json.dumps({"benchmark": "sandbox_filter", "figures": figures}))
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
