"""Where replicas are: the few things that a fleet asks of whatever runs them, and this machine as the simplest answer.

Always true: asking never waits for a replica that is slow; a replica that was closed is not seen again; one that is
gone for good is not seen either, and why the last one could not be opened is told in `problem`.
"""

import socket
import uuid
from collections.abc import Collection, Mapping
from typing import Protocol

from hermes_rl.runs.replicas.order import Order
from hermes_rl.runs.replicas.states import Action, Close, Drain, Kill, Open, ReplicaFacts, Start
from hermes_rl.runs.replicas.workers import Workers


class Hosts(Protocol):
    @property
    def problem(self) -> str | None: ...

    def look(self) -> Mapping[str, ReplicaFacts]:
        """What is seen of every replica there is."""
        ...

    def avoid(self, nodes: Collection[str]) -> None:
        """Open no further replica there. By the names that `look` gives them."""
        ...

    def do(self, action: Action) -> None: ...

    def lines(self) -> list[tuple[str, int, str]]:
        """What workers said since this was asked last: replica, shard, line."""
        ...

    def shut(self) -> None:
        """Let go of the platform. Replicas that are still there are left to it."""
        ...


class LocalHosts:
    """Replicas on this machine: no more than a name for some of its workers, which die with this process."""

    def __init__(self, order: Order) -> None:
        self.problem: str | None = None
        self._order = order
        self._replicas: dict[str, tuple[str, Workers]] = {}

    def look(self) -> Mapping[str, ReplicaFacts]:
        node = socket.gethostname()
        return {name: ReplicaFacts(life, node, workers.look()) for name, (life, workers) in self._replicas.items()}

    def avoid(self, nodes: Collection[str]) -> None:
        """There is no other."""

    def do(self, action: Action) -> None:
        match action:
            case Open(name):
                self._replicas[name] = (uuid.uuid4().hex, Workers(self._order))
            case Close(name):
                _, workers = self._replicas.pop(name)
                workers.close()
            case Start(name, shard, turn):
                self._replicas[name][1].start(shard, turn)
            case Drain(name, shard, turn):
                self._replicas[name][1].drain(shard, turn)
            case Kill(name, shard, turn):
                self._replicas[name][1].kill(shard, turn)

    def lines(self) -> list[tuple[str, int, str]]:
        return [(name, *said) for name, (_, workers) in self._replicas.items() for said in workers.lines()]

    def shut(self) -> None:
        for _, workers in self._replicas.values():
            workers.close()
        self._replicas.clear()
