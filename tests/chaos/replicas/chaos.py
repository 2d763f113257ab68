"""A fleet on a Ray cluster while its nodes, its driver and its APIs come and go: what was lost, doubled, and regained.

Always true: a fault is made only while every shard is at work, and the next one only after the last was overcome.
"""

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.chaos.replicas.figures import LOOK, WINDOW, Course, Fault, summary
from tests.orchestration.replicas.stage import NAME, Command, Stage, staged

LONGEST = 600.0
CUT_SECONDS = 20.0
AWAY_SECONDS = 3.0
RECOVERS_WITHIN = 60.0
# What is left after the last fault is made as fast as this machine can.
FAST = 0.05
NODE_KINDS = ("kill", "remove", "cut", "slow", "drain")


class Cluster(Protocol):
    @property
    def address(self) -> str: ...

    def add_node(self) -> object: ...

    def kill_node(self, name: str, *, graceful: bool = False) -> None: ...


@dataclass(frozen=True, slots=True)
class Scene:
    """`database` is a PostgreSQL's address; SQLite when it is left out."""

    replicas: int = 3
    shards: int = 3
    items: int = 400
    faults: tuple[str, ...] = ("kill", "remove")
    seconds_a_turn: float = 1.5
    groups_at_once: int = 2
    host: str = "127.0.0.1"
    database: str | None = None
    apis: int = 1
    seed: int = 0


async def run(scene: Scene, cluster: Cluster, folder: Path, tell: Callable[[str], None]) -> dict[str, Any]:
    place = (scene.host, scene.database, scene.apis)
    async with staged(folder, scene.seconds_a_turn, *place) as stage:
        return await _Play(scene, stage, cluster, tell).play()


class _Play:
    def __init__(self, scene: Scene, stage: Stage, cluster: Any, tell: Callable[[str], None]) -> None:
        self._scene, self._stage, self._cluster, self._tell = scene, stage, cluster, tell
        self._chance = random.Random(scene.seed)
        self._course, self._faults = Course(), list[Fault]()
        self._command = self._started()

    async def play(self) -> dict[str, Any]:
        looking = asyncio.create_task(self._look())
        try:
            for kind in self._scene.faults:
                await self._until(lambda: self._all_at_work() or self._command.over)
                await asyncio.sleep(WINDOW)
                if self._command.over:
                    break
                self._faults.append(await self._fault(kind))
                self._tell(f"{self._faults[-1]} load {os.getloadavg()[0]:.1f}")
            self._stage.model.seconds_a_turn = FAST
            await self._until(lambda: self._command.over, self._scene.items + LONGEST)
        finally:
            looking.cancel()
        return self._verdict()

    async def _fault(self, kind: str) -> Fault:
        await self._until(lambda: self._stage.model.open or self._command.over)
        victim = self._chosen(kind)
        shards = _nodes(self._stage).get(victim, list(range(self._scene.shards)))
        restarts = {number: _state(self._stage, number)["restarts"] for number in shards}
        in_flight = self._stage.model.open
        began = time.monotonic()
        await self._make(kind, victim)
        await self._until(lambda: self._is_overcome(kind, victim, restarts) or self._command.over)
        # Not of before: what a dying worker had posted may arrive after the fault.
        served, then = time.monotonic(), self._delivered()
        await self._until(lambda: self._deliver(shards, then) or self._command.over)
        delivers = time.monotonic()
        if kind == "cut":
            # Ray has given the node up, and its raylet itself.
            await self._exchanged(victim)
        rate = self._course.rate(began - WINDOW, began)
        await self._until_recovered(served, rate)
        now = time.monotonic()
        return Fault(
            kind,
            victim,
            len(shards),
            in_flight,
            served_again=round(served - began, 1),
            delivers_again=round(delivers - began, 1),
            recovered=None if (again := self._course.recovered(served, rate, now)) is None else round(again - began, 1),
            rate_before=round(rate, 2),
            rate_during=round(self._course.rate(began, delivers), 2),
            rate_after=round(self._course.rate(now - WINDOW, now), 2),
        )

    async def _until_recovered(self, served: float, rate: float) -> None:
        """Until the rate is what it was, or for as long as that is waited for."""
        deadline = time.monotonic() + RECOVERS_WITHIN
        while time.monotonic() < deadline and not self._command.over:
            await asyncio.sleep(LOOK)
            if self._course.recovered(served, rate, time.monotonic()) is not None:
                return

    def _chosen(self, kind: str) -> str:
        if kind == "api":
            return str(self._chance.randrange(self._scene.apis))
        return self._chance.choice(sorted(_nodes(self._stage))) if kind in NODE_KINDS else kind

    async def _make(self, kind: str, victim: str) -> None:
        match kind:
            case "kill" | "remove":
                await self._exchanged(victim, graceful=kind == "remove")
            case "cut":
                self._cluster.cut(victim, off=True)
                await asyncio.sleep(CUT_SECONDS)
                self._cluster.cut(victim, off=False)
            case "slow":
                self._cluster.slow(victim, on=True)
                await asyncio.sleep(CUT_SECONDS)
                self._cluster.slow(victim, on=False)
            case "drain":
                await asyncio.to_thread(self._stage.replicas, "drain", NAME, victim)
                # Those that are closing too.
                await self._until(
                    lambda: victim not in [one["node"] for one in _standing(self._stage)["replicas"].values()]
                )
                await self._exchanged(victim)
            case "resize":
                await asyncio.to_thread(self._stage.replicas, "resize", NAME, "1")
                await self._until(lambda: len(_nodes(self._stage)) == 1)
                await asyncio.to_thread(self._stage.replicas, "resize", NAME, str(self._scene.replicas))
            case "driver":
                self._command.signal(signal.SIGKILL)
                self._command.ended()
                await asyncio.sleep(AWAY_SECONDS)
                self._command = self._started()
            case "api":
                self._stage.apis.kill(int(victim))
                await asyncio.sleep(AWAY_SECONDS)
                await asyncio.to_thread(self._stage.apis.start, int(victim))
            case _:
                raise ValueError(f"there is no fault {kind!r}")

    async def _exchanged(self, victim: str, *, graceful: bool = False) -> None:
        """One node for another. Beside the event loop, on which the model answers."""
        await asyncio.to_thread(self._cluster.kill_node, victim, graceful=graceful)
        await asyncio.to_thread(self._cluster.add_node)

    def _is_overcome(self, kind: str, victim: str, restarts: dict[int, int]) -> bool:
        """Whether all shards are served, after a fault that ends workers by others."""
        told = _standing(self._stage)
        if any(one["state"] not in {"served", "done"} for one in told["shards"]) or not told["shards"]:
            return False
        if kind == "driver":
            return bool(told["driver"]["pid"] == self._command.process.pid)
        if kind in {"kill", "remove"}:
            held = {number: told["shards"][number] for number in restarts}
            return all(one["state"] == "done" or one["restarts"] > restarts[number] for number, one in held.items())
        if kind == "resize":
            return len([one for one in told["replicas"].values() if one["state"] == "open"]) == self._scene.replicas
        return True

    def _verdict(self) -> dict[str, Any]:
        draws = self._stage.draws()
        lost = set(range(self._scene.items)) - draws.keys()
        asked = self._stage.model.requests / 2
        return {
            "items": self._scene.items,
            "exit": self._command.process.poll(),
            "lost": len(lost),
            "doubled": sum(count > 1 for count in draws.values()),
            "faults_wanted": len(self._scene.faults),
            **summary(self._faults),
            "groups_made_again": round(asked - self._scene.items, 1),
            "seconds": round(self._course.seconds, 1),
        }

    def _started(self) -> Command:
        scene = self._scene
        options = ("--replicas", str(scene.replicas), "--shards", str(scene.shards), "--on", "ray")
        return self._stage.serve(
            *(*options, "--ray-address", self._cluster.address),
            items=scene.items,
            max_num_workers=scene.groups_at_once,
        )

    async def _look(self) -> None:
        while True:
            groups = await asyncio.to_thread(self._stage.groups)
            self._course.moments.append((time.monotonic(), groups))
            await asyncio.sleep(LOOK)

    async def _until(self, true: Callable[[], object], seconds: float = LONGEST) -> None:
        deadline = time.monotonic() + seconds
        while not true():
            if time.monotonic() > deadline:
                raise TimeoutError(self._command.said[-3000:])
            await asyncio.sleep(LOOK)

    def _delivered(self) -> dict[int, int]:
        """Groups of each shard."""
        counts = dict.fromkeys(range(self._scene.shards), 0)
        for draw in self._stage.draws():
            counts[draw % self._scene.shards] += 1
        return counts

    def _all_at_work(self) -> bool:
        """Whether each has delivered something, or has no more to do, and the model is being asked."""
        states = [one["state"] for one in _standing(self._stage)["shards"]]
        counts = self._delivered()
        working = len(states) == self._scene.shards and all(
            state == "done" or (state == "served" and counts[number]) for number, state in enumerate(states)
        )
        return working and self._stage.model.open > 0

    def _deliver(self, shards: list[int], then: dict[int, int]) -> bool:
        now = self._delivered()
        return all(now[one] > then[one] or _state(self._stage, one)["state"] == "done" for one in shards)


def _standing(stage: Stage) -> dict[str, Any]:
    return stage.standing() or {"shards": [], "replicas": {}}


def _state(stage: Stage, shard: int) -> dict[str, Any]:
    told: dict[str, Any] = _standing(stage)["shards"][shard]
    return told


def _nodes(stage: Stage) -> dict[str, list[int]]:
    """The shards that are served from each node."""
    found: dict[str, list[int]] = {}
    for one in _standing(stage)["replicas"].values():
        if one["state"] == "open" and one["shards"]:
            found.setdefault(one["node"], []).extend(one["shards"])
    return found
