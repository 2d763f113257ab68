"""One replica as a Ray actor that owns workers.

Always true: one driver at a time holds it; after a minute without one it drains its workers and exits, so nothing
outlives a fleet for long. Its workers die with its process.
"""

import threading
import time
import uuid

from hermes_rl.orchestration.replicas.types import WorkerFacts
from hermes_rl.orchestration.replicas.worker_spec import WorkerSpec
from hermes_rl.orchestration.replicas.workers import Workers

# Long enough for a killed driver to be restarted.
ORPHAN_TIMEOUT = 60.0
# A driver that called within this time keeps the actor.
DRIVER_LEASE = 6.0
ActorReport = tuple[str, str, str, dict[int, WorkerFacts], list[tuple[int, str]]]


class ReplicaActor:
    def __init__(self, name: str, spec_name: str, drain_seconds: float) -> None:
        self._name, self._spec_name, self._drain_seconds = name, spec_name, drain_seconds
        self._incarnation = uuid.uuid4().hex
        self._workers: Workers | None = None
        self._driver: str | None = None
        self._last_seen = time.monotonic()
        threading.Thread(target=self._exit_when_orphaned, daemon=True).start()

    def begin(self, driver: str, spec: WorkerSpec) -> None:
        """Not in the constructor: Ray stores constructor arguments, and the spec contains keys."""
        if self._workers is None and spec.name == self._spec_name and self._acquire(driver):
            self._workers = Workers(spec)

    def poll(self, driver: str) -> ActorReport | None:
        """The spec's name, incarnation, node, workers and their output; None for a second driver."""
        import ray

        if not self._acquire(driver):
            return None
        # Several nodes may share one address, as in tests.
        node = f"{ray.util.get_node_ip_address()}/{ray.get_runtime_context().get_node_id()[:8]}"
        if self._workers is None:
            return self._spec_name, "", node, {}, []
        return self._spec_name, self._incarnation, node, self._workers.poll(), self._workers.take_lines()

    def start(self, driver: str, shard: int, launch_id: str) -> None:
        if self._workers is not None and driver == self._driver:
            self._workers.start(shard, launch_id)

    def drain(self, driver: str, shard: int, launch_id: str) -> None:
        if self._workers is not None and driver == self._driver:
            self._workers.drain(shard, launch_id)

    def kill(self, driver: str, shard: int, launch_id: str) -> None:
        if self._workers is not None and driver == self._driver:
            self._workers.kill(shard, launch_id)

    def _acquire(self, driver: str) -> bool:
        """Give the actor to the first driver, or to another once the holder's lease has expired."""
        now = time.monotonic()
        if self._driver not in {None, driver} and now - self._last_seen < DRIVER_LEASE:
            return False
        self._driver, self._last_seen = driver, now
        return True

    def _exit_when_orphaned(self) -> None:
        import ray

        while time.monotonic() - self._last_seen < ORPHAN_TIMEOUT:
            time.sleep(1.0)
        if self._workers is not None:
            self._workers.drain_all()
            deadline = time.monotonic() + self._drain_seconds
            while self._workers.running and time.monotonic() < deadline:
                time.sleep(0.2)
            self._workers.close()
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
