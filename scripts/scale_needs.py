"""A part of scripts/scale_model.py: what a run of a given size needs, from figures that were measured.

Always true: each need says which figure it rests on and where that comes from: measured here, published by others, the
kernel's, or assumed. A part that machines can be added to has no limit; one that they cannot be added to has one.
"""

import heapq
import json
import math
import random
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

SOURCES = {
    "in_flight": "python benchmarks/in_flight.py --full --write",
    "trajectory_api": "python benchmarks/trajectory_api.py | tail -1 >docs/reports/trajectory_api.json",
    "gateway": "python benchmarks/gateway.py | tail -1 >docs/reports/gateway.json",
    "sandbox": "python benchmarks/sandbox.py --no-docker | tail -1 >docs/reports/sandbox.json",
}
# A process that is busier answers late, whatever its average says; the simulation shows it.
FULL = 0.6
# Of the simulation, in times of the model: until the way all began is forgotten, and in all.
UNCOUNTED, ROUNDS = 4, 10


@dataclass(frozen=True)
class Run:
    """The run that is asked about; all of it is an assumption."""

    rollouts: int = 100_000
    minutes: float = 10.0
    turns: int = 20
    tokens: int = 8_192
    sampled_share: float = 0.5
    group_size: int = 16
    replicas: int = 64
    sandbox_mb: float = 64.0
    sandbox_starts_published: float = 30.0
    engine_tokens_per_second: float = 3_000.0
    machine_cores: int = 32
    machine_gb: float = 128.0
    machine_gbit: float = 10.0
    machine_price: float = 1.5
    engine_price: float = 2.5
    ports: int = 28_000
    descriptors: int = 20_000

    @property
    def turns_per_second(self) -> float:
        return self.rollouts * self.turns / (self.minutes * 60)

    @property
    def ended_per_second(self) -> float:
        return self.rollouts / (self.minutes * 60)

    @property
    def groups_per_second(self) -> float:
        return self.ended_per_second / self.group_size

    @property
    def model_seconds(self) -> float:
        return self.minutes * 60 / self.turns


@dataclass(frozen=True)
class Measured:
    """The figures of this machine that the model rests on."""

    cpu_ms_a_turn: float
    tokens_cpu_ms: float
    kb_a_rollout: float
    process_mb: float
    in_flight_a_process: int
    postgres_groups: float
    group_mb: float
    batch_seconds: float
    batch_mb: float
    sandbox_starts: float
    command_ms: float

    @classmethod
    def read(cls, folder: Path) -> "Measured":
        found = {name: figures_of(folder, name) for name in SOURCES}
        rows = [row for row in found["in_flight"].values() if row["replicas"] == 1]
        slowest = max(row["delay"] for row in rows)
        steady = [row for row in rows if row["delay"] == slowest]
        straight = [row for row in steady if not row["bends"]] or steady[:1]
        best = max(straight, key=lambda row: row["in_flight"])
        gateway = found["gateway"]["512"]
        ladder = found["trajectory_api"]["ladder"]
        api = ladder.get("8192") or next(iter(ladder.values()))
        starts, commands = found["sandbox"]["bubblewrap_starts"], found["sandbox"]["bubblewrap_commands"]
        return cls(
            cpu_ms_a_turn=best["cpu_ms_per_turn"],
            tokens_cpu_ms=max(0.0, gateway["tokens"]["cpu_ms_per_call"] - gateway["chat"]["cpu_ms_per_call"]),
            kb_a_rollout=best["kb_per_rollout"],
            process_mb=best["peak_mb_a_process"] - best["kb_per_rollout"] * best["in_flight"] / 1024,
            in_flight_a_process=best["in_flight"],
            postgres_groups=api["postgres"],
            group_mb=api["mb"],
            batch_seconds=api["batch_s"],
            batch_mb=api["batch_mb"],
            sandbox_starts=starts["sandboxes"] / starts["ours_s"],
            command_ms=commands["ours_ms"],
        )


class Need(NamedTuple):
    """What a part needs, and the figure behind it. `limit`: the rollouts at which no machine more would help."""

    part: str
    need: str
    rests_on: str
    origin: str
    limit: float | None = None
    then: str = ""
    """What gets past the limit."""


def figures_of(folder: Path, name: str) -> dict[str, Any]:
    path = folder / f"{name}.json"
    if not path.exists():
        sys.exit(f"{path} is missing; make it with `{SOURCES[name]}`")
    figures: dict[str, Any] = json.loads(path.read_text())["figures"]
    return figures


def waits(rollouts: int, think: float, spread: float, service: float, seed: int = 0) -> list[float]:
    """How long each turn is in the process, waiting for the core and being served, in seconds.

    Rollouts wait for the model (log-normal with this mean and spread; constant where the spread is 0), then for one
    core that serves one after the other.
    """
    generator = random.Random(seed)
    mean = math.log(think) - spread * spread / 2

    def thinking() -> float:
        return generator.lognormvariate(mean, spread) if spread else think

    arrivals = [generator.random() * think for _ in range(rollouts)]
    heapq.heapify(arrivals)
    free_at, found = 0.0, []
    while arrivals[0] < ROUNDS * think:
        came = arrivals[0]
        free_at = max(free_at, came) + service
        if came > UNCOUNTED * think:
            found.append(free_at - came)
        heapq.heapreplace(arrivals, free_at + thinking())
    return found


def p99_ms(times: Sequence[float]) -> float:
    return sorted(times)[int(len(times) * 0.99)] * 1000 if times else 0.0


def turn_ms(measured: Measured) -> float:
    return measured.cpu_ms_a_turn + measured.tokens_cpu_ms


def text_kb(run: Run) -> float:
    """A rollout's conversation and its tokens: about 4 bytes of text a token, 9 of ids, masks and logprobs."""
    return run.tokens * 13 / 1024


def needs(run: Run, measured: Measured) -> list[Need]:
    return [
        *environment_needs(run, measured),
        *api_needs(run, measured),
        *sandbox_needs(run, measured),
        *engine_needs(run),
    ]


def environment_needs(run: Run, measured: Measured) -> list[Need]:
    cores = run.turns_per_second * turn_ms(measured) / 1000
    memory = run.replicas * measured.process_mb / 1024 + run.rollouts * (measured.kb_a_rollout + text_kb(run)) / 2**20
    asked = run.turns_per_second * run.tokens / 2 * 6 / 1e6
    answered = run.ended_per_second * run.tokens * run.sampled_share * 25 / 1e6
    machines = environment_machines(run, measured)
    return [
        Need(
            "environments: processor",
            f"{cores:,.1f} cores of work, {cores / run.replicas:.0%} of a core in each of {run.replicas} replicas",
            f"{turn_ms(measured):.2f} ms a turn, {measured.tokens_cpu_ms:.2f} of it for exact tokens",
            "measured",
            run.rollouts * run.replicas * FULL / cores,
            "more replicas: `serve --replicas N --shards M`",
        ),
        Need(
            "environments: in flight",
            f"{run.rollouts / run.replicas:,.0f} a replica",
            f"{measured.in_flight_a_process:,} in one process without a bend; {run.descriptors:,} descriptors",
            "measured",
            run.replicas * float(min(measured.in_flight_a_process, run.descriptors)),
            "more replicas",
        ),
        Need(
            "environments: memory",
            f"{memory:,.0f} GB",
            f"{measured.kb_a_rollout:.0f} KB a null rollout, {text_kb(run):.0f} KB of text and tokens",
            "measured, and assumed for text",
        ),
        Need(
            "bandwidth to the engines",
            f"{asked:,.0f} MB/s asked, {answered:,.0f} answered; {(asked + answered) / machines:,.0f} MB/s a machine",
            "6 bytes a prompt token, 25 a sampled one, in JSON",
            "assumed",
            run.rollouts * machines * network_mb(run) * FULL / (asked + answered),
            "more machines for the environments, or a router next to the engines that caches prompts",
        ),
        Need(
            "ports to the engines",
            f"{run.rollouts / machines:,.0f} connections a machine",
            f"{run.ports:,} ports to each of {engine_count(run):,} addresses",
            "the kernel's",
            float(machines * run.ports * engine_count(run)),
            "more addresses, or requests over fewer connections",
        ),
    ]


def api_needs(run: Run, measured: Measured) -> list[Need]:
    size = group_mb(run, measured)
    sent = run.groups_per_second * size
    capacity = measured.postgres_groups * measured.group_mb / size
    out = measured.batch_mb / measured.batch_seconds
    return [
        Need(
            "trajectory API: database",
            f"{run.groups_per_second:.1f} groups/s, {sent:.1f} MB/s; {sent * 86_400 / 1e6:,.2f} TB a day",
            f"{capacity:.0f} groups/s of {size:.2f} MB through one API to one PostgreSQL",
            "measured, on two cores shared with its clients",
            run.rollouts * capacity * FULL / run.groups_per_second,
            "a faster disk first; then a database for each part of the environments",
        ),
        Need(
            "trajectory API: batches out",
            f"{sent:.1f} MB/s to the trainer",
            f"{measured.batch_mb:.1f} MB in {measured.batch_seconds * 1000:.0f} ms",
            "measured",
            run.rollouts * out * FULL / sent,
            "several API processes over the database, each giving a part of a batch",
        ),
    ]


def sandbox_needs(run: Run, measured: Measured) -> list[Need]:
    commands = run.turns_per_second * measured.command_ms / 1000
    here = f"{measured.sandbox_starts:.0f} starts/s on two cores, {measured.command_ms:.1f} ms a command"
    return [
        Need(
            "sandboxes on machines of one's own",
            f"{run.ended_per_second:,.0f} starts/s, {commands:,.0f} cores for commands that do nothing, "
            f"{run.rollouts * run.sandbox_mb / 1024:,.0f} GB",
            f"{here}; {run.sandbox_mb:g} MB each",
            "measured, and assumed for memory",
        ),
        Need(
            "sandboxes of a provider",
            f"{run.ended_per_second:,.0f} starts/s",
            f"{run.sandbox_starts_published:g} starts/s an account",
            "published",
            run.rollouts * run.sandbox_starts_published / run.ended_per_second,
            "several accounts (`--env.sandbox_settings` takes a list), or machines of one's own",
        ),
    ]


def engine_needs(run: Run) -> list[Need]:
    tokens = run.ended_per_second * run.tokens
    return [
        Need(
            "engines",
            f"{tokens * run.sampled_share:,.0f} tokens/s: {engine_count(run):,} of them",
            f"{run.engine_tokens_per_second:,.0f} tokens/s each",
            "assumed",
        ),
        Need(
            "trainer",
            f"{tokens:,.0f} tokens/s, or the API lets fewer groups begin",
            "the staleness bound",
            "not measured here: no GPU",
        ),
    ]


def group_mb(run: Run, measured: Measured) -> float:
    """The measured group is 16 rollouts of 8,192 tokens."""
    return measured.group_mb * run.group_size / 16 * run.tokens / 8192


def network_mb(run: Run) -> float:
    return run.machine_gbit * 1000 / 8


def engine_count(run: Run) -> int:
    return math.ceil(run.ended_per_second * run.tokens * run.sampled_share / run.engine_tokens_per_second)


def environment_machines(run: Run, measured: Measured) -> int:
    by_cores = run.replicas / run.machine_cores
    by_memory = run.rollouts * (measured.kb_a_rollout + text_kb(run)) / 2**20 / (run.machine_gb * FULL)
    return max(2, math.ceil(by_cores), math.ceil(by_memory))


def sandbox_machines(run: Run, measured: Measured) -> int:
    by_memory = run.rollouts * run.sandbox_mb / 1024 / (run.machine_gb * 0.8)
    # The measured starts were made by two cores.
    starts = run.ended_per_second / (measured.sandbox_starts / 2)
    by_cores = (starts + run.turns_per_second * measured.command_ms / 1000) / (run.machine_cores * FULL)
    return max(math.ceil(by_memory), math.ceil(by_cores))
