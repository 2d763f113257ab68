"""Fuzz the readers and HTTP surfaces for N minutes each, two at a time; a table, and one JSON line for each stretch.

Results are appended to --out. Minutes that it already has for the same source count, so an interrupted run continues
with the same command. A failing input is kept in tests/fuzz/cases, where the gate executes it: commit it with the fix.
Exit status 1: an input crashed or hung a surface, or got a 5xx; or a surface executed nothing.
"""

import argparse
import asyncio
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.fuzz.worker import SURFACES, current_input, keep
from tests.fuzz.surface import Kind

ROOT = Path(__file__).parents[2]
# A stretch is one process: what it found is on disk when it ends.
STRETCH_SECONDS = 120.0
# Without a new input for so long, a process hangs in a place that no signal reaches.
STUCK_SECONDS = 90.0
START_SECONDS = 300.0
MIN_SECONDS = 1.0


def source() -> str:
    """What is fuzzed: the commit, and whether something in it was changed."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()

    changed = git("status", "--porcelain", "--", "src", "tests/fuzz", ":!tests/fuzz/cases")
    return (git("rev-parse", "--short=12", "HEAD") or "unknown") + ("+changes" if changed else "")


def read_rows(path: Path, of: str) -> list[dict[str, Any]]:
    """The stretches of this source; a torn last line is skipped."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row.get("source") == of:
            rows.append(row)
    return rows


def append_row(path: Path, row: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        # A line that an interrupted run left incomplete must not swallow this one.
        file.write(("\n" if file.tell() and not path.read_bytes().endswith(b"\n") else "") + json.dumps(row) + "\n")


async def stretch(surface: str, seconds: float, seed: int, *, cases: bool) -> dict[str, Any]:
    """Run one process; if it ends or gets stuck by itself, its last input is the finding."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "scripts.fuzz.worker", surface, f"--seconds={seconds}", f"--seed={seed}"]
        began = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            *command,
            f"--folder={folder}",
            *(["--keep"] if cases else []),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
        reading = asyncio.ensure_future(process.communicate())
        try:
            stuck = await _watch(reading, Path(folder, "input"))
        finally:
            if process.returncode is None:
                process.kill()
        output, errors = await reading
        if process.returncode == 0 and not stuck:
            row: dict[str, Any] = json.loads(output.splitlines()[-1])
            return row
        data = current_input(Path(folder, "input"))
    return {
        "surface": surface,
        "seed": seed,
        "seconds": round(time.monotonic() - began, 1),
        "executions": 0,
        **dict.fromkeys(map(str, Kind), 0),
        **lost(surface, process.returncode, stuck, data, errors.decode(errors="replace"), cases=cases),
    }


def lost(surface: str, status: int | None, stuck: bool, data: bytes, errors: str, *, cases: bool) -> dict[str, Any]:
    """The finding of a process that gave no results."""
    kind = Kind.HANG if stuck else Kind.CRASH
    if stuck:
        message = f"no new input for {STUCK_SECONDS:g} s"
    elif status is not None and status < 0:
        message = f"ended by {signal.Signals(-status).name}"
    else:
        message = f"ended with status {status}: {errors[-1500:]}"
    case = keep(surface, data) if cases and data and (stuck or (status or 0) < 0) else None
    return {str(kind): 1, "defects": {f"{kind} of the process": {"message": message, "case": case}}}


async def _watch(reading: "asyncio.Future[Any]", current: Path) -> bool:
    """Wait for the end; True when it got stuck."""
    began = time.time()
    while True:
        done, _ = await asyncio.wait({reading}, timeout=5)
        if done:
            return False
        changed = await asyncio.to_thread(_changed_at, current)
        if time.time() - (changed or began) > (STUCK_SECONDS if changed else START_SECONDS):
            return True


def _changed_at(path: Path) -> float | None:
    return path.stat().st_mtime if path.exists() else None


async def fuzz_all(names: Sequence[str], minutes: float, out: Path, seed: int, jobs: int, *, cases: bool) -> None:
    of, room = source(), asyncio.Semaphore(jobs)
    spent = dict.fromkeys(names, 0.0)
    for row in read_rows(out, of):
        if row["surface"] in spent:
            spent[row["surface"]] += row["seconds"]

    async def one(name: str) -> None:
        number = 0
        while (left := minutes * 60 - spent[name]) >= MIN_SECONDS:
            async with room:
                # A new seed for each stretch, also for one that continues an interrupted run.
                start = seed + number * 1_000_000 + int(spent[name])
                row = await stretch(name, min(left, STRETCH_SECONDS), start, cases=cases)
            number += 1
            spent[name] += max(row["seconds"], MIN_SECONDS)
            append_row(out, {"source": of, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), **row})
            print(line(row), flush=True)

    async with asyncio.TaskGroup() as tasks:
        for name in names:
            tasks.create_task(one(name))


def line(row: Mapping[str, Any]) -> str:
    counts = "  ".join(f"{row[str(kind)]} {kind}" for kind in Kind)
    return f"{row['surface']:<18} {row['seconds']:>8.1f} s {row['executions']:>10,} executions  {counts}"


def totals(rows: Iterable[Mapping[str, Any]], names: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each surface."""
    summed = []
    of = list(rows)
    for name in names:
        own = [row for row in of if row["surface"] == name]
        summed.append(
            {
                "surface": name,
                "seconds": round(sum(row["seconds"] for row in own), 1),
                "executions": sum(row["executions"] for row in own),
                **{str(kind): sum(row[str(kind)] for row in own) for kind in Kind},
                "defects": {key: defect for row in own for key, defect in row["defects"].items()},
            }
        )
    return summed


def main() -> int:
    options = argparse.ArgumentParser(
        prog="python -m scripts.fuzz", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("surfaces", nargs="*", metavar="SURFACE", help=f"default: all of {', '.join(SURFACES)}")
    options.add_argument("--minutes", type=float, default=1.0, help="for each surface (default: 1)")
    options.add_argument("--out", type=Path, default=Path("fuzz.jsonl"), help="append results (default: fuzz.jsonl)")
    options.add_argument("--seed", type=int, default=int(time.time()), help="default: the time")
    options.add_argument("--jobs", type=int, default=2, help="surfaces at a time (default: 2)")
    options.add_argument("--no-cases", action="store_true", help="do not keep failing inputs in tests/fuzz/cases")
    chosen = options.parse_args()
    if unknown := set(chosen.surfaces) - set(SURFACES):
        options.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(SURFACES)}")
    names = chosen.surfaces or list(SURFACES)
    asyncio.run(fuzz_all(names, chosen.minutes, chosen.out, chosen.seed, chosen.jobs, cases=not chosen.no_cases))
    results = totals(read_rows(chosen.out, source()), names)
    print("\ntotal")
    for row in results:
        print(line(row))
        for key, defect in row["defects"].items():
            print(f"    {key}\n      case {defect['case']}: {defect['message'][:400]}")
    print(json.dumps(results))
    bad = any(row[str(kind)] for row in results for kind in Kind) or not all(row["executions"] for row in results)
    return int(bad)


if __name__ == "__main__":
    sys.exit(main())
