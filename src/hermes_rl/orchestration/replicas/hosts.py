"""The platforms that run replicas: the `Hosts` protocol, and this machine as its simplest implementation.

Always true: `poll` never waits for a slow replica; a closed or lost replica is absent from its result; `problem` says
why the last attempt to open a replica failed.
"""

import socket
import uuid
from collections.abc import Collection, Mapping
from typing import Protocol

from hermes_rl.orchestration.replicas.types import (
    Action,
    CloseReplica,
    DrainWorker,
    KillWorker,
    OpenReplica,
    ReplicaFacts,
    StartWorker,
)
from hermes_rl.orchestration.replicas.worker_spec import WorkerSpec
from hermes_rl.orchestration.replicas.workers import Workers


class Hosts(Protocol):
    @property
    def problem(self) -> str | None: ...

    def poll(self) -> Mapping[str, ReplicaFacts]:
        """Observe every existing replica."""
        ...

    def avoid(self, nodes: Collection[str]) -> None:
        """Open no further replicas on these nodes, named as in `poll`."""
        ...

    def execute(self, action: Action) -> None: ...

    def take_lines(self) -> list[tuple[str, int, str]]:
        """The workers' output since the last call, as (replica, shard, line)."""
        ...

    def close(self) -> None:
        """Disconnect from the platform; it keeps the remaining replicas."""
        ...


class LocalHosts:
    """Replicas on this machine: named groups of workers that die with this process."""

    def __init__(self, spec: WorkerSpec) -> None:
        self.problem: str | None = None
        self._spec = spec
        self._replicas: dict[str, tuple[str, Workers]] = {}

    def poll(self) -> Mapping[str, ReplicaFacts]:
        node = socket.gethostname()
        return {
            name: ReplicaFacts(incarnation, node, workers.poll())
            for name, (incarnation, workers) in self._replicas.items()
        }

    def avoid(self, nodes: Collection[str]) -> None:
        """Ignored: this machine is the only node."""

    def execute(self, action: Action) -> None:
        match action:
            case OpenReplica(name):
                self._replicas[name] = (uuid.uuid4().hex, Workers(self._spec))
            case CloseReplica(name):
                _, workers = self._replicas.pop(name)
                workers.close()
            case StartWorker(name, shard, launch_id):
                self._replicas[name][1].start(shard, launch_id)
            case DrainWorker(name, shard, launch_id):
                self._replicas[name][1].drain(shard, launch_id)
            case KillWorker(name, shard, launch_id):
                self._replicas[name][1].kill(shard, launch_id)

    def take_lines(self) -> list[tuple[str, int, str]]:
        return [(name, *entry) for name, (_, workers) in self._replicas.items() for entry in workers.take_lines()]

    def close(self) -> None:
        for _, workers in self._replicas.values():
            workers.close()
        self._replicas.clear()
