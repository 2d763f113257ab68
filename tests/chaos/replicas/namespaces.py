"""A Ray cluster whose nodes are network namespaces of their own on one machine: killed, cut off, slowed, added.

Always true: the machine's own network is never touched. The process that uses this is in a namespace of its own
(`enter`), with a bridge in it; each node is a further one, joined to the bridge. Root only.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.orchestration.replicas.ray_cluster import CPUS, SYSTEM, users_of
from tests.support.sandbox_parts import end_all

HEAD = "10.203.0.1"
PORT = 6379
INSIDE = "HERMES_RL_IN_NAMESPACE"
SMALL_STORE = 80_000_000
STARTED = "Ray runtime started"
LATE = ("netem", "delay", "300ms")
NARROW = ("tbf", "rate", "256kbit", "burst", "4kb", "latency", "2s")


def enter() -> None:
    """Begin this program again in a network namespace of its own, unless it is in one."""
    if os.environ.get(INSIDE):
        return
    if os.geteuid() != 0:
        raise SystemExit("network namespaces are made by root only")
    os.environ[INSIDE] = "1"
    os.execvp("unshare", ["unshare", "--net", sys.executable, *sys.orig_argv[1:]])


class NamespaceCluster:
    def __init__(self, nodes: int) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="hrl", dir="/tmp"))
        self._nodes: dict[str, subprocess.Popen[bytes]] = {}
        self._made = 0
        self._logs = (self._folder / "ray.log").open("ab")
        self._head: subprocess.Popen[bytes] | None = None
        try:
            _ip("link", "set", "lo", "up")
            _ip("link", "add", "bridge0", "type", "bridge")
            _ip("address", "add", f"{HEAD}/24", "dev", "bridge0")
            _ip("link", "set", "bridge0", "up")
            self._begin()
            for _ in range(nodes):
                self.add_node()
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> str:
        return f"{HEAD}:{PORT}"

    @property
    def nodes(self) -> list[str]:
        return list(self._nodes)

    def add_node(self) -> str:
        """Its name is its address."""
        self._made += 1
        address, space, here = f"10.203.0.{10 + self._made}", self._space(self._made), f"veth{self._made}"
        _ip("netns", "add", space)
        _ip("link", "add", here, "type", "veth", "peer", "name", "eth0", "netns", space)
        _ip("link", "set", here, "master", "bridge0", "up")
        for words in (("link", "set", "lo", "up"), ("address", "add", f"{address}/24", "dev", "eth0")):
            _ip("-n", space, *words)
        _ip("-n", space, "link", "set", "eth0", "up")
        options = ["--address", self.address, "--node-ip-address", address, "--num-cpus", str(CPUS)]
        self._nodes[address] = self._started(*options, space=space)
        return address

    def kill_node(self, name: str, *, graceful: bool = False) -> None:
        """Everything in the namespace at once, as when the power goes; or its raylet told to end."""
        address = name.partition("/")[0]
        node = self._nodes.pop(address)
        space = self._space(int(address.rpartition(".")[2]) - 10)
        if graceful:
            node.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                node.wait(15.0)
        self._end(space)
        node.wait(10.0)
        _ip("netns", "del", space)

    def cut(self, name: str, *, off: bool) -> None:
        """Pull the node's cable, or put it back."""
        _ip("link", "set", self._cable(name), "down" if off else "up")

    def slow(self, name: str, *, on: bool) -> None:
        """All that comes to the node is late; by a narrow link where the kernel has no netem."""
        root = ("tc", "qdisc", "replace", "dev", self._cable(name), "root")
        if on and _run(*root, *LATE, check=False):
            _run(*root, *NARROW)
        elif not on:
            _run("tc", "qdisc", "del", "dev", self._cable(name), "root")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for name in list(self._nodes):
            with suppress(subprocess.SubprocessError, OSError):
                self.kill_node(name)
        if self._head is not None:
            self._head.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                self._head.wait(20.0)
        # What a `ray start` that was killed or that failed has left.
        end_all(lambda: users_of(self._folder))
        self._logs.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _cable(self, name: str) -> str:
        return f"veth{int(name.partition('/')[0].rpartition('.')[2]) - 10}"

    def _space(self, number: int) -> str:
        return f"hrl{os.getpid()}-{number}"

    def _started(self, *options: str, space: str | None = None) -> subprocess.Popen[bytes]:
        ray = str(Path(sys.executable).with_name("ray"))
        inside = ["ip", "netns", "exec", space] if space else []
        return subprocess.Popen(
            [*inside, ray, "start", *options, "--object-store-memory", str(SMALL_STORE), "--block"],
            stdin=subprocess.DEVNULL,
            stdout=self._logs,
            stderr=self._logs,
            env={**os.environ, "RAY_USAGE_STATS_ENABLED": "0"},
            start_new_session=True,
        )

    def _begin(self) -> None:
        """Start the head. On a busy machine a raylet takes longer to begin than the half minute that Ray gives it."""
        for attempt in range(5):
            self._head = self._started(
                *("--head", "--port", str(PORT), "--num-cpus", "0", "--include-dashboard", "false"),
                *("--node-ip-address", HEAD, "--temp-dir", str(self._folder / f"ray{attempt}")),
                *("--system-config", json.dumps(SYSTEM)),
            )
            while self._head.poll() is None:
                if STARTED in (self._folder / "ray.log").read_text(errors="replace"):
                    return
                time.sleep(0.5)
        raise RuntimeError((self._folder / "ray.log").read_text(errors="replace")[-2000:])

    def _end(self, space: str) -> None:
        """Until nothing lives in the namespace; what dies may leave children."""
        for _ in range(50):
            found = subprocess.run(["ip", "netns", "pids", space], capture_output=True, check=True).stdout.split()
            if not found:
                return
            for pid in found:
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            time.sleep(0.1)


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*words: str, check: bool = True) -> int:
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.returncode
