"""A Ray cluster on this machine whose nodes can be killed, removed and added: each a raylet of its own.

Always true: it keeps to its own folder, and nothing of it is left when it is closed or when its start fails.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.sandbox_parts import end_all, living_parent, processes, read

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
# Ray raises this very class.
TRIED_AGAIN: set[type[BaseException]] = {Exception}


class RayCluster:
    """The head has no room for replicas, so that every one of them is on a node that can be killed.

    Ray lets only the main thread make nodes that end with this process. With `in_threads` any may, and they end with
    the cluster alone.
    """

    def __init__(self, nodes: int, *, in_threads: bool = False) -> None:
        self._nodes: dict[str, Any] = {}
        # Its sockets are below this folder, and a socket's path holds 107 bytes: pytest's tmp_path is too long.
        self.folder = Path(tempfile.mkdtemp(prefix="hrl", dir="/tmp"))
        self._node = {"include_dashboard": False, "temp_dir": str(self.folder / "ray")}
        with ExitStack() as stack:
            stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
            # Cluster writes `ray_current_cluster` to the default folder, whatever its `temp_dir`: it fails where there
            # is no such folder, and overwrites the address of another cluster where there is one.
            stack.enter_context(_environ(RAY_TMPDIR=str(self.folder), RAY_USAGE_STATS_ENABLED="0"))
            stack.callback(end_all, lambda: users_of(self.folder))
            self._cluster = self._head(in_threads)
            stack.callback(self._cluster.shutdown)
            for _ in range(nodes):
                self.add_node()
            self._close = stack.pop_all()

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
        self._close.close()

    def _head(self, in_threads: bool) -> Any:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 0, "_system_config": SYSTEM, **self._node}
        return self._patiently(
            lambda: Cluster(initialize_head=True, shutdown_at_exit=not in_threads, head_node_args=dict(head))
        )

    def _patiently(self, start: Callable[[], Any]) -> Any:
        """On a busy machine a raylet dies when its agents take 15 s to begin (ray-project/ray issue 65983)."""
        for _ in range(ATTEMPTS - 1):
            before = self._children()
            try:
                return start()
            except Exception as error:
                if type(error) not in TRIED_AGAIN:
                    raise
                # Ray forgets what it had started by then.
                self._end_since(before)
        return start()

    def _end_since(self, before: set[int]) -> None:
        end_all(lambda: _with_descendants(self._children() - before))

    def _children(self) -> set[int]:
        """What this process has started of the cluster, by the folder in its arguments."""
        children = {pid for pid in processes() if living_parent(pid) == os.getpid()}
        return {pid for pid in children if str(self.folder).encode() in read(pid, "cmdline")}


def users_of(folder: Path) -> set[int]:
    """The other processes that name the folder in their arguments or have a file below it open.

    Ray's agents and workers overwrite their arguments and their environment, but have their logs open.
    """
    return {
        pid
        for pid in processes()
        if pid != os.getpid() and (str(folder).encode() in read(pid, "cmdline") or _has_open(pid, folder))
    }


def _has_open(pid: int, folder: Path) -> bool:
    try:
        files = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False
    for file in files:
        with suppress(OSError):
            if file.readlink().is_relative_to(folder):
                return True
    return False


def _with_descendants(found: set[int]) -> set[int]:
    parents = {pid: living_parent(pid) for pid in processes()}
    while children := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= children
    return found


@contextmanager
def _environ(**values: str) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
