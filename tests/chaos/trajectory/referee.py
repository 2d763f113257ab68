"""Kills, restarts and a full disk at random moments, most of them aimed at work in progress, and the record of each.

Always true: what a killed actor held is read after its death; what the API held is what its callers waited for at the
moment of the kill. Waiting for groups to lease counts as idle, and so does waiting for the API to come back.
"""

import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from tests.chaos.trajectory.board import ASKING, MAKING, SENDING, WORK, Doing, Phase
from tests.chaos.trajectory.grounds import Ground
from tests.chaos.trajectory.stage import Actor, Replica, Stage

AIMED = 0.9
AIM_SECONDS = 2.0
BEGIN_SECONDS = 10.0
LOOK_S = 0.0002
# How far into the phase a kill comes.
DELAYS = (0.0, 0.0, 0.001, 0.005, 0.02)
# For how long the disk is full: at least, and until it was noticed at most.
FULL_LEAST = 4.0
FULL_MOST = 60.0
STORE_FULL = 507
Aim = Callable[[Sequence[Doing]], bool]


@dataclass(frozen=True, slots=True)
class Plan:
    """How often each is killed, the database restarted, and whether its disk is full once."""

    api: int = 0
    producers: int = 0
    consumer: int = 0
    restarts: int = 0
    disk_full: bool = False


@dataclass(frozen=True, slots=True)
class Kill:
    """One kill or restart. `doing` says what was under way in words that many kills share, `held` all of it."""

    at: float
    victim: str
    doing: str
    in_progress: bool
    held: dict[str, Any]


@dataclass(slots=True)
class Record:
    """What happened so far."""

    kills: list[Kill] = field(default_factory=list)
    disk: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0


def phase_is(*phases: Phase) -> Aim:
    return lambda doings: any(doing.phase in phases for doing in doings)


def in_a_body(doings: Sequence[Doing]) -> bool:
    return any(doing.in_a_body for doing in doings)


def several_posts(doings: Sequence[Doing]) -> bool:
    return sum(doing.phase is Phase.POSTING for doing in doings) > 1


def in_a_batch(doings: Sequence[Doing]) -> bool:
    return any(doing.phase is Phase.READING and doing.done > 0 for doing in doings)


AIMS: dict[str, Sequence[Aim]] = {
    "producer": (phase_is(Phase.ENCODING), phase_is(Phase.SPOOLING), phase_is(Phase.POSTING), in_a_body),
    "consumer": (
        phase_is(Phase.LEASING),
        in_a_batch,
        phase_is(Phase.READING),
        phase_is(Phase.TRAINING),
        phase_is(Phase.RECORDING),
        phase_is(Phase.ACKNOWLEDGING),
    ),
    "api": (phase_is(Phase.POSTING), several_posts, in_a_body, in_a_batch, phase_is(Phase.ACKNOWLEDGING)),
    "database": (several_posts, phase_is(Phase.POSTING), phase_is(Phase.ACKNOWLEDGING)),
}


class Referee:
    """Carries out a plan on a stage."""

    def __init__(self, stage: Stage, ground: Ground, random: Random) -> None:
        self.record = Record()
        self._stage, self._ground, self._random = stage, ground, random
        self._began = time.monotonic()

    def carry_out(self, plan: Plan, seconds: float) -> None:
        """All of it in a random order, the full disk in the middle; faults when there was no time for some."""
        events = ["api"] * plan.api + ["producer"] * plan.producers + ["consumer"] * plan.consumer
        events += ["database"] * plan.restarts
        self._random.shuffle(events)
        if plan.disk_full:
            events.insert(len(events) // 2, "disk")
        acts = {"api": self._api, "database": self._database, "disk": self._disk_full}
        for number, event in enumerate(events):
            if time.monotonic() - self._began > seconds:
                self._stage.faults.append(f"no time for the last {len(events) - number} of {len(events)} events")
                break
            self._stage.look_after()
            acts.get(event, lambda event=event: self._actor(event))()
            if number % 10 == 9:
                print(f"{self._now():6.1f} s  {number + 1} of {len(events)} events", file=sys.stderr, flush=True)
            time.sleep(self._random.uniform(0, 0.2))

    def _actor(self, kind: str) -> None:
        actor = self._at_work(self._stage.producers if kind == "producer" else [self._stage.consumer])
        self._wait_for(kind, actor.doing if kind == "producer" else lambda: actor.doing()[:SENDING])
        doing = actor.kill()
        spooled = actor.spooled()
        actor.start()
        held: dict[str, Any] = {slot: asdict(doing[at]) for slot, at in (("making", MAKING), ("sending", SENDING))}
        if kind == "producer":
            held |= {"spooled": spooled["group"], "half_written": spooled["part"]}
        else:
            # What the consumer has on its way to the API is what it does.
            doing = doing[:SENDING]
        self._note(kind, doing, WORK, held)

    def _api(self) -> None:
        replica = self._asked_replica()
        process = replica.process
        self._wait_for("api", lambda: self._stage.asked(replica))
        asked = self._stage.asked(replica)
        process.kill()
        replica.restart()
        self._note_requests("api", asked)

    def _database(self) -> None:
        assert self._ground.restart is not None
        how = self._random.choice([signal.SIGINT, signal.SIGQUIT])
        self._asked_replica()
        self._wait_for("database", self._stage.asked)
        asked = self._stage.asked()
        self._ground.restart(how)
        self._note_requests("database", asked, how="fast" if how is signal.SIGINT else "immediate")

    def _disk_full(self) -> None:
        """Until two producers were told so and groups wait in spools; then there is room again, and all must go on."""
        began = self._now()
        self._asked_replica()
        before = self._refusals()
        told: Counter[str] = Counter()
        spooled: Counter[str] = Counter()
        while self._now() - began < (FULL_LEAST if len(told) > 1 and spooled else FULL_MOST):
            self._ground.disk.fill()
            time.sleep(0.05)
            told = self._refusals() - before
            spooled |= Counter({actor.directory.name: actor.spooled()["group"] for actor in self._stage.producers})
        self._ground.disk.make_room()
        self.record.disk = {
            "at": round(began, 2),
            "seconds": round(self._now() - began, 2),
            "posts_refused": dict(told),
            "most_spooled": dict(spooled),
        }
        if not told:
            self._stage.faults.append("the disk was full, and no post was refused for it")

    def _refusals(self) -> Counter[str]:
        return Counter(
            actor.directory.name
            for actor in self._stage.producers
            for line in actor.told()
            if line.get("status") == STORE_FULL
        )

    def _at_work(self, actors: Sequence[Actor]) -> Actor:
        """One of them that has begun, if there is one soon."""
        until = time.monotonic() + BEGIN_SECONDS
        while not (ready := [actor for actor in actors if actor.at_work]) and time.monotonic() < until:
            time.sleep(0.01)
        return self._random.choice(ready or actors)

    def _asked_replica(self) -> Replica:
        """One that has started and has something to do, if there is one soon."""
        until = time.monotonic() + BEGIN_SECONDS
        busy: list[Replica] = []
        while not busy and time.monotonic() < until:
            time.sleep(0.01)
            started = [replica for replica in self._stage.replicas if replica.ready]
            busy = [replica for replica in started if phase_is(*ASKING)(self._stage.asked(replica))]
        return self._random.choice(busy or self._stage.replicas)

    def _wait_for(self, kind: str, doing: Callable[[], Sequence[Doing]]) -> None:
        """A random moment; mostly one of a phase that is aimed at, if it comes soon."""
        if self._random.random() > AIMED:
            time.sleep(self._random.uniform(0, 0.5))
            return
        delay = self._random.choice(DELAYS)
        work = WORK if kind in {"producer", "consumer"} else ASKING
        for aim in (self._random.choice(AIMS[kind]), phase_is(*work)):
            until = time.monotonic() + AIM_SECONDS
            while time.monotonic() < until:
                if aim(doing()):
                    time.sleep(delay)
                    if aim(doing()):
                        return
                time.sleep(LOOK_S)

    def _note_requests(self, victim: str, asked: Sequence[Doing], **more: str) -> None:
        waiting = [one for one in asked if one.phase in {*ASKING, Phase.LEASING}]
        self._note(victim, waiting, ASKING, {**Counter(map(str, waiting)), **more})

    def _note(self, victim: str, doing: Sequence[Doing], work: frozenset[Phase], held: dict[str, Any]) -> None:
        """Work in progress is named, and what is idle beside it is not."""
        in_progress = [one for one in doing if one.phase in work]
        words = " + ".join(sorted({str(one) for one in in_progress or doing})) or "nothing"
        self.record.kills.append(Kill(round(self._now(), 2), victim, words, bool(in_progress), held))

    def _now(self) -> float:
        return time.monotonic() - self._began
