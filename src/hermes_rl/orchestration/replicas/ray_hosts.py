"""Replicas as Ray actors: placed, restarted and found again by Ray. Only this module and ray_actor import Ray.

Always true: calls to actors never block; an actor's report is trusted for what it observes, not for durable progress;
the actors of a live driver are left to it.

An actor that Ray restarts has a new incarnation and no workers. An actor on a killed node may still respond for almost
a second: a request that it took has no visible effect and is repeated.
"""

import time
import uuid
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from hermes_rl.core.errors import ConfigError
from hermes_rl.orchestration.replicas.ray_actor import DRIVER_LEASE, ActorReport, ReplicaActor
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

POLL_TIMEOUT = 0.5


@dataclass(frozen=True, slots=True)
class RayOptions:
    """The cluster and the resources per replica. `working_dir` is a folder that Ray copies to every node."""

    address: str | None = None
    cpus: float = 1.0
    resources: Mapping[str, float] = field(default_factory=dict)
    working_dir: str | None = None


@dataclass(slots=True)
class _ActorCall:
    """An actor and the pending call to it."""

    actor: Any
    response: Any = None
    facts: ReplicaFacts = field(default_factory=ReplicaFacts)
    held_by_other: bool = False
    """Another live driver has it."""


class RayHosts:
    def __init__(self, name: str, spec: WorkerSpec, ray_options: RayOptions, drain_seconds: float) -> None:
        self.problem: str | None = None
        self._spec, self._ray_options, self._drain_seconds = spec, ray_options, drain_seconds
        self._name, self._namespace = name, f"hermes-rl-{name}"
        self._driver_id = uuid.uuid4().hex
        self._replicas: dict[str, _ActorCall] = {}
        self._avoided_nodes: Collection[str] = ()
        self._lines: list[tuple[str, int, str]] = []
        self._uncontested_at = time.monotonic()
        """When last no replica was held by another driver."""
        self._ray = _connect(ray_options, self._namespace)
        try:
            self._adopt()
        except BaseException:
            self.close()
            raise

    def poll(self) -> Mapping[str, ReplicaFacts]:
        """ConfigError when another driver keeps holding some of the replicas."""
        for call in self._replicas.values():
            if call.response is None:
                call.response = call.actor.poll.remote(self._driver_id)
        waiting = [call.response for call in self._replicas.values()]
        if waiting:
            self._ray.wait(waiting, num_returns=len(waiting), timeout=POLL_TIMEOUT)
        for name in list(self._replicas):
            self._receive(name)
        if not self._any_held_by_other:
            self._uncontested_at = time.monotonic()
        elif time.monotonic() - self._uncontested_at > 2 * DRIVER_LEASE:
            raise ConfigError(
                f"another driver on this Ray cluster has replicas named {self._name!r}; stop it, or choose another "
                "--name"
            )
        return {name: call.facts for name, call in self._replicas.items()}

    def avoid(self, nodes: Collection[str]) -> None:
        self._avoided_nodes = nodes

    def execute(self, action: Action) -> None:
        match action:
            case OpenReplica(name):
                self._replicas[name] = _ActorCall(self._create_actor(name))
            case CloseReplica(name):
                call = self._replicas.pop(name, None)
                if call is not None and not call.held_by_other:
                    self._ray.kill(call.actor, no_restart=True)
            case StartWorker(name, shard, launch_id) if name in self._replicas:
                self._replicas[name].actor.start.remote(self._driver_id, shard, launch_id)
            case DrainWorker(name, shard, launch_id) if name in self._replicas:
                self._replicas[name].actor.drain.remote(self._driver_id, shard, launch_id)
            case KillWorker(name, shard, launch_id) if name in self._replicas:
                self._replicas[name].actor.kill.remote(self._driver_id, shard, launch_id)

    def take_lines(self) -> list[tuple[str, int, str]]:
        lines, self._lines = self._lines, []
        return lines

    def close(self) -> None:
        self._ray.shutdown()

    def _create_actor(self, name: str) -> Any:
        ray_options = self._ray_options
        runtime = {"working_dir": ray_options.working_dir} if ray_options.working_dir else {}
        options = {
            "name": name,
            "namespace": self._namespace,
            # Of two drivers that start at once, one creates the actor and the other finds it held.
            "get_if_exists": True,
            # The driver may be killed and restarted.
            "lifetime": "detached",
            "max_restarts": -1,
            "max_task_retries": 0,
            "num_cpus": ray_options.cpus,
            "resources": dict(ray_options.resources) or None,
            "scheduling_strategy": "SPREAD",
            "label_selector": self._label_selector(),
            "runtime_env": runtime or None,
        }
        options = {key: value for key, value in options.items() if value is not None}
        actor = self._ray.remote(ReplicaActor).options(**options).remote(name, self._spec.name, self._drain_seconds)
        actor.begin.remote(self._driver_id, self._spec)
        return actor

    def _label_selector(self) -> dict[str, str] | None:
        """A Ray label selector that excludes the avoided nodes."""
        if not self._avoided_nodes:
            return None
        prefixes = tuple(name.rpartition("/")[2] for name in self._avoided_nodes)
        node_ids = [node["NodeID"] for node in self._ray.nodes() if node["NodeID"].startswith(prefixes)]
        return {"ray.io/node-id": f"!in({','.join(node_ids)})"} if node_ids else None

    def _receive(self, name: str) -> None:
        """Store the actor's response, if it has arrived."""
        from ray.exceptions import ActorDiedError, RayError

        call = self._replicas[name]
        if not self._ray.wait([call.response], timeout=0)[0]:
            # The scheduler applies the silence timeout.
            call.facts = ReplicaFacts()
            return
        try:
            report: ActorReport | None = self._ray.get(call.response)
        except ActorDiedError as error:
            self.problem = _last_line(error)
            del self._replicas[name]
            return
        except RayError as error:
            self.problem = _last_line(error)
            call.response, call.facts = None, ReplicaFacts()
            return
        call.response, call.held_by_other = None, report is None
        if report is None:
            call.facts = ReplicaFacts()
            return
        spec_name, incarnation, node, workers, lines = report
        if spec_name != self._spec.name:
            # Left by a dead driver with another spec.
            self._ray.kill(call.actor, no_restart=True)
            del self._replicas[name]
            return
        if not incarnation:
            # Ray restarted the actor, which has no spec yet.
            call.actor.begin.remote(self._driver_id, self._spec)
            call.facts = ReplicaFacts()
            return
        self.problem = None
        call.facts = ReplicaFacts(incarnation, node, workers)
        self._lines += [(name, shard, line) for shard, line in lines]

    @property
    def _any_held_by_other(self) -> bool:
        return any(call.held_by_other for call in self._replicas.values())

    def _adopt(self) -> None:
        """Take over the actors of an earlier driver once its lease has expired."""
        for name in self._ray.util.list_named_actors():
            with suppress(ValueError):
                self._replicas[name] = _ActorCall(self._ray.get_actor(name, namespace=self._namespace))
        self.poll()
        while self._any_held_by_other:
            time.sleep(POLL_TIMEOUT)
            self.poll()


def _connect(ray_options: RayOptions, namespace: str) -> Any:
    try:
        import ray
    except ImportError:
        raise ConfigError(
            "replicas on Ray need the extra `ray`: pip install 'hermes-rl[ray]'; omit --on to run on this machine"
        ) from None
    try:
        ray.init(
            address=ray_options.address or "auto",
            namespace=namespace,
            log_to_driver=False,
            logging_level="warning",
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ConfigError(
            f"cannot connect to a Ray cluster at {ray_options.address or 'the default address'}: {_last_line(error)}; "
            "start one here with `ray start --head`, or name another with --ray-address"
        ) from error
    return ray


def _last_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
