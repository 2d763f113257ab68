"""What trajectory_api.py measures, a round at a time.

Always true: each measurement has a server and a database of its own, new and empty; within a round all write the same
groups.
"""

import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import psycopg

from benchmarks.trajectory_api_bodies import BinaryBodies, made_bodies
from benchmarks.trajectory_api_client import Environment, Posts, post, posting, probe
from benchmarks.trajectory_api_servers import (
    PLACE,
    Process,
    bare_postgres,
    bare_sqlite,
    batch_as_atropos,
    batch_natively,
    our_api,
    run_api,
    start_as_atropos,
    start_natively,
)
from tests.store.database.postgres_server import PostgresServer

TOKENS = 8192
CLIENTS = 8
# Where the numbers of the groups begin that only warm a server up.
WARM_UP = 1_000_000
# By tokens: a second or so of work for ours, and a few seconds for run-api.
OUR_GROUPS = {512: 1500, 2048: 800, 8192: 240, 32768: 64}
RUN_API_GROUPS = {512: 32, 2048: 16, 8192: 16, 32768: 8}


class Bench:
    """The parts that all measurements share, and the groups by tokens, in files that the clients read."""

    def __init__(self, place: Path, atropos: Path, postgres: PostgresServer) -> None:
        self._place = place
        self._atropos = atropos
        self._postgres = postgres
        self._databases = 0

    def make(self, tokens: int) -> None:
        for form, data in zip(("binary", "json"), made_bodies(tokens), strict=True):
            self._base(tokens, form).write_bytes(data)

    def warm_up(self, megabytes: int) -> None:
        """Have PostgreSQL make the files of its log, which it later uses again and again."""
        bare_postgres(self._postgres.new_schema(), [bytes(2**20)] * megabytes, CLIENTS)

    def round(self, tokens: int) -> dict[str, float]:
        """Everything once, at one length."""
        bodies = BinaryBodies(self._base(tokens, "binary").read_bytes())
        groups = [bodies.joined(number) for number in range(OUR_GROUPS[tokens])]
        measured = {"mb": len(groups[0]) / 1e6, "bare_sqlite": bare_sqlite(groups)}
        with our_api(self._new_file()) as api:
            measured["sqlite"] = self._warm_posted(start_natively(api.url), tokens, len(groups))
            measured["batch_s"], size = batch_natively(api.url)
            measured["batch_mb"] = size / 1e6
        with our_api(self._new_file()) as api:
            measured |= self._as_atropos(api, "atropos_routes", tokens)
        with run_api(self._atropos) as api:
            before = api.resident_mb()
            measured |= self._as_atropos(api, "run_api", tokens, lambda: api.resident_mb() - before)
        measured["bare_postgres"] = bare_postgres(self._settled_schema(), groups, CLIENTS)
        with our_api(self._settled_schema()) as api:
            measured["postgres"] = self._warm_posted(start_natively(api.url), tokens, len(groups))
        with our_api(self._new_file()) as api:
            one = start_natively(api.url)
            measured["sqlite_one_client"] = self._warm_posted(one, tokens, len(groups) // 2, clients=1)
        self._clear()
        return measured

    def busy(self, seconds: float) -> dict[str, Any]:
        """How long others wait meanwhile, on either server, in milliseconds."""
        with our_api(self._new_file()) as api:
            environment = start_natively(api.url)
            beat = environment.path.replace("groups", "work")
            requests = [("GET", "/v1/status", None), ("POST", beat, {"running": 0}), ("GET", "/health", None)]
            ours = self._probed(environment, requests, batch_natively, seconds)
        with run_api(self._atropos) as api:
            environment = start_as_atropos(api.url, TOKENS)
            requests = [("GET", "/status", None), ("GET", "/status-env", {"env_id": environment.number})]
            # Time enough for a batch to be made and read.
            theirs = self._probed(environment, requests, batch_as_atropos, max(seconds, 10.0))
        self._clear()
        return {"ours": ours, "run_api": theirs}

    def queue_up(self, tokens: int, count: int) -> dict[str, Any]:
        """Resident megabytes of the API after each tenth of so many groups; fewer if they would fill the disk."""
        size = self._base(tokens, "binary").stat().st_size
        count = min(count, int(shutil.disk_usage(PLACE).free / 4 / size))
        resident = []
        with our_api(self._new_file()) as api:
            environment = start_natively(api.url)
            for tenth in range(10):
                self._posted(environment, tokens, count // 10, first=tenth * (count // 10))
                resident.append(round(api.resident_mb()))
            status = probe(api.url, [("GET", "/v1/status", None)], 2.0, 0.02)
        self._clear()
        return {
            "groups": count // 10 * 10,
            "queued_mb": round(count * size / 1e6),
            "resident_mb": resident,
            "growth_mb": resident[-1] - resident[0],
            "status_median_ms": round(median(status) * 1000, 2),
        }

    def _as_atropos(
        self, api: Process, name: str, tokens: int, grown: Callable[[], float] | None = None
    ) -> dict[str, float]:
        count = RUN_API_GROUPS[tokens]
        measured = {name: self._warm_posted(start_as_atropos(api.url, tokens), tokens, count)}
        if grown is not None:
            measured[f"{name}_mb_a_group"] = grown() / (count + CLIENTS)
        seconds, size = batch_as_atropos(api.url)
        return measured | {f"{name}_batch_s": seconds, f"{name}_batch_mb": size / 1e6}

    def _warm_posted(self, environment: Environment, tokens: int, groups: int, *, clients: int = CLIENTS) -> float:
        """Posts to a server that has answered some before."""
        self._posted(environment, tokens, CLIENTS, first=WARM_UP)
        return self._posted(environment, tokens, groups, clients=clients)

    def _posted(
        self, environment: Environment, tokens: int, groups: int, *, clients: int = CLIENTS, first: int = 0
    ) -> float:
        return post(Posts(environment, self._base(tokens, environment.form), first, groups, clients)).per_second

    def _probed(
        self,
        environment: Environment,
        requests: list[tuple[str, str, Any]],
        batch: Callable[[str], Any],
        seconds: float,
    ) -> dict[str, Any]:
        posts = Posts(environment, self._base(TOKENS, environment.form), 0, None, CLIENTS)
        ended = threading.Event()
        batches: list[float] = []

        def train() -> None:
            while not ended.is_set():
                try:
                    batches.append(batch(environment.url)[0])
                except (RuntimeError, ValueError):
                    # Not enough groups yet.
                    ended.wait(0.05)

        trainer = threading.Thread(target=train)
        with posting(posts):
            trainer.start()
            time.sleep(1.0)
            latencies = probe(environment.url, requests, seconds, 0.01)
            ended.set()
            trainer.join()
        return {
            "requests": len(latencies),
            "batches_meanwhile": len(batches),
            "median_ms": round(median(latencies) * 1000, 2),
            "p99_ms": round(quantiles([*latencies, *latencies], n=100)[98] * 1000, 2),
            "worst_ms": round(max(latencies) * 1000, 2),
        }

    def _base(self, tokens: int, form: str) -> Path:
        return self._place / f"{form}-{tokens}"

    def _new_file(self) -> Path:
        self._databases += 1
        return self._place / f"store-{self._databases}" / "store.db"

    def _settled_schema(self) -> str:
        with psycopg.connect(self._postgres.address, autocommit=True) as connection:
            connection.execute("CHECKPOINT")
        return self._postgres.new_schema()

    def _clear(self) -> None:
        for place in self._place.glob("store-*"):
            shutil.rmtree(place)
