"""One replica inside Ray: an actor that holds workers, and little besides.

Always true: one driver at a time has it; without one for a minute it lets its workers finish, and ends, so nothing
outlives a fleet for long. Its workers die with its process.
"""

import threading
import time
import uuid

from hermes_rl.runs.replicas.order import Order
from hermes_rl.runs.replicas.states import WorkerFacts
from hermes_rl.runs.replicas.workers import Workers

# A driver that was killed is back sooner than this, if somebody starts it again.
ALONE_SECONDS = 60.0
# A driver that was heard so lately lives, and nobody else may have its replicas.
HELD_SECONDS = 6.0
Seen = tuple[str, str, str, dict[int, WorkerFacts], list[tuple[int, str]]]


class ReplicaActor:
    def __init__(self, name: str, order_name: str, drain_seconds: float) -> None:
        self._name, self._order_name, self._drain_seconds = name, order_name, drain_seconds
        self._life = uuid.uuid4().hex
        self._workers: Workers | None = None
        self._driver: str | None = None
        self._heard_at = time.monotonic()
        threading.Thread(target=self._end_when_alone, daemon=True).start()

    def begin(self, driver: str, order: Order) -> None:
        """Here and not on creation: what an actor is created with is kept by Ray, and the order holds keys."""
        if self._workers is None and order.name == self._order_name and self._is_held_by(driver):
            self._workers = Workers(order)

    def look(self, driver: str) -> Seen | None:
        """Its order's name, its life, its node, its workers, and what they said; None to a second driver."""
        import ray

        if not self._is_held_by(driver):
            return None
        # Several nodes may be at one address, as in tests.
        node = f"{ray.util.get_node_ip_address()}/{ray.get_runtime_context().get_node_id()[:8]}"
        if self._workers is None:
            return self._order_name, "", node, {}, []
        return self._order_name, self._life, node, self._workers.look(), self._workers.lines()

    def start(self, driver: str, shard: int, turn: str) -> None:
        if self._workers is not None and driver == self._driver:
            self._workers.start(shard, turn)

    def drain(self, driver: str, shard: int, turn: str) -> None:
        if self._workers is not None and driver == self._driver:
            self._workers.drain(shard, turn)

    def kill(self, driver: str, shard: int, turn: str) -> None:
        if self._workers is not None and driver == self._driver:
            self._workers.kill(shard, turn)

    def _is_held_by(self, driver: str) -> bool:
        """Who asks first has it, and any other once it is no longer heard."""
        now = time.monotonic()
        if self._driver not in {None, driver} and now - self._heard_at < HELD_SECONDS:
            return False
        self._driver, self._heard_at = driver, now
        return True

    def _end_when_alone(self) -> None:
        import ray

        while time.monotonic() - self._heard_at < ALONE_SECONDS:
            time.sleep(1.0)
        if self._workers is not None:
            self._workers.drain_all()
            deadline = time.monotonic() + self._drain_seconds
            while self._workers.running and time.monotonic() < deadline:
                time.sleep(0.2)
            self._workers.close()
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)
