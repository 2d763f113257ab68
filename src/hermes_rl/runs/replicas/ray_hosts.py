"""Replicas as Ray actors: placed, restarted and found again by Ray. With the actor itself, all that knows Ray.

Always true: an actor is asked without waiting for it; what it answers is believed for what it sees, never for what is
durable; actors of a driver that lives are nobody else's.

An actor that Ray restarts has another life and none of its workers. A worker of a node that was killed may answer for
most of a second more: an order that it took is not seen again, and is given anew.
"""

import time
import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.errors import ConfigError
from hermes_rl.runs.replicas.order import Order
from hermes_rl.runs.replicas.ray_actor import HELD_SECONDS, ReplicaActor, Seen
from hermes_rl.runs.replicas.states import Action, Close, Drain, Kill, Open, ReplicaFacts, Start

LOOK_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class RayPlace:
    """Where replicas go and what each takes of its node. `working_dir` is a folder that Ray brings to every node."""

    address: str | None = None
    cpus: float = 1.0
    resources: Mapping[str, float] = field(default_factory=dict)
    working_dir: str | None = None


@dataclass(slots=True)
class _Asked:
    """An actor, and the one question to it that is under way."""

    actor: Any
    answer: Any = None
    facts: ReplicaFacts = field(default_factory=ReplicaFacts)
    is_anothers: bool = False
    """Another driver has it, and lives."""


class RayHosts:
    def __init__(self, name: str, order: Order, place: RayPlace, drain_seconds: float) -> None:
        self.problem: str | None = None
        self._order, self._place, self._drain_seconds = order, place, drain_seconds
        self._name, self._namespace = name, f"hermes-rl-{name}"
        self._me = uuid.uuid4().hex
        self._replicas: dict[str, _Asked] = {}
        self._avoided: Collection[str] = ()
        self._lines: list[tuple[str, int, str]] = []
        self._alone_at = time.monotonic()
        """When no replica was seen to be another driver's."""
        self._ray = _connected(place, self._namespace)
        try:
            self._adopt()
        except BaseException:
            self.shut()
            raise

    def look(self) -> Mapping[str, ReplicaFacts]:
        """ConfigError when another driver has some of them and keeps them."""
        for asked in self._replicas.values():
            if asked.answer is None:
                asked.answer = asked.actor.look.remote(self._me)
        waiting = [asked.answer for asked in self._replicas.values()]
        if waiting:
            self._ray.wait(waiting, num_returns=len(waiting), timeout=LOOK_SECONDS)
        for name in list(self._replicas):
            self._take(name)
        if not self._others:
            self._alone_at = time.monotonic()
        elif time.monotonic() - self._alone_at > 2 * HELD_SECONDS:
            raise ConfigError(
                f"another driver on this Ray cluster has replicas called {self._name!r}; stop it, or give these "
                "another --name"
            )
        return {name: asked.facts for name, asked in self._replicas.items()}

    def avoid(self, nodes: Collection[str]) -> None:
        self._avoided = nodes

    def do(self, action: Action) -> None:
        match action:
            case Open(name):
                self._replicas[name] = _Asked(self._opened(name))
            case Close(name):
                asked = self._replicas.pop(name, None)
                if asked is not None and not asked.is_anothers:
                    self._ray.kill(asked.actor, no_restart=True)
            case Start(name, shard, turn) if name in self._replicas:
                self._replicas[name].actor.start.remote(self._me, shard, turn)
            case Drain(name, shard, turn) if name in self._replicas:
                self._replicas[name].actor.drain.remote(self._me, shard, turn)
            case Kill(name, shard, turn) if name in self._replicas:
                self._replicas[name].actor.kill.remote(self._me, shard, turn)

    def lines(self) -> list[tuple[str, int, str]]:
        lines, self._lines = self._lines, []
        return lines

    def shut(self) -> None:
        self._ray.shutdown()

    def _opened(self, name: str) -> Any:
        place = self._place
        runtime = {"working_dir": place.working_dir} if place.working_dir else {}
        options = {
            "name": name,
            "namespace": self._namespace,
            # Of two drivers that begin at once one makes it; the other finds that it is held.
            "get_if_exists": True,
            # Its driver may be killed and come back.
            "lifetime": "detached",
            "max_restarts": -1,
            "max_task_retries": 0,
            "num_cpus": place.cpus,
            "resources": dict(place.resources) or None,
            "scheduling_strategy": "SPREAD",
            "label_selector": self._elsewhere(),
            "runtime_env": runtime or None,
        }
        made = self._ray.remote(ReplicaActor).options(**{key: one for key, one in options.items() if one is not None})
        actor = made.remote(name, self._order.name, self._drain_seconds)
        actor.begin.remote(self._me, self._order)
        return actor

    def _elsewhere(self) -> dict[str, str] | None:
        """What Ray is told so that a replica goes to no node that is to be avoided."""
        if not self._avoided:
            return None
        begins = tuple(name.rpartition("/")[2] for name in self._avoided)
        there = [node["NodeID"] for node in self._ray.nodes() if node["NodeID"].startswith(begins)]
        return {"ray.io/node-id": f"!in({','.join(there)})"} if there else None

    def _take(self, name: str) -> None:
        """What the actor answered, if it has."""
        from ray.exceptions import ActorDiedError, RayError

        asked = self._replicas[name]
        if not self._ray.wait([asked.answer], timeout=0)[0]:
            # Believed for as long as the question is young: the fleet counts the seconds itself.
            asked.facts = ReplicaFacts()
            return
        try:
            seen: Seen | None = self._ray.get(asked.answer)
        except ActorDiedError as error:
            self.problem = _last_line(error)
            del self._replicas[name]
            return
        except RayError as error:
            self.problem = _last_line(error)
            asked.answer, asked.facts = None, ReplicaFacts()
            return
        asked.answer, asked.is_anothers = None, seen is None
        if seen is None:
            asked.facts = ReplicaFacts()
            return
        order, life, node, workers, lines = seen
        if order != self._order.name:
            # Of a driver that is gone, and did other work.
            self._ray.kill(asked.actor, no_restart=True)
            del self._replicas[name]
            return
        if not life:
            # Ray has restarted it; it knows nothing yet.
            asked.actor.begin.remote(self._me, self._order)
            asked.facts = ReplicaFacts()
            return
        self.problem = None
        asked.facts = ReplicaFacts(life, node, workers)
        self._lines += [(name, shard, line) for shard, line in lines]

    @property
    def _others(self) -> bool:
        return any(asked.is_anothers for asked in self._replicas.values())

    def _adopt(self) -> None:
        """Take over what a driver before us left, once it is no longer heard."""
        for name in self._ray.util.list_named_actors():
            with suppress(ValueError):
                self._replicas[name] = _Asked(self._ray.get_actor(name, namespace=self._namespace))
        self.look()
        while self._others:
            time.sleep(LOOK_SECONDS)
            self.look()


def _connected(place: RayPlace, namespace: str) -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "replicas on Ray need the extra `ray`: pip install 'hermes-rl[ray]'; without --on they run on this machine"
        ) from None
    try:
        ray.init(
            address=place.address or "auto",
            namespace=namespace,
            log_to_driver=False,
            logging_level="warning",
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"no Ray cluster can be joined at {place.address or 'the usual place'}: {_last_line(error)}; "
            "`ray start --head` starts one here, --ray-address names another"
        ) from error
    return ray


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
