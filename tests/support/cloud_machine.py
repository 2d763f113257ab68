"""A machine of a pretended cloud: a real container on this one, in which the contract servers run what they are told.

Always true: its files, processes and mounts live in namespaces of its own and die with it, and it dies with its server.
Its memory, processor and disk are held as the customer ordered them. Needs root.
"""

import asyncio
import json
import os
import secrets
import shlex
import shutil
import signal
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hermes_rl.sandbox import cgroups
from hermes_rl.sandbox.backends.bwrap_arguments import LAUNCH
from hermes_rl.sandbox.spec import Limits

DISK_MB = 512
# What root of a container has by docker's defaults, without those that reach the kernel of the host.
_CAPABILITIES = "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service sys_chroot".split()
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# A tmpfs has everything; /usr is the host's, with a writable layer over it.
_BUILD = """
set -e
mount -t tmpfs -o "size=${DISK}m,mode=755" machine "$PLACE"
cd "$PLACE"
mkdir upper work root
cd root
mkdir usr etc var home opt srv mnt media root run proc dev tmp var/tmp
chmod 1777 tmp var/tmp
mount -t overlay -o "lowerdir=/usr,upperdir=$PLACE/upper,workdir=$PLACE/work" machine usr
for name in bin sbin lib lib32 lib64 libx32; do if [ -L "/$name" ]; then ln -s "$(readlink "/$name")" "$name"; fi; done
printf 'root:x:0:0:root:/root:/bin/bash\\nnobody:x:65534:65534:nobody:/nonexistent:/bin/false\\n' > etc/passwd
printf 'root:x:0:\\nnogroup:x:65534:\\n' > etc/group
printf '127.0.0.1 localhost\\n' > etc/hosts
for name in alternatives ld.so.cache localtime ssl ca-certificates; do cp -a "/etc/$name" etc/ 2>/dev/null || true; done
if [ -n "$LACKING" ]; then rm "usr/bin/$LACKING"; fi
exec "$@"
"""


@dataclass
class Machine:
    """One machine. `lacking` is a program that its image does not have.

    Ended while it is being made, it is ended as soon as it is there.
    """

    limits: Limits = field(default_factory=Limits)
    network: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    lacking: str = ""
    name: str = field(default_factory=lambda: f"cloud-{secrets.token_hex(6)}")
    _outer: asyncio.subprocess.Process | None = None
    _first: int = 0
    _groups: list[Path] = field(default_factory=list)
    _place: Path | None = None
    _children: set[asyncio.subprocess.Process] = field(default_factory=set)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    _over: bool = False

    @property
    def running(self) -> bool:
        return self._outer is not None and self._outer.returncode is None

    async def start(self) -> None:
        """Make it and wait until commands can be run in it."""
        async with self._turn:
            if not self._over:
                await self._start()

    async def _start(self) -> None:
        groups = cgroups.available()
        disk = self.limits.disk_mb or DISK_MB
        self._groups = groups.create(self.name, self.limits)
        self._place = Path(tempfile.mkdtemp(prefix="hermes-rl-cloud-"))
        told, tell = os.pipe()
        bwrap = "bwrap --unshare-pid --unshare-ipc --unshare-uts --hostname machine --die-with-parent".split()
        bwrap += [] if self.network else ["--unshare-net"]
        bwrap += ["--bind", f"{self._place}/root", "/", "--proc", "/proc", "--dev", "/dev"]
        if self.network:
            bwrap += ["--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
        bwrap += ["--info-fd", str(tell), "--cap-drop", "ALL", "--"]
        # bwrap tells the process before it has made its mounts; what runs in them tells that they are there.
        bwrap += ["sh", "-c", "echo up; exec sleep infinity >/dev/null"]
        build = ["unshare", "--mount", "--propagation", "private", "bash", "-c", _BUILD, "build", *bwrap]
        try:
            self._outer = await asyncio.create_subprocess_exec(
                *self._launched(build),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                pass_fds=(tell,),
                env={"PATH": _PATH, "PLACE": str(self._place), "DISK": str(disk), "LACKING": self.lacking},
            )
        finally:
            os.close(tell)
        said = await asyncio.to_thread(_read_all, told)
        up = await self._outer.stdout.readline() if self._outer.stdout else b""
        try:
            self._first = json.loads(said if up else "")["child-pid"]
        except ValueError:
            await self._end()
            raise RuntimeError("no machine could be made; the contract servers need root and bwrap") from None

    async def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        fds: Sequence[int | None] = (None, None, None),
    ) -> asyncio.subprocess.Process:
        """Run a program as root of the machine, on these descriptors, or on pipes where there is None."""
        if not self.running:
            raise ProcessLookupError(self.name)
        entered = ["nsenter", "--target", str(self._first), "--mount", "--pid", "--ipc", "--uts", "--wdns=/"]
        entered += [] if self.network else ["--net"]
        bounds = "-all," + ",".join(f"+{one}" for one in _CAPABILITIES)
        entered += ["setpriv", f"--bounding-set={bounds}", "--inh-caps=-all", *argv]
        pipes = [asyncio.subprocess.PIPE if fd is None else fd for fd in fds]
        process = await asyncio.create_subprocess_exec(
            *self._launched(entered),
            stdin=pipes[0],
            stdout=pipes[1],
            stderr=pipes[2],
            env={"PATH": _PATH, "HOME": "/root", **self.env, **(env or {})},
            start_new_session=True,
        )
        self._children.add(process)
        return process

    async def write(self, path: str, data: bytes) -> None:
        process = await self.run(["bash", "-c", f"cat > {shlex.quote(path)}"])
        _, said = await process.communicate(data)
        if process.returncode:
            raise OSError(said.decode(errors="replace"))

    async def end(self) -> None:
        """Kill everything in it; its files go with its mounts."""
        self._over = True
        async with self._turn:
            await self._end()

    async def _end(self) -> None:
        if self._outer is not None:
            for pid in (self._first, self._outer.pid):
                if pid and self._outer.returncode is None:
                    _kill(pid)
            await self._outer.wait()
        for process in tuple(self._children):
            # nsenter stops with its child, and would not see the end of it.
            if process.returncode is None:
                _kill(process.pid)
            await process.wait()
        await cgroups.remove(self._groups)
        if self._place is not None:
            shutil.rmtree(self._place, ignore_errors=True)

    def _launched(self, argv: Sequence[str]) -> list[str]:
        found = shutil.which(argv[0], path=_PATH)
        if found is None:
            raise FileNotFoundError(f"the contract servers need the program {argv[0]}")
        return ["/usr/bin/perl", "-e", LAUNCH, "\n".join(map(str, self._groups)), "", "", found, *argv[1:]]


def _read_all(fd: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        return file.read()


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
