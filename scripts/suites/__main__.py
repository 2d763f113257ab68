"""Run the gate and the long suites, and keep the record of what passed."""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from scripts.suites import coverage
from scripts.suites import record as records
from scripts.suites.closure import Checkout
from scripts.suites.gate import gate_jobs
from scripts.suites.jobs import Job, Result, Runner, missing_parts, summary
from scripts.suites.record import RECORD, ROOT, Coverage, Pass, Plan, Record, Suite

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hermes-rl-ci"
# What CI on this machine saw last; `long` takes it over into the record that is committed.
SEEN = CACHE / RECORD.name
# Tests wait as long as they compute. With more jobs than this, Ray gives up, since its agents take 15 s to start.
WIDTH = 2 + (os.cpu_count() or 2)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.suites", description=__doc__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    verbs.add_parser("list", help="print each long suite: unchanged since its last pass, or to be run")
    verbs.add_parser("inputs", help="print the files that a long suite depends on").add_argument("name")
    verbs.add_parser("gate", help="run the tests that every submission runs")
    verbs.add_parser("coverage", help="the same, counting the lines that run, and record the figure")
    verbs.add_parser("ci", help="run the gate, every changed long suite and one unchanged one")
    long = verbs.add_parser("long", help="run long suites and record those that pass")
    long.add_argument("names", nargs="*", help="default: every suite whose inputs changed")
    plan = verbs.add_parser("plan", help="print what `ci` would run; fail if it would take too long")
    plan.add_argument("--empty", action="store_true", help="CI's caches are empty")
    note = verbs.add_parser("note", help="keep how long this whole run of .ci/run took")
    note.add_argument("minutes", type=float)
    note.add_argument("--empty", action="store_true", help="its caches were empty")
    chosen = parser.parse_args(arguments)
    # Else the jobs would go on without anybody to wait for them.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    suites = records.declared()
    actions: dict[str, Callable[[], int]] = {
        "list": lambda: show(suites),
        "inputs": lambda: show_inputs(suites[chosen.name]),
        "gate": lambda: run(list(gate_jobs()))[0],
        "coverage": lambda: run(list(gate_jobs()), counted=ROOT / RECORD)[0],
        "ci": lambda: ci(suites),
        "long": lambda: run_long(suites, chosen.names),
        "plan": lambda: show_plan(planned(digests(suites), caches_empty=chosen.empty)),
        "note": lambda: keep_minutes(suites, chosen.minutes, empty=chosen.empty),
    }
    return actions[chosen.verb]()


def digests(suites: dict[str, Suite]) -> dict[str, str]:
    checkout = Checkout(ROOT)
    return {name: records.digest(checkout, suite) for name, suite in suites.items()}


def planned(inputs: dict[str, str], *, caches_empty: bool) -> Plan:
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    record = records.with_ci(records.load(ROOT / RECORD), records.load(SEEN))
    return records.plan(record, inputs, caches_empty=caches_empty, salt=commit)


def show(suites: dict[str, Suite]) -> int:
    record = records.load(ROOT / RECORD)
    for name, inputs in digests(suites).items():
        entry = record.long.get(name)
        if entry is None:
            state = "never passed"
        elif entry.inputs != inputs:
            state = f"changed since {entry.passed}"
        else:
            state = f"unchanged since {entry.passed}"
        took = f"{entry.minutes:.1f} min" if entry else ""
        print(f"{name:20} {state:34} {took:>9}  {suites[name].about}")
    return 0


def show_inputs(suite: Suite) -> int:
    print(*records.inputs(Checkout(ROOT), suite), sep="\n")
    return 0


def show_plan(plan: Plan) -> int:
    record = records.load(ROOT / RECORD)
    for name in plan.unchanged:
        again = ", run again: its last pass in CI is the oldest" if name == plan.rechecked else ""
        print(f"long suite {name}: unchanged since {record.long[name].passed}{again}")
    for name in plan.changed:
        state = f"changed since {record.long[name].passed}" if name in record.long else "never passed"
        print(f"long suite {name}: {state}, run")
    print(f"predicted: {plan.minutes:.0f} minutes, at most {records.MOST_MINUTES:.0f}")
    if not plan.fits:
        print(
            f"Too many long suites changed for one CI run. Run them first, then commit {RECORD}:\n"
            f"    scripts/check --long {' '.join(plan.changed)}",
            file=sys.stderr,
        )
    return 0 if plan.fits else 1


def run(
    jobs: Sequence[Job],
    *,
    width: int = WIDTH,
    counted: Path | None = None,
    passed: Callable[[Result], object] = lambda _: None,
) -> tuple[int, list[Result]]:
    """The exit status and what came of each; `counted`: count the lines that run, and record the figure there."""
    with tempfile.TemporaryDirectory(prefix="hermes-rl-suites-") as folder:
        results = Runner(Path(folder), width=width, options=coverage.OPTIONS if counted else ()).run(jobs, passed)
        print(summary(results), flush=True)
        status = next((result.status for result in results if result.status), 0)
        if counted and not status:
            status, percent = coverage.report(Path(folder))
            # A recorded count is not repeated for a month, so one below the limit must not be recorded.
            if not status:
                records.save(replace(records.load(counted), coverage=Coverage(records.now(), percent)), counted)
    # A real part that CI could not use is a failure there, not a footnote.
    if os.environ.get("CI") and (missing := missing_parts(results)):
        print("Tests were skipped. In CI every test runs: install what they need in .ci/run.", *missing, sep="\n  ")
        status = status or 1
    failed = [result.name for result in results if result.status]
    if failed:
        print(f"FAILED: {', '.join(failed)}", flush=True)
    return status, results


def job(suite: Suite) -> Job:
    return Job(suite.name, command=suite.command) if suite.command else Job(suite.name, ("-m", "long", *suite.tests))


def ci(suites: dict[str, Suite]) -> int:
    before = digests(suites)
    plan = planned(before, caches_empty=False)
    # The longest suite starts with the gate, so that it does not run alone at the end; the others follow, by length.
    record = records.load(ROOT / RECORD)
    names = sorted(plan.to_run, key=lambda name: -record.long[name].minutes if name in record.long else -1e9)
    packaging = Job("packaging", command=(sys.executable, "scripts/packaging_check.py"))
    CACHE.mkdir(parents=True, exist_ok=True)
    due = records.with_ci(record, records.load(SEEN)).coverage.is_due(records.now())
    # A run with many changed suites has no time to count.
    counted = SEEN if due and coverage.CHEAP and len(plan.changed) < 5 else None
    long = [job(suites[name]) for name in names]
    status, results = run([*long[:1], *gate_jobs(), packaging, *long[1:]], counted=counted)
    passed = [result for result in results if result.name in names and result.status == 0 and not result.second_try]
    records.save(with_passes(records.load(SEEN), passed, before, in_ci=True), SEEN)
    return status


def run_long(suites: dict[str, Suite], names: Sequence[str]) -> int:
    unknown = set(names) - set(suites)
    if unknown:
        print(f"no long suite named {', '.join(sorted(unknown))}; there are {', '.join(suites)}", file=sys.stderr)
        return 2
    before = digests(suites)
    record = records.adopted(records.load(ROOT / RECORD), records.load(SEEN), before)
    records.save(record, ROOT / RECORD)
    names = names or records.plan(record, before, caches_empty=False).changed
    if not names:
        print("No long suite's inputs changed since its last pass.")
        return 0

    def keep(result: Result) -> None:
        """At once, so that a run that is cut off has recorded what it finished."""
        if records.digest(Checkout(ROOT), suites[result.name]) != before[result.name]:
            print(f"{result.name}: its inputs changed while it ran, so its pass is not recorded", flush=True)
            return
        record = with_passes(records.load(ROOT / RECORD), [result], before, in_ci=False)
        records.save(record, ROOT / RECORD)
        print(f"{result.name}: its pass is recorded in {RECORD}", flush=True)

    return run([job(suites[name]) for name in names], width=2, passed=keep)[0]


def with_passes(record: Record, passed: Sequence[Result], inputs: dict[str, str], *, in_ci: bool) -> Record:
    long = dict(record.long)
    for result in passed:
        old = long.get(result.name)
        entry = Pass(
            inputs[result.name], records.now(), round(result.minutes, 1), round(result.cpu_minutes, 1), result.tests,
            ci=records.now() if in_ci else old.ci if old else "",
        )  # fmt: skip
        long[result.name] = entry
    return replace(record, long=long)


def keep_minutes(suites: dict[str, Suite], minutes: float, *, empty: bool) -> int:
    record = records.load(SEEN)
    if not planned(digests(suites), caches_empty=empty).changed:
        kind = {"empty_minutes": minutes} if empty else {"warm_minutes": minutes}
        records.save(replace(record, gate=replace(record.gate, **kind)), SEEN)
    return 0


if __name__ == "__main__":
    sys.exit(main())
