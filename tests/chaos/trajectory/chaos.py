"""One chaos from an empty store to its verdict."""

import asyncio
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from tests.chaos.trajectory.grounds import ground
from tests.chaos.trajectory.referee import Kill, Plan, Referee
from tests.chaos.trajectory.report import told
from tests.chaos.trajectory.stage import Stage
from tests.chaos.trajectory.verdict import breaches, gathered

DRAIN_S = 240.0


@dataclass(frozen=True, slots=True)
class Scene:
    """What is to happen where. `settle` is the time without a kill before and after; `pace` the producers' pause."""

    database: str
    plan: Plan
    replicas: int = 1
    producers: int = 4
    seed: int = 0
    pace: float = 0.2
    settle: float = 1.0
    megabytes: int = 6_000
    most_seconds: float = 1_500.0
    plant: str = "none"


@dataclass(frozen=True, slots=True)
class Outcome:
    breaches: list[str]
    kills: list[Kill]
    report: dict[str, Any]


def run(scene: Scene, meddle: Callable[[str], None] | None = None) -> Outcome:
    """Carry it out. `meddle` is given the store's address after the first groups came in."""
    with (
        ground(scene.database, scene.megabytes) as place,
        tempfile.TemporaryDirectory(prefix="hermes-rl-chaos-") as name,
    ):
        began = time.monotonic()
        with Stage(
            place.address,
            Path(name),
            producers=scene.producers,
            replicas=scene.replicas,
            seed=scene.seed,
            pace=scene.pace,
            plant=scene.plant,
        ) as stage:
            referee = Referee(stage, place, Random(scene.seed))
            time.sleep(scene.settle)
            if meddle is not None:
                meddle(place.address)
            referee.carry_out(scene.plan, scene.most_seconds)
            time.sleep(scene.settle)
            stage.look_after()
            stage.drain(DRAIN_S)
            referee.record.seconds = time.monotonic() - began
            producers = {actor.directory.name: actor.told() for actor in stage.producers}
            consumer = stage.consumer.told()
        evidence = asyncio.run(gathered(place.address, producers, consumer, Path(name)))
    found = [*breaches(evidence), *stage.faults]
    report = {"database": scene.database, "replicas": scene.replicas, "seed": scene.seed, "breaches": found}
    return Outcome(found, referee.record.kills, report | told(referee.record, evidence, producers, consumer))
