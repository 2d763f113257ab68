"""How bwrap is started: the tools, the argument list, the user, the few files of /etc.

Two user namespaces are nested. The outer one, where the bwrap process stays, owns the others and maps our uid to root,
as a terminal device needs. The inner one, which the warden takes, maps it to `agent` and is the only one that may be
made. The warden keeps the inner one's capabilities, which reach over nothing; a command that it starts, being no root,
loses them with its first exec.
"""

import math
import os
import random
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Self

from hermes_rl.errors import ConfigError, SandboxError
from hermes_rl.sandbox import warden
from hermes_rl.sandbox.protocol import WORKSPACE
from hermes_rl.sandbox.warden import AGENT_ID, PROGRAM, base_environment

LAUNCH = resources.files("hermes_rl.sandbox").joinpath("launch.pl").read_text()
SHARED_MEMORY_MB = 64
# What a file costs the kernel besides its content: tmpfs counts only the content.
FILE_KB = 1.5
# Root in the sandbox where an image's setup runs has what a container's root usually has.
ROOT_MAY = "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL NET_BIND_SERVICE SETFCAP SETGID SETPCAP SETUID SYS_CHROOT"

_MB = 1024 * 1024
_ETC = {
    "passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:{AGENT_ID}:{AGENT_ID}:agent:{WORKSPACE}:/bin/bash\n",
    "group": f"root:x:0:\nagent:x:{AGENT_ID}:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
}
_ETC_OF_HOST = (
    "alternatives",
    "ca-certificates",
    "ld.so.cache",
    "localtime",
    "pki/tls/certs",
    "pki/ca-trust",
    "ssl/certs",
    "ssl/openssl.cnf",
)
# CAP_SETFCAP: without it Linux 5.12 and later refuse to map root of the outer namespace into the inner one.
# CAP_SYS_ADMIN: to bound the number of files. Both end with the inner namespace, before any command is run.
_WARDEN_MAY = "SETFCAP SYS_ADMIN"
# Of an image everything else is shown as it is.
_MADE_FRESH = {"proc", "dev", "sys", "tmp", "run", WORKSPACE.strip("/")}


@dataclass(frozen=True, slots=True)
class Tools:
    bwrap: str
    perl: str
    bash: str

    @classmethod
    def find(cls) -> Self:
        found = {name: shutil.which(name, path=warden.PATH) for name in ("bwrap", "perl", "bash")}
        missing = [name for name, path in found.items() if path is None]
        if missing:
            raise SandboxError(
                "start",
                f"the bubblewrap backend needs {', '.join(missing)}: "
                "install the packages bubblewrap, perl and bash (apt-get install bubblewrap perl-base bash)",
            )
        return cls(**{name: path for name, path in found.items() if path is not None})


@dataclass(frozen=True, slots=True)
class View:
    """What is seen from inside. `image` None is the host's /usr; `writable` is for an image's setup, run by root.

    `folders` of the host are seen at these paths, read-only.
    """

    image: Path | None
    disk_mb: int
    network: bool
    writable: bool = False
    folders: Mapping[str, Path] = field(default_factory=dict)

    @property
    def writable_places(self) -> dict[str, int]:
        """Where a command can write, and how many MB. All of it is in memory."""
        ours = {"/dev/shm": SHARED_MEMORY_MB, "/run": SHARED_MEMORY_MB}  # noqa: S108 - in the sandbox
        return {**ours, "/tmp": self.disk_mb, WORKSPACE: self.disk_mb}  # noqa: S108 - in the sandbox

    @property
    def memory_mb(self) -> int:
        """What files can take of the memory: their bytes, and what the kernel keeps of each."""
        sizes = self.writable_places.values()
        return sum(sizes) + math.ceil(sum(map(most_files, sizes)) * FILE_KB / 1024)

    @property
    def tmpfs(self) -> str:
        """The bounds that bwrap cannot set, for the warden to set: options and a place a line."""
        return "\n".join(f"nr_inodes={most_files(size)} {path}" for path, size in self.writable_places.items())


def most_files(size_mb: int) -> int:
    """How many files a tmpfs of that size may hold: twice what ext4 has by default."""
    return 128 * max(size_mb, 64)


def launch_argv(
    tools: Tools, groups: Sequence[Path], owner: int | None, program: Sequence[str], *, namespace: bool = True
) -> list[str]:
    """The command that joins the control groups, becomes the owner and takes the outer user namespace."""
    joined = "\n".join(map(str, groups))
    words = ["" if owner is None else str(owner), "namespace" if namespace else ""]
    return [tools.perl, "-e", LAUNCH, joined, *words, *program]


def bwrap_argv(tools: Tools, etc: Mapping[str, int], view: View) -> list[str]:
    """The command that makes the other namespaces and runs the warden in them as their first process."""
    namespaces = "--unshare-ipc --unshare-pid --unshare-uts --unshare-cgroup-try".split()
    if not view.network:
        namespaces.append("--unshare-net")
    life = ["--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    for capability in (ROOT_MAY if view.writable else _WARDEN_MAY).split():
        life += ["--cap-add", f"CAP_{capability}"]
    system = _host_files(etc) if view.image is None else _image_files(view.image, etc, writable=view.writable)
    system += ["--proc", "/proc", "--dev", "/dev"]
    for path, size in view.writable_places.items():
        system += ["--size", str(size * _MB), "--tmpfs", path]
    for place, folder in view.folders.items():
        system += ["--ro-bind", str(folder), place]
    system += ["--remount-ro", "/dev"]
    if view.network and (view.image is None or _is_file(view.image, "resolv.conf")):
        system += ["--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
    # What root writes to /proc/sys would reach the host; bwrap covers only what a directory's mode lets it see.
    system += ["--ro-bind", "/proc/sys", "/proc/sys"] if view.writable else ["--remount-ro", "/"]
    system += ["--chdir", WORKSPACE, "--clearenv", "--hostname", "sandbox"]
    for name, value in base_environment(WORKSPACE).items():
        system += ["--setenv", name, value]
    inside = "/usr/bin/perl" if view.image is not None else tools.perl
    return [tools.bwrap, *namespaces, *life, *system, "--", inside, "-e", PROGRAM]


@contextmanager
def etc_files(view: View) -> Iterator[dict[str, int]]:
    """The few files of /etc that differ from the host's or the image's, by name, each a descriptor that bwrap reads."""
    texts = _ETC if view.image is None else _amended(view.image)
    with ExitStack() as opened:
        files = {}
        # A setup changes its image's own files.
        for name, text in {} if view.writable else texts.items():
            files[name] = os.memfd_create(name)
            opened.callback(os.close, files[name])
            os.write(files[name], text.encode("utf-8", "surrogateescape"))
            os.lseek(files[name], 0, os.SEEK_SET)
        yield files


def fresh_uid(taken: set[int | None]) -> int:
    """A uid that no account and no other sandbox here has, from the upper part of what this root can become."""
    largest = max(
        (int(first), int(count))
        for first, _, count in map(str.split, Path("/proc/self/uid_map").read_text().splitlines())
    )
    end = min(sum(largest), 2**31)
    while True:
        uid = random.SystemRandom().randrange(end - (end - largest[0]) // 2, end)
        if uid not in taken and uid != 65534:
            return uid


def require_way_in(directory: Path, what: str = "image") -> None:
    """ConfigError unless the user that a sandbox of root's has can enter a directory."""
    closed = [one for one in (directory, *directory.parents) if not one.stat().st_mode & stat.S_IXOTH]
    if closed:
        raise ConfigError(
            f"the {what} {directory} cannot be used: each sandbox that root starts has a user of its own, and "
            f"{closed[-1]} cannot be entered by other users. Move the {what}, or let HERMES_HOME name a directory that "
            "is open to all"
        )


def why_not(said: str) -> str:
    message = f"a bubblewrap sandbox could not start: {said}."
    if "unshare" in said or "uid_map" in said or "max_user_namespaces" in said or "new namespace" in said:
        message += (
            " User namespaces seem to be forbidden here: as root set sysctl user.max_user_namespaces=10000 and, where "
            "they exist, kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0."
        )
    elif "source path" in said:
        message += (
            " Each sandbox has a user of its own, who must be able to enter the image's directory: move it, or let "
            "HERMES_HOME name a directory that is open to all."
        )
    elif "perl" in said:
        message += " The image needs bash and perl (Debian's and Ubuntu's have them: packages bash and perl-base)."
    return message


def _host_files(etc: Mapping[str, int]) -> list[str]:
    """/usr as it is, and the top-level directories that are links into it or, on older systems, real ones."""
    argv = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        argv += _shown(Path("/", name), name)
    for name, fd in etc.items():
        argv += ["--ro-bind-data", str(fd), f"/etc/{name}"]
    for name in _ETC_OF_HOST:
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return argv


def _image_files(image: Path, etc: Mapping[str, int], *, writable: bool) -> list[str]:
    if writable:
        return ["--bind", str(image), "/"]
    argv: list[str] = []
    for name in sorted(entry.name for entry in image.iterdir() if entry.name not in _MADE_FRESH):
        argv += _shown(image / name, name)
    for name, fd in etc.items():
        argv += ["--ro-bind-data", str(fd), f"/etc/{name}"]
    return argv


def _amended(image: Path) -> dict[str, str]:
    """An image's users and groups and, unless it has somebody with that number, the agent; and our names of hosts."""
    amended = {name: _ETC[name] for name in ("hosts",) if _is_file(image, name)}
    for name in ("passwd", "group"):
        if _is_file(image, name):
            lines = (image / "etc" / name).read_text(errors="surrogateescape").splitlines()
            if not any(line.split(":")[2:3] == [str(AGENT_ID)] for line in lines):
                lines += _ETC[name].splitlines()[1:]
                amended[name] = "".join(f"{line}\n" for line in lines)
    return amended


def _is_file(image: Path, name: str) -> bool:
    """Whether an image has that file in /etc, and no link in its place, which could lead to one of the host's."""
    etc = image / "etc"
    return not etc.is_symlink() and not (etc / name).is_symlink() and (etc / name).is_file()


def _shown(path: Path, name: str) -> list[str]:
    if path.is_symlink():
        return ["--symlink", str(path.readlink()), f"/{name}"]
    return ["--ro-bind", str(path), f"/{name}"] if path.exists() else []
