"""The real servers that the sandbox tests talk to: dockerd, podman's service and sshd.

Each runs for one owner only, in a directory and a mount namespace of its own and on a socket or port that was free.
When it is closed nothing of it is left: no process, mount, cgroup, user or file. Each needs root.
All of it blocks: call it from a fixture, or from a coroutine by `asyncio.to_thread`.
"""

import contextlib
import http.client
import json
import os
import pwd
import random
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Self

from tests.support.ports import free_port

IMAGE = "debian-min:local"
SCRIPT = Path(__file__).parents[2] / "scripts" / "sandbox_parts"
CGROUPS = Path("/sys/fs/cgroup")
# A unix socket's path holds 107 bytes and overlayfs wants a disk below it: pytest's tmp_path may be neither.
PLACE = Path("/var/tmp")
READY_S = 60.0
STOP_S = 30.0
REQUEST_S = 100.0


class PartError(RuntimeError):
    """A real part did not do what it must; the message ends with its log."""


@dataclass(frozen=True, slots=True)
class Parts:
    """What scripts/sandbox_parts prints; None is a part that could not be had that day."""

    image: Path
    root: Path
    runsc: Path | None
    apptainer: Path | None


def find_parts() -> Parts:
    """Makes or reuses all parts. Made for the first time they take minutes."""
    printed = subprocess.run([SCRIPT], stdout=subprocess.PIPE, text=True, check=True).stdout
    paths = {name: Path(path) for name, path in (line.split("=", 1) for line in printed.splitlines())}
    return Parts(paths["image"], paths["root"], paths.get("runsc"), paths.get("apptainer"))


class Server:
    """One program, ready when `probe` says so, in a mount namespace with an empty /run.

    A sleeping process holds the namespace over restarts. What the program mounts or puts into /run meets nobody
    else's, and what it leaves running is known by the namespace.
    """

    name: str

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix=f"hermes-rl-{self.name}-", dir=PLACE))
        self.log = self.directory / "log"
        self._process: subprocess.Popen[bytes] | None = None
        self._holder: subprocess.Popen[bytes] | None = None
        self._namespace: str | None = None
        self._spawned: list[subprocess.Popen[bytes]] = []

    @property
    def pid(self) -> int:
        if self._process is None:
            raise PartError(f"{self.name} is not running")
        return self._process.pid

    def start(self) -> None:
        self._process = self.spawn(*self.command())
        self.await_ready(self._process, self.probe)

    def stop(self) -> None:
        """As a service manager would: SIGTERM, and SIGKILL to one that does not go."""
        if self._process is not None:
            end(self._process)
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def kill(self) -> None:
        """As the kernel would when memory runs out; `start` brings it back."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def close(self) -> None:
        try:
            for process in reversed(self._spawned):
                end(process)
            end_all(self.leftovers)
        finally:
            if self._holder is not None:
                end(self._holder)
            shutil.rmtree(self.directory)

    def __enter__(self) -> Self:
        try:
            self.prepare()
            self.start()
            self.fill()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self) -> None:
        """What must be there before the first start."""
        self._holder = holder = subprocess.Popen(["unshare", "--mount", "--propagation=slave", "sleep", "infinity"])
        self.await_ready(holder, lambda: mount_namespace(holder.pid) not in {None, mount_namespace(os.getpid())})
        self._namespace = mount_namespace(holder.pid)
        self.run("mount", "-t", "tmpfs", "-o", "mode=755", "run", "/run")

    def command(self) -> list[str | Path]:
        raise NotImplementedError

    def probe(self) -> bool:
        raise NotImplementedError

    def fill(self) -> None:
        """What is put into it once it answers."""

    def leftovers(self) -> set[int]:
        """The processes that outlive the program: those in the namespace and what they started."""
        # Without its holder the name may be another's by now.
        if self._namespace is None or self._holder is None or self._holder.poll() is not None:
            return set()
        parents = {pid: parent for pid in processes() if (parent := living_parent(pid)) is not None}
        found = {pid for pid in parents if mount_namespace(pid) == self._namespace}
        while children := {pid for pid, parent in parents.items() if parent in found} - found:
            found |= children
        return found - {self._holder.pid}

    def inside(self, *command: str | Path) -> list[str | Path]:
        if self._holder is None or self._namespace is None:
            raise PartError(f"{self.name} is not prepared; enter it with `with`")
        return ["nsenter", f"--mount=/proc/{self._holder.pid}/ns/mnt", *command]

    def spawn(self, *command: str | Path) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            # A session of its own: the terminal's Ctrl-C is for pytest, which then closes this in order.
            process = subprocess.Popen(
                self.inside(*command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self._spawned.append(process)
        return process

    def run(self, *command: str | Path) -> None:
        done = subprocess.run(self.inside(*command), capture_output=True, text=True, check=False, timeout=REQUEST_S)
        if done.returncode:
            words = " ".join(map(str, command))
            raise PartError(f"`{words}` ended with status {done.returncode}: {done.stderr}{self.tail()}")

    def await_ready(self, process: subprocess.Popen[bytes], probe: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_S
        while not probe():
            if (status := process.poll()) is not None:
                raise PartError(f"{self.name} ended with status {status}{self.tail()}")
            if time.monotonic() > deadline:
                raise PartError(f"{self.name} was not ready in {READY_S:g} s{self.tail()}")
            time.sleep(0.02)

    def tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines() if self.log.exists() else []
        return "\n".join([f"\n{self.name}'s log ends:", *lines[-30:]])


class ContainerServer(Server):
    """A server of Docker's protocol on a unix socket, with one image: `IMAGE`."""

    def __init__(self, image: Path) -> None:
        super().__init__()
        self.image = image
        self.socket = self.directory / "api.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    def probe(self) -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return self.request("GET", "/_ping") == b"OK"
        return False

    def fill(self) -> None:
        with self.image.open("rb") as tar:
            said = self.request("POST", "/images/create?fromSrc=-", tar)
        digest = re.search(rb"sha256:[0-9a-f]{64}", said)
        if digest is None:
            raise PartError(f"{self.name} did not import {self.image}: {said!r}{self.tail()}")
        # Named by a request of its own: podman's import passes over the name.
        name, tag = IMAGE.split(":")
        self.request("POST", f"/images/{digest[0].decode()}/tag?repo={name}&tag={tag}")

    def containers(self) -> list[str]:
        """The ids of all containers, running or not.

        A docker that was killed while it removed one lists it again when it is back, though it has it no more
        (moby/moby#51724): only what it can describe is there.
        """
        listed: list[dict[str, Any]] = json.loads(self.request("GET", "/containers/json?all=1"))
        return [container["Id"] for container in listed if self._describes(container["Id"])]

    def _describes(self, container: str) -> bool:
        status, said = self._asked("GET", f"/containers/{container}/json")
        if status >= 400 and "no such container" not in said.decode(errors="replace").lower():
            raise PartError(f"{self.name} cannot describe {container}: {status} {said!r}{self.tail()}")
        return status < 400

    def request(self, method: str, path: str, body: IO[bytes] | None = None) -> bytes:
        status, said = self._asked(method, path, body)
        if status >= 400:
            raise PartError(f"{self.name} answered {method} {path} with {status}: {said!r}{self.tail()}")
        return said

    def _asked(self, method: str, path: str, body: IO[bytes] | None = None) -> tuple[int, bytes]:
        connection = UnixConnection(self.socket)
        try:
            connection.request(method, path, body, {"Content-Type": "application/x-tar"} if body else {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def close(self) -> None:
        if self._process is not None:
            # In vain on a hung server; its processes are killed all the same.
            with contextlib.suppress(OSError, http.client.HTTPException, PartError):
                for container in self.containers():
                    with contextlib.suppress(PartError):
                        self.request("DELETE", f"/containers/{container}?force=1")
        super().close()


class DockerDaemon(ContainerServer):
    """dockerd without a network, over a containerd of its own; with gVisor as its runtime `runsc` if that is given.

    As on a user's machine containerd outlives a `restart` or `kill` of dockerd, and live-restore is off: a dockerd that
    starts ends the containers of the one before.
    """

    name = "docker"

    def __init__(self, image: Path, runsc: Path | None = None) -> None:
        super().__init__(image)
        self.runsc = runsc
        self.cgroup = self.directory.name

    def prepare(self) -> None:
        super().prepare()
        # It keeps a key there.
        self.run("mkdir", "-p", "/etc/docker")
        self.run("mount", "-t", "tmpfs", "etc", "/etc/docker")
        # gVisor of 2024 takes every network namespace of a newer kernel for the host's, and refuses to use it.
        gvisor = {"path": str(self.runsc), "runtimeArgs": ["--platform=systrap", "--network=none"]}
        runtimes = {"runsc": gvisor} if self.runsc else {}
        (self.directory / "daemon.json").write_text(json.dumps({"runtimes": runtimes}))
        address, settings = self.directory / "containerd.sock", self.directory / "containerd.toml"
        settings.write_text(f"""
            version = 2
            root = "{self.directory}/containerd"
            state = "{self.directory}/containerd-state"
            disabled_plugins = ["io.containerd.grpc.v1.cri"]
            [grpc]
            address = "{address}"
            [plugins."io.containerd.internal.v1.opt"]
            path = "{self.directory}/opt"
            """)
        self.await_ready(self.spawn("containerd", "--config", settings), lambda: answers(address))

    def command(self) -> list[str | Path]:
        return [
            "dockerd",
            f"--config-file={self.directory}/daemon.json",
            f"--containerd={self.directory}/containerd.sock",
            f"--data-root={self.directory}/data",
            f"--exec-root={self.directory}/exec",
            f"--pidfile={self.directory}/dockerd.pid",
            f"--host={self.url}",
            f"--cgroup-parent=/{self.cgroup}",
            "--exec-opt=native.cgroupdriver=cgroupfs",
            "--bridge=none",
            "--iptables=false",
            "--ip6tables=false",
        ]

    def close(self) -> None:
        super().close()
        remove_cgroups(self.cgroup)


class PodmanService(ContainerServer):
    """podman's service of Docker's protocol; here a container needs the ulimits nofile=20000 and nproc=4096 to start.

    podman has no daemon: a container outlives a `restart` or `kill` of the service unless it ends with its stdin.
    """

    name = "podman"

    def command(self) -> list[str | Path]:
        return [
            # Its imports leave a copy of each tar there.
            "env",
            f"TMPDIR={self.directory}",
            "podman",
            "--runtime=runc",
            "--cgroup-manager=cgroupfs",
            "--events-backend=file",
            f"--root={self.directory}/data",
            f"--runroot={self.directory}/run",
            f"--tmpdir={self.directory}/tmp",
            "system",
            "service",
            "--time=0",
            self.url,
        ]

    def close(self) -> None:
        killed = [path.name for path in self.directory.glob("data/overlay-containers/*") if path.is_dir()]
        super().close()
        # Their parent is podman's own, whoever runs it.
        for container in killed:
            remove_cgroups(f"libpod_parent/libpod-{container}")


class SshServer(Server):
    """sshd on loopback for one user, who exists only there: no root, no rc files, a home of their own.

    `stop`, `restart` and `kill` end its connections too; what the user left running stays until `close`.
    """

    name = "ssh"
    host = "127.0.0.1"
    username = "sandbox"

    def __init__(self) -> None:
        super().__init__()
        self.port = free_port(self.host)
        self.uid = free_uid()
        self.home = self.directory / "home"
        self.key = self.directory / "key"
        self.known_hosts = self.directory / "known_hosts"

    def prepare(self) -> None:
        super().prepare()
        # sshd reads the user's keys as the user.
        self.directory.chmod(0o755)
        self.home.mkdir()
        os.chown(self.home, self.uid, self.uid)
        self.run("mkdir", "/run/sshd")
        line = f"{self.username}:*:{self.uid}:{self.uid}::{self.home}:/bin/bash\n"
        self.overlay("/etc/passwd", line)
        self.overlay("/etc/group", f"{self.username}:*:{self.uid}:\n")
        host_key = self.directory / "host_key"
        for key in (host_key, self.key):
            self.run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", key)
        self.known_hosts.write_text(f"[{self.host}]:{self.port} {host_key.with_suffix('.pub').read_text()}")
        (self.directory / "sshd_config").write_text(f"""
            ListenAddress {self.host}:{self.port}
            HostKey {host_key}
            AuthorizedKeysFile {self.key.with_suffix(".pub")}
            AllowUsers {self.username}
            PasswordAuthentication no
            KbdInteractiveAuthentication no
            UsePAM no
            StrictModes no
            PidFile none
            PrintMotd no
            PrintLastLog no
            MaxSessions 500
            MaxStartups 200:30:300
            Subsystem sftp internal-sftp
            """)

    def overlay(self, file: str, line: str) -> None:
        """Adds a line to a file of the machine, in our namespace alone."""
        ours = self.directory / Path(file).name
        ours.write_text(Path(file).read_text() + line)
        self.run("mount", "--bind", ours, file)

    def command(self) -> list[str | Path]:
        # It starts itself again by its full path.
        return [shutil.which("sshd") or "/usr/sbin/sshd", "-D", "-e", "-f", self.directory / "sshd_config"]

    def probe(self) -> bool:
        try:
            with socket.create_connection((self.host, self.port), READY_S) as client:
                return client.recv(4) == b"SSH-"
        except OSError:
            return False

    def stop(self) -> None:
        super().stop()
        end_all(self.connections)

    def kill(self) -> None:
        super().kill()
        end_all(self.connections)

    def connections(self) -> set[int]:
        return {pid for pid in self.leftovers() if read(pid, "comm").startswith(b"sshd")}


class UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=REQUEST_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def free_uid() -> int:
    """One that Debian keeps for users who come and go."""
    taken = {user.pw_uid for user in pwd.getpwall()}
    return random.SystemRandom().choice([uid for uid in range(61_184, 65_520) if uid not in taken])


def end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def end_all(find: Callable[[], set[int]]) -> None:
    """Kills what `find` finds until it finds nothing."""
    deadline = time.monotonic() + STOP_S
    while left := find():
        if time.monotonic() > deadline:
            raise PartError(f"processes {sorted(left)} still live {STOP_S:g} s after SIGKILL")
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def processes() -> Iterator[int]:
    return (int(entry) for entry in os.listdir("/proc") if entry.isdigit())


def mount_namespace(pid: int) -> str | None:
    try:
        return str(Path(f"/proc/{pid}/ns/mnt").readlink())
    except OSError:
        return None


def living_parent(pid: int) -> int | None:
    """The parent of a process that has not ended."""
    state, parent, *_ = read(pid, "stat").rpartition(b")")[2].split() or [b"Z", b"0"]
    return None if state in {b"Z", b"X"} else int(parent)


def read(pid: int, file: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{file}").read_bytes()
    except OSError:
        return b""


def cgroups(name: str) -> list[Path]:
    """The group of this name in each hierarchy of cgroup v1, or in the one of v2."""
    return [tree for tree in (CGROUPS / name, *CGROUPS.glob(f"*/{name}")) if tree.is_dir()]


def remove_cgroups(name: str) -> None:
    """The group and all in it, once the kernel has let go of the processes that were there."""
    deadline = time.monotonic() + STOP_S
    for folder in [folder for tree in cgroups(name) for folder, _, _ in os.walk(tree, topdown=False)]:
        while Path(folder).is_dir():
            try:
                Path(folder).rmdir()
            except OSError as error:
                if time.monotonic() > deadline:
                    raise PartError(f"{folder} cannot be removed: {error}") from error
                time.sleep(0.02)
