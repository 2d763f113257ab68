"""What a fleet leaves on disk for whoever asks or wants something: how it stands, and how many replicas it is to have.

Always true: the driver writes the first and people the second, each whole or not at all; neither is needed to go on,
since what was made is the trajectory API's to know.
"""

import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hermes_rl.errors import ConfigError
from hermes_rl.home import rl_home
from hermes_rl.processes import Identity
from hermes_rl.runs.places import names_a_folder
from hermes_rl.runs.replicas.states import Facts, Fleet
from hermes_rl.runs.steady import read_steadily, write_steadily
from hermes_rl.store.holding import in_turn

LOCK_SECONDS = 5.0
MOST_REPLICAS = 4096


@dataclass(frozen=True, slots=True)
class FleetPlaces:
    name: str

    def __post_init__(self) -> None:
        if not names_a_folder(self.name, 96):
            raise ConfigError(f"{self.name!r} is no name for replicas; use letters, digits, `.`, `_` and `-`")

    @property
    def folder(self) -> Path:
        return replicas_home() / self.name

    @property
    def state(self) -> Path:
        return self.folder / "state.json"

    @property
    def wanted(self) -> Path:
        return self.folder / "wanted.json"

    @property
    def driver(self) -> Path:
        """Held by the driver for as long as it lives."""
        return self.folder / "driver.lock"


@dataclass(frozen=True, slots=True)
class Wish:
    """How many replicas there are to be, and which of those there are now are to be drained and closed.

    `began_with` is what the command said that is running; `avoided` are nodes that get no further replica.
    """

    replicas: int
    leaving: tuple[str, ...] = ()
    began_with: int | None = None
    avoided: tuple[str, ...] = ()


def replicas_home() -> Path:
    return rl_home() / "replicas"


def read_wish(places: FleetPlaces) -> Wish | None:
    told = read_steadily(places.wanted)
    if told is None:
        return None
    return Wish(int(told["replicas"]), tuple(told["leaving"]), told.get("began_with"), tuple(told.get("avoided", ())))


def begin_wish(places: FleetPlaces, replicas: int) -> None:
    """What a command that starts wants. The same command again goes on with what it was resized to."""
    places.folder.mkdir(parents=True, exist_ok=True)
    with _turn(places):
        last = read_wish(places)
        goes_on = last is not None and last.began_with == replicas
        kept = last.replicas if last is not None and goes_on else replicas
        write_steadily(places.wanted, asdict(Wish(kept, (), replicas)))


def change_wish(places: FleetPlaces, change: Callable[[Wish], Wish]) -> Wish:
    with _turn(places):
        wish = change(read_wish(places) or Wish(1))
        write_steadily(places.wanted, asdict(wish))
    return wish


def _turn(places: FleetPlaces) -> AbstractContextManager[None]:
    return in_turn(places.folder / "wanted.lock", LOCK_SECONDS, str(places.wanted))


def write_standing(places: FleetPlaces, fleet: Fleet, facts: Facts, *, on: str, environment: str, began: float) -> None:
    me = Identity.of(os.getpid())
    workers = {name: seen.workers for name, seen in facts.replicas.items()}
    write_steadily(
        places.state,
        {
            "name": places.name,
            "environment": environment,
            "on": on,
            "driver": {"pid": me.pid, "began": me.began},
            "began_at": began,
            "said_at": time.time(),
            "wanted": facts.wanted,
            "ending": fleet.ending,
            "reason": fleet.reason,
            "problem": facts.problem,
            "replicas": {
                name: {"state": replica.state, "node": replica.node, "shards": fleet.of(name)}
                for name, replica in fleet.replicas.items()
            },
            "shards": [
                {
                    "shard": number,
                    "state": shard.state,
                    "replica": shard.replica,
                    "restarts": shard.restarts,
                    "problem": shard.problem,
                    "says": _says(workers, shard.replica, number),
                }
                for number, shard in enumerate(fleet.shards)
            ],
        },
    )


def read_standing(places: FleetPlaces) -> dict[str, Any] | None:
    """How it stands; `running` is false when its driver is gone, and the rest is how it stood then."""
    told = read_steadily(places.state)
    if told is None:
        return None
    running = Identity(**told["driver"]).alive() and told["ending"] is None
    return {**told, "running": running}


def _says(workers: Any, replica: str | None, shard: int) -> str | None:
    worker = workers.get(replica, {}).get(shard)
    return None if worker is None else worker.says
