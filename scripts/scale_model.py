#!/usr/bin/env python3
"""From measured figures to 100,000 rollouts in flight: machines, bandwidth, database, cost, and what breaks first.

scripts/scale_model.py              prints the tables of docs/reports/scale-model.md
scripts/scale_model.py --write      and puts them there
scripts/scale_model.py --rollouts 20000 --minutes 30 --turns 60 …    another run; every assumption is an option

What is measured comes from docs/reports/*.json; a file that is missing is named with the command that makes it. A
simulation of one replica (rollouts wait for the model, then for the one core) says how long a turn waits, and is held
against what benchmarks/in_flight.py measured.
"""

import argparse
import sys
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from scripts.scale_needs import (  # noqa: E402
    FULL,
    Measured,
    Run,
    engine_count,
    environment_machines,
    figures_of,
    needs,
    p99_ms,
    sandbox_machines,
    turn_ms,
    waits,
)

PAGE = ROOT / "docs" / "reports" / "scale-model.md"
_BEGIN, _END = "<!-- begin of what scripts/scale_model.py writes -->", "<!-- end -->"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--results", type=Path, default=ROOT / "docs" / "reports", help="where the figures are")
    parser.add_argument("--write", action="store_true", help="put the tables into docs/reports/scale-model.md")
    for field in fields(Run):
        name = f"--{field.name.replace('_', '-')}"
        parser.add_argument(name, type=type(field.default), default=field.default)
    given = vars(parser.parse_args())
    folder, write = given.pop("results"), given.pop("write")
    run, measured = Run(**given), Measured.read(folder)
    said = tables(run, measured, figures_of(folder, "in_flight").values())
    if write:
        before, _, rest = PAGE.read_text().partition(_BEGIN)
        PAGE.write_text(f"{before}{_BEGIN}\n\n{said}\n\n{_END}{rest.partition(_END)[2]}")
    print(said)


def tables(run: Run, measured: Measured, rows: Iterable[dict[str, Any]]) -> str:
    parts = [asked(run), held(rows), needed(run, measured), waiting(run, measured), cost(run, measured)]
    return "\n\n".join([*parts, breaks(run, measured)])


def table(title: str, head: str, rows: Iterable[Iterable[object]], note: str = "") -> str:
    columns = head.split(" | ")
    lines = [f"| {head} |", "|---" * len(columns) + "|", *(f"| {' | '.join(map(str, row))} |" for row in rows)]
    return "\n".join([f"### {title}", "", *([note, ""] if note else []), *lines])


def asked(run: Run) -> str:
    rows = [
        ("rollouts in flight", f"{run.rollouts:,}"),
        (
            "a rollout",
            f"{run.minutes:g} minutes, {run.turns} turns, {run.tokens:,} tokens, {run.group_size} in a group",
        ),
        ("turns", f"{run.turns_per_second:,.0f} a second; the model has {run.model_seconds:g} s for one"),
        ("ended", f"{run.ended_per_second:,.0f} rollouts and {run.groups_per_second:.1f} groups a second"),
        ("layout", f"{run.replicas} replicas of an environment, one PostgreSQL"),
        ("a machine", f"{run.machine_cores} cores, {run.machine_gb:g} GB, {run.machine_gbit:g} Gbit/s"),
        ("its price", f"{run.machine_price:g} an hour"),
        ("an engine", f"{run.engine_tokens_per_second:,.0f} tokens/s, {run.engine_price:g} an hour"),
    ]
    return table("The run", "what | assumed", rows)


def held(rows: Iterable[dict[str, Any]]) -> str:
    """The simulation compared with the measurement, with the turn's cost of the slowest model at the most in flight."""
    alone = [row for row in rows if row["replicas"] == 1]
    slowest = max(row["delay"] for row in alone)
    base = max((row for row in alone if row["delay"] == slowest), key=lambda row: row["in_flight"])
    service = base["cpu_ms_per_turn"] / 1000
    lines = []
    for row in alone:
        found = waits(row["in_flight"], row["delay"], 0.0, service)
        turns = min(row["in_flight"] / row["delay"], 1 / service)
        lines.append(
            (
                f"{row['in_flight']:,}, {row['delay']:g} s",
                f"{turns * service:.0%}",
                f"{row['cpu_share_of_a_core']:.0%}",
                f"{p99_ms(found):,.1f}",
                f"{row['gap_p99_ms']:,.1f}",
            )
        )
    head = "in flight, model | core, simulated | core, measured | p99 of a turn's wait, simulated, ms | measured"
    note = (
        f"One cost a turn, {service * 1000:.2f} ms, for all lines. Measured waits are longer: bursts, the collector, "
        "the start of all rollouts in one moment. Measured cores are less at high rates: beginning and end count in."
    )
    return table("Simulation and measurement", head, lines, note)


def needed(run: Run, measured: Measured) -> str:
    rows = [(one.part, one.need, one.rests_on, one.origin) for one in needs(run, measured)]
    return table("What it needs", "part | need | rests on | which is", rows)


def waiting(run: Run, measured: Measured) -> str:
    """How long a turn waits in a replica, by the number of rollouts that it holds."""
    service, rows = turn_ms(measured) / 1000, []
    full = run.model_seconds / service
    for share in (0.1, 0.3, FULL, 0.8, 0.95, 1.2):
        rollouts = max(1, round(full * share))
        found = waits(rollouts, run.model_seconds, 0.8, service)
        rows.append((f"{rollouts:,}", f"{share:.0%}", f"{p99_ms(found):,.1f}"))
    note = (
        f"{turn_ms(measured):.2f} ms of the core a turn, exact tokens included; the model's time log-normal around "
        f"{run.model_seconds:g} s. The replicas of this run hold {run.rollouts / run.replicas:,.0f} each."
    )
    return table(
        "Where a replica bends", "rollouts in one replica | of its core | p99 of a turn's wait, ms", rows, note
    )


def cost(run: Run, measured: Measured) -> str:
    environments, sandboxes = environment_machines(run, measured), sandbox_machines(run, measured)
    ended = run.ended_per_second * 3600
    rows = [
        (name, f"{count:,}", f"{count * price:,.0f}", f"{count * price / ended * 1000:,.2f}")
        for name, count, price in (
            ("environments", environments, run.machine_price),
            ("trajectory API and database", 2, run.machine_price),
            ("sandboxes", sandboxes, run.machine_price),
            ("engines", engine_count(run), run.engine_price),
        )
    ]
    return table("Machines and cost", "part | machines | an hour | a thousand rollouts", rows)


def breaks(run: Run, measured: Measured) -> str:
    """What no machine more would help, in the order in which it gives way."""
    limits = sorted((one.limit, one) for one in needs(run, measured) if one.limit is not None)
    rows = [
        (number, one.part, f"{limit:,.0f}", one.rests_on, one.origin, one.then)
        for number, (limit, one) in enumerate(limits, 1)
    ]
    head = "order | what breaks | at rollouts in flight | rests on | which is | what gets past it"
    note = "As laid out above; what queues counts as broken when more than 60% of it is in use."
    return table("What breaks first", head, rows, note)


if __name__ == "__main__":
    main()
