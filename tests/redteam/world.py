"""What an attack aims at: secrets, files, sockets and a neighbour that stand for the host's own.

All of it is made by the test and removed by it. A secret is one random word, so that it is stolen wherever it appears.
"""

import contextlib
import ctypes
import hashlib
import os
import secrets
import shlex
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Self

SHOUT = b"hermes-rl-redteam"
_LOOT = (".ssh/id_ed25519", ".gitconfig", ".aws/credentials", "notes.txt")
# More than the host needs for ten megabytes of output, which it takes, in a few forms.
_FLOOD_MB = 80
# What undefended set-ups and downloads may write.
_OPEN = ("rollout", "downloads")


class Harm(StrEnum):
    """What an attack that succeeds has done."""

    LEAK = "a secret of the host or of another rollout was read"
    REACH = "a socket of the host was reached"
    TAMPER = "a file of the host was changed"
    GAIN = "it gained a privilege or a resource that the sandbox withholds"
    NEIGHBOUR = "another rollout was starved, stopped or changed"
    SURVIVE = "a process outlived its rollout"
    CHANNEL = "the channel to the sandbox died or lied"
    FLOOD = "the host's memory was filled"
    LATE = "the host waited beyond the time it had set"
    FORGE = "it got a score without doing the work"
    ESCAPE = "the rollout got no score"


@dataclass
class Traces:
    """What one attack left, as the host can see it."""

    output: str = ""
    fetched: str = ""
    neighbour: str = ""
    survivors: int = 0
    channel: str = ""
    held_mb: float = 0.0
    late: bool = False
    score: float | None = 0.0
    heard: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)

    def harms(self, secret: str) -> set[Harm]:
        found = {
            Harm.LEAK: secret in self.output or secret in self.fetched,
            Harm.REACH: bool(self.heard),
            Harm.TAMPER: bool(self.changed),
            Harm.GAIN: "GAINED" in self.output,
            Harm.NEIGHBOUR: bool(self.neighbour),
            Harm.SURVIVE: self.survivors > 0,
            Harm.CHANNEL: bool(self.channel),
            Harm.FLOOD: self.held_mb > _FLOOD_MB,
            Harm.LATE: self.late,
            Harm.FORGE: bool(self.score),
            Harm.ESCAPE: self.score is None,
        }
        return {harm for harm, so in found.items() if so}


@dataclass(frozen=True, slots=True)
class Ears:
    """Listening sockets; `heard` has what was said to them, by the socket's name."""

    ports: dict[str, int]
    heard: list[str]


class World:
    """The host as an attack sees it. `uid` is the owner of the sandboxes, who may read all of it.

    `image` is an unpacked root directory with bash, perl, Python and pytest.
    """

    def __init__(self, uid: int, image: Path) -> None:
        self.uid = uid
        self.image = image
        self.secret = f"loot-{secrets.token_hex(16)}"
        self.mark = secrets.token_hex(6)
        # Where a tool that shows the owner's home would show it.
        home = Path.home() if uid == os.geteuid() and os.access(Path.home(), os.W_OK) else Path(tempfile.gettempdir())
        self.directory = Path(tempfile.mkdtemp(prefix=".hermes-rl-redteam-", dir=home))
        self.home = self.directory / "home"
        self.neighbour = self.directory / "neighbour"
        self.rollout, self.downloads = (self.directory / name for name in _OPEN)
        self.shared_files = [Path(place, f"neighbour-{self.mark}") for place in ("/tmp", "/dev/shm")]
        self.abstract = f"hermes-rl-redteam-{self.mark}"
        self.address = _outer_address()
        self._before: dict[str, str] = {}
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Self:
        for folder in (self.home, self.neighbour, self.rollout, self.downloads):
            folder.mkdir()
        for name in _LOOT:
            self._keep(self.home / name)
        for path in (self.neighbour / f"secret-{self.mark}", *self.shared_files):
            self._keep(path)
        self.ears = self._opened.enter_context(listening(self))
        self._opened.enter_context(shared_segment(int(self.mark, 16) & 0x7FFFFFFF, self.secret))
        for path in (self.directory, *self.directory.rglob("*")):
            os.chown(path, self.uid, self.uid)
        self._before = self._seen()
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()
        for path in self.shared_files:
            path.unlink(missing_ok=True)
        _remove(self.directory)

    def variables(self, **more: str | int) -> str:
        """The first lines of an attack's script: it knows its targets. It does not know the secret."""
        known = {
            "HOST": self.home,
            "NEIGHBOUR_FILES": self.neighbour,
            "MARK": self.mark,
            "ADDRESS": self.address,
            "ABSTRACT": self.abstract,
            "SHOUT": SHOUT.decode(),
            "PARENT": os.getpid(),
            **self.ears.ports,
            **more,
        }
        return "".join(f"export {name}={shlex.quote(str(value))}\n" for name, value in known.items())

    def after(self, traces: Traces) -> Traces:
        """Note what the world has seen of an attack, and make it whole again."""
        # For the threads that hear.
        time.sleep(0.05)
        traces.heard = list(self.ears.heard)
        self.ears.heard.clear()
        now = self._seen()
        names = self._before.keys() | now.keys()
        traces.changed = sorted(name for name in names if self._before.get(name) != now.get(name))
        for name in traces.changed:
            path = self.directory / name
            if name in self._before and not path.is_dir():
                self._keep(path)
            elif name not in self._before:
                _remove(path)
        for folder in (self.rollout, self.downloads):
            _remove(folder)
            folder.mkdir()
            os.chown(folder, self.uid, self.uid)
        return traces

    def _keep(self, path: Path) -> None:
        path.parent.mkdir(exist_ok=True)
        path.write_text(self.secret)
        path.chmod(0o600)
        os.chown(path, self.uid, self.uid)

    def _seen(self) -> dict[str, str]:
        paths = [*self.directory.rglob("*"), *self.shared_files]
        inside = {str(path.relative_to(self.directory)): path for path in paths if path.is_relative_to(self.directory)}
        return {name: _content(path) for name, path in inside.items() if name.split("/")[0] not in _OPEN}


def _remove(path: Path) -> None:
    """Never into another file system: an attack may have mounted one there."""
    subprocess.run(["rm", "-rf", "--one-file-system", "--", path], check=True)


def _content(path: Path) -> str:
    if path.is_file() and not path.is_symlink():
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{path.lstat().st_mode:o}"


def _outer_address() -> str:
    """The machine's own address on its network; nothing is sent to find it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return "127.0.0.1"
        address: str = probe.getsockname()[0]
        return address


@contextlib.contextmanager
def listening(world: World) -> Iterator[Ears]:
    """Sockets on the loopback, on the outer address, by path and by an abstract name, each with a thread that hears."""
    ears = Ears({}, [])
    with contextlib.ExitStack() as opened:

        def open_one(name: str, family: int, kind: int, address: tuple[str, int] | str) -> None:
            one = opened.enter_context(socket.socket(family, kind))
            one.bind(address)
            if kind == socket.SOCK_STREAM:
                one.listen()
            if family == socket.AF_INET:
                ears.ports[name] = one.getsockname()[1]
            thread = threading.Thread(target=_hear, args=(one, name, ears.heard), daemon=True)
            thread.start()
            opened.callback(thread.join, 5)
            opened.callback(one.shutdown, socket.SHUT_RDWR) if kind == socket.SOCK_STREAM else opened.callback(
                _say_goodbye, one
            )

        open_one("LOOPBACK_PORT", socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        open_one("OUTER_PORT", socket.AF_INET, socket.SOCK_STREAM, (world.address, 0))
        open_one("DATAGRAM_PORT", socket.AF_INET, socket.SOCK_DGRAM, (world.address, 0))
        open_one("abstract", socket.AF_UNIX, socket.SOCK_STREAM, f"\0{world.abstract}")
        for name in ("docker.sock", "agent.sock"):
            open_one(name, socket.AF_UNIX, socket.SOCK_STREAM, str(world.home / name))
        yield ears


def _hear(one: socket.socket, name: str, heard: list[str]) -> None:
    while True:
        try:
            if one.type == socket.SOCK_DGRAM:
                said = one.recv(100)
            else:
                with one.accept()[0] as connection:
                    connection.settimeout(5)
                    said = connection.recv(100)
        except TimeoutError:
            continue
        except OSError:
            return
        if said == b"goodbye":
            return
        if said.startswith(SHOUT):
            heard.append(name)


def _say_goodbye(one: socket.socket) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"goodbye", one.getsockname())


@contextlib.contextmanager
def shared_segment(key: int, secret: str) -> Iterator[None]:
    """A System V segment with the secret, which everybody in this namespace may read."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.shmat.restype = ctypes.c_void_p
    segment = libc.shmget(key, 64, 0o1666)
    if segment < 0:
        raise OSError(ctypes.get_errno(), "no shared memory segment can be had")
    try:
        at = libc.shmat(segment, None, 0)
        ctypes.memmove(at, secret.encode(), len(secret))
        libc.shmdt(ctypes.c_void_p(at))
        yield
    finally:
        libc.shmctl(segment, 0, None)
