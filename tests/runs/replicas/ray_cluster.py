"""A Ray cluster on this machine whose nodes can be killed, removed and added: each a raylet of its own."""

import os
import shutil
import signal
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

# Room for two replicas, so that what a lost node had goes elsewhere at once.
CPUS = 2
SYSTEM = {
    # A lost node is noticed within ten seconds, and a slow one on a busy machine not taken for lost; Ray's are fifteen.
    "health_check_initial_delay_ms": 5000,
    "health_check_period_ms": 2000,
    "health_check_failure_threshold": 5,
    # Ray's is 15: beside other tests a worker would take minutes to begin.
    "worker_niceness": 0,
}
ATTEMPTS = 6


class RayCluster:
    """The head has no room for replicas, so that every one of them is on a node that can be killed.

    Ray lets only the main thread make nodes that end with this process. With `in_threads` any may, and they end with
    the cluster alone.
    """

    def __init__(self, nodes: int, *, in_threads: bool = False) -> None:
        os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
        from ray.cluster_utils import Cluster

        # Its sockets are below this folder, and a socket's path holds 107 bytes: pytest's tmp_path is too long.
        self.folder = Path(tempfile.mkdtemp(prefix="hrl", dir="/tmp"))
        self._node = {"include_dashboard": False, "temp_dir": str(self.folder)}
        head = {"num_cpus": 0, "_system_config": SYSTEM, **self._node}
        self._cluster: Any = self._patiently(
            lambda: Cluster(initialize_head=True, shutdown_at_exit=not in_threads, head_node_args=dict(head))
        )
        self._nodes: dict[str, Any] = {}
        for _ in range(nodes):
            self.add_node()

    @property
    def address(self) -> str:
        return str(self._cluster.address)

    def add_node(self) -> None:
        node = self._patiently(lambda: self._cluster.add_node(num_cpus=CPUS, **self._node))
        self._nodes[str(node.node_id)[:8]] = node

    def kill_node(self, name: str, *, graceful: bool = False) -> None:
        """By the name that the replicas' status has for it. Its raylet is killed, what ran on it a moment later."""
        node = self._nodes.pop(name.rpartition("/")[2])
        self._cluster.remove_node(node, allow_graceful=graceful)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._cluster.shutdown()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _patiently(self, start: Callable[[], Any]) -> Any:
        """On a busy machine a raylet dies when its agents take 15 s to begin (ray-project/ray issue 65983)."""
        for _ in range(ATTEMPTS - 1):
            before = self._processes()
            try:
                return start()
            except Exception:  # noqa: BLE001 (Ray raises this very class)
                # Ray forgets what it had started by then.
                for pid in self._processes() - before:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
        return start()

    def _processes(self) -> set[int]:
        """What this process has started of the cluster, by the folder in its arguments."""
        found = set[int]()
        for place in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                ours = f"PPid:\t{os.getpid()}\n" in (place / "status").read_text()
                if ours and str(self.folder).encode() in (place / "cmdline").read_bytes():
                    found.add(int(place.name))
        return found
