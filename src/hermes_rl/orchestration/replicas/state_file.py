"""A fleet's files: its state, written by the driver, and its desired state, written by commands.

Always true: each is written atomically; a driver can continue without either, since the trajectory API stores the
progress.
"""

import os
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.core.paths import rl_home
from hermes_rl.core.private_files import private_folder
from hermes_rl.core.process_identity import ProcessIdentity
from hermes_rl.orchestration.atomic_json import read_atomic_json, write_atomic_json
from hermes_rl.orchestration.reconciler.driver import lock_desired
from hermes_rl.orchestration.reconciler.unit import UnitState
from hermes_rl.orchestration.replicas.types import Fleet, FleetFacts
from hermes_rl.orchestration.run_paths import is_folder_name

MAX_REPLICAS = 4096
SHARD_STATES = dict(zip(UnitState, ("free", "starting", "served", "leaving", "free"), strict=True))
"""The states of a shard, as written to the file. One that has exited is done, or its failures end the fleet."""


@dataclass(frozen=True, slots=True)
class FleetPaths:
    name: str

    def __post_init__(self) -> None:
        if not is_folder_name(self.name, 96):
            raise ConfigError(f"{self.name!r} is not a valid name for replicas; use letters, digits, `.`, `_` and `-`")

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
class DesiredFleet:
    """The desired number of replicas; `leaving` are those to drain and close, `avoided` the nodes to open none on.

    `began_with` is the number that the running command was started with.
    """

    replicas: int
    leaving: tuple[str, ...] = ()
    began_with: int | None = None
    avoided: tuple[str, ...] = ()


def replicas_home() -> Path:
    return rl_home() / "replicas"


def read_desired_fleet(paths: FleetPaths) -> DesiredFleet | None:
    data = read_atomic_json(paths.wanted)
    if data is None:
        return None
    return DesiredFleet(
        int(data["replicas"]), tuple(data["leaving"]), data.get("began_with"), tuple(data.get("avoided", ()))
    )


def init_desired_fleet(paths: FleetPaths, replicas: int) -> None:
    """Set the desired state at the start of a command. The same command again keeps the last resize."""
    private_folder(paths.folder)
    with lock_desired(paths.wanted):
        last = read_desired_fleet(paths)
        count = last.replicas if last is not None and last.began_with == replicas else replicas
        write_atomic_json(paths.wanted, asdict(DesiredFleet(count, (), replicas)))


def update_desired_fleet(paths: FleetPaths, change: Callable[[DesiredFleet], DesiredFleet]) -> DesiredFleet:
    with lock_desired(paths.wanted):
        desired = change(read_desired_fleet(paths) or DesiredFleet(1))
        write_atomic_json(paths.wanted, asdict(desired))
    return desired


def fleet_state(
    paths: FleetPaths, fleet: Fleet, facts: FleetFacts, *, on: str, environment: str, began: float
) -> dict[str, Any]:
    """The document of state.json, without `said_at`, the time of writing."""
    me = ProcessIdentity.from_pid(os.getpid())
    workers = {name: seen.workers for name, seen in facts.replicas.items()}
    return {
        "name": paths.name,
        "environment": environment,
        "on": on,
        "driver": {"pid": me.pid, "began": me.began},
        "began_at": began,
        "wanted": facts.wanted,
        "ending": fleet.ending,
        "reason": fleet.reason,
        "problem": facts.problem,
        "replicas": {
            name: {"state": replica.state, "node": replica.node, "shards": fleet.shards_on(name)}
            for name, replica in fleet.replicas.items()
        },
        "shards": [
            {
                "shard": number,
                "state": "done" if shard.done else SHARD_STATES[shard.state],
                "replica": shard.replica,
                "restarts": shard.restarts,
                "problem": shard.problem,
                "says": _last_line(workers, shard.replica, number),
            }
            for number, shard in enumerate(fleet.shards)
        ],
    }


def read_fleet_state(paths: FleetPaths) -> dict[str, Any] | None:
    """The last written state, with `running`: whether the driver is alive and the fleet has not ended."""
    data = read_atomic_json(paths.state)
    if data is None:
        return None
    running = ProcessIdentity(**data["driver"]).alive() and data["ending"] is None
    return {**data, "running": running}


def _last_line(workers: Any, replica: str | None, shard: int) -> str | None:
    worker = workers.get(replica, {}).get(shard)
    return None if worker is None else worker.last_line
