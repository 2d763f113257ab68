"""What is measured, and one measurement: a framework's driver in a fresh process beside a fresh model.

Always true: the model has a core and the driver has another, where there are two; a driver that says nothing, or too
late, is a result that says so and not the end of the benchmark.
"""

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from benchmarks.peers.work import FAULTS, Job

HERE = Path(__file__).resolve().parent
ENGINES = HERE.parents[1] / "scripts" / "engine_environment"
# Beyond a driver's own limit: for its start, its warm-up and its last words.
GRACE_S = 180.0


@dataclass(frozen=True)
class Peer:
    """A framework: its driver here, and its environment by the name that scripts/engine_environment knows."""

    title: str
    driver: str
    environment: str | None = None

    def python(self) -> str:
        if self.environment is None:
            return sys.executable
        made = subprocess.run([ENGINES, self.environment], stdout=subprocess.PIPE, text=True, check=True)
        return f"{made.stdout.strip()}/bin/python"


PEERS = {
    "bare": Peer("bare aiohttp client", "bare"),
    "hermes-rl": Peer("hermes-rl", "ours"),
    "verifiers": Peer("verifiers", "verifiers_peer", "verifiers"),
    "inspect": Peer("inspect_ai", "inspect_peer", "inspect"),
    "atropos": Peer("atroposlib, the seed's loop", "atropos_peer", "atropos"),
}


@dataclass(frozen=True)
class Measure:
    """`delay` is the model's seconds for an answer, `limit` the seconds after which a run is stopped and told so."""

    name: str
    recording: str
    in_flight: int
    rollouts: int
    delay: float = 0.0
    repeats: int = 1
    limit: float = 600.0
    faults: bool = False
    patience: float = 600.0


SMALL = (
    Measure("busy_64", "null", 64, 128),
    Measure("recorded_64", "recorded", 64, 64),
    Measure("waiting", "null", 64, 64, delay=0.5),
    Measure("faults", "null", 44, 44, delay=0.05, faults=True, patience=4.0, limit=240.0),
)
FULL = (
    Measure("busy_64", "null", 64, 1024, repeats=3),
    Measure("busy_512", "null", 512, 1536, repeats=3),
    Measure("recorded_64", "recorded", 64, 256, repeats=3),
    Measure("waiting", "null", 4096, 4096, delay=30.0, limit=1500.0),
    Measure("faults", "null", 220, 220, delay=0.2, faults=True, patience=20.0, limit=900.0),
)


class Model:
    """The model's process, on the first core."""

    def __init__(self, recording: str, host: str = "127.0.0.1") -> None:
        command = [sys.executable, str(HERE / "model.py"), "--recording", recording]
        self.process = subprocess.Popen(pinned(0, [*command, "--host", host]), stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()

    def set_delay(self, seconds: float) -> None:
        asked = urllib.request.Request(f"{self.url}/delay", data=str(seconds).encode(), method="PUT")
        with urllib.request.urlopen(asked, timeout=60) as response:
            response.read()

    def stats(self) -> dict[str, Any]:
        """What happened since this was asked last."""
        return self.get("stats")

    def waiting(self) -> int:
        """Requests that wait for their answer now."""
        return int(self.get("waiting")["waiting"])

    def get(self, what: str) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/{what}", timeout=60) as response:
            told: dict[str, Any] = json.load(response)
        return told

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.communicate()


def pinned(core: int, command: list[str]) -> list[str]:
    return ["taskset", "-c", str(core), *command] if (os.cpu_count() or 1) > 1 else command


def measured(peer: Peer, python: str, measure: Measure) -> dict[str, Any]:
    """One run; `error` where the driver ended without a word."""
    with Model(measure.recording) as model, tempfile.TemporaryDirectory() as folder:
        job = Job(
            base_url=model.url,
            recording=measure.recording,
            rollouts=measure.rollouts,
            in_flight=measure.in_flight,
            folder=f"{folder}/job",
            delay=measure.delay,
            patience=measure.patience,
            faults=measure.faults,
        )
        command = [python, str(HERE / "drive.py"), peer.driver, str(measure.limit)]
        environment = {**os.environ, "HERMES_HOME": f"{folder}/home", "HOME": folder, "PYTHONDONTWRITEBYTECODE": "1"}
        log = Path(folder) / "log"
        try:
            with log.open("w") as said:
                done = subprocess.run(
                    pinned(1, command),
                    input=job.written(),
                    stdout=subprocess.PIPE,
                    stderr=said,
                    text=True,
                    timeout=measure.limit + GRACE_S,
                    env=environment,
                    cwd=folder,
                    check=False,
                )
            raw = json.loads(done.stdout.splitlines()[-1])
        except (subprocess.TimeoutExpired, IndexError, json.JSONDecodeError) as error:
            return {"error": f"{type(error).__name__}: {error}", "said": log.read_text()[-4000:]}
        return figures(measure, raw, model.stats())


def figures(measure: Measure, raw: dict[str, Any], stats: dict[str, Any]) -> dict[str, Any]:
    """A run's figures, from what its process says of itself and the model of it."""
    turns = stats["turns"]
    return {
        "turns_per_second": round(turns / raw["seconds"], 1),
        "cpu_ms_per_turn": round(raw["cpu_seconds"] * 1000 / max(turns, 1), 4),
        "kb_per_rollout": round(raw["memory_kb"] / measure.in_flight, 1),
        "gap_p50_ms": round(stats["gap_p50"] * 1000, 2),
        "gap_p99_ms": round(stats["gap_p99"] * 1000, 2),
        "succeeded": round(right(raw, "fine") / (measure.rollouts if not measure.faults else share(measure)), 4),
        "turns": turns,
        "most_connections": stats["most_connections"],
        "model_cpu_share": round(stats["cpu_seconds"] / raw["seconds"], 3),
        **raw,
        "lost": lost(measure, raw),
    }


def share(measure: Measure) -> int:
    """Rollouts of one kind, where there are faults."""
    return measure.rollouts // (len(FAULTS) + 1)


def right(raw: dict[str, Any], kind: str) -> int:
    return int((raw["outcomes"] or {}).get(kind, {}).get("right", 0))


def lost(measure: Measure, raw: dict[str, Any]) -> dict[str, int] | None:
    """Of each kind, the rollouts that the framework's records do not have; None where it was stopped before its end."""
    if raw["outcomes"] is None:
        return None
    wanted = {kind: share(measure) for kind in ("fine", *FAULTS)} if measure.faults else {"fine": measure.rollouts}
    return {kind: count - sum(raw["outcomes"].get(kind, {}).values()) for kind, count in wanted.items()}
