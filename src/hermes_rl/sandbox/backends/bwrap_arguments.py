"""How bwrap is started: the tools, the argument list, the user, a few files of /etc.

Two user namespaces are nested. The outer one, where the bwrap process stays, owns the other namespaces and maps our uid
to root, which terminal devices require. The guest agent enters the inner one, which maps our uid to `agent`; no further
user namespace can be created. The guest agent keeps the inner namespace's capabilities, which give it no power over
anything; its commands are not root and lose them at their first exec.
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

from hermes_rl.core.errors import ConfigError, SandboxError
from hermes_rl.sandbox.guest_agent import client
from hermes_rl.sandbox.guest_agent.client import AGENT_ID, PROGRAM, base_environment
from hermes_rl.sandbox.hidden_paths import covers
from hermes_rl.sandbox.protocol import WORKSPACE

LAUNCH = resources.files("hermes_rl.sandbox.backends").joinpath("launch.pl").read_text()
SHARED_MEMORY_MB = 64
# Kernel memory per file besides its content; the size limit of a tmpfs counts only content.
FILE_KB = 1.5
# Capabilities of root during an image's setup: those that root usually has in a container.
SETUP_CAPABILITIES = (
    "AUDIT_WRITE CHOWN DAC_OVERRIDE FOWNER FSETID KILL NET_BIND_SERVICE SETFCAP SETGID SETPCAP SETUID SYS_CHROOT"
)

_MB = 1024 * 1024
_ETC = {
    "passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:{AGENT_ID}:{AGENT_ID}:agent:{WORKSPACE}:/bin/bash\n",
    "group": f"root:x:0:\nagent:x:{AGENT_ID}:\n",
    "hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
}
_HOST_ETC = (
    "alternatives",
    "ca-certificates",
    "ld.so.cache",
    "localtime",
    "pki/tls/certs",
    "pki/ca-trust",
    "ssl/certs",
    "ssl/openssl.cnf",
)
# CAP_SETFCAP: Linux 5.12 and later require it to map root of the outer namespace into the inner one.
# CAP_SYS_ADMIN: to limit the number of files. Both end at the inner namespace, before any command runs.
_GUEST_CAPABILITIES = "SETFCAP SYS_ADMIN"
# The options that mount a path of the host: source, target.
_BINDS = {"--bind", "--ro-bind", "--ro-bind-try"}
# Created fresh in each sandbox; everything else is mounted from the image.
_FRESH_DIRECTORIES = {"proc", "dev", "sys", "tmp", "run", WORKSPACE.strip("/")}


@dataclass(frozen=True, slots=True)
class Tools:
    bwrap: str
    perl: str
    bash: str

    @classmethod
    def find(cls) -> Self:
        found = {name: shutil.which(name, path=client.PATH) for name in ("bwrap", "perl", "bash")}
        missing = [name for name, path in found.items() if path is None]
        if missing:
            raise SandboxError(
                "start",
                f"the bubblewrap backend needs {', '.join(missing)}: "
                "install the packages bubblewrap, perl and bash (apt-get install bubblewrap perl-base bash)",
            )
        return cls(**{name: path for name, path in found.items() if path is not None})


@dataclass(frozen=True, slots=True)
class SandboxView:
    """What the sandbox sees. `image` None is the host's /usr; `writable` is for an image's setup, run by root.

    `folders` of the host are mounted read-only at these paths. `hidden` paths of the host are covered in every mount.
    """

    image: Path | None
    disk_mb: int
    network: bool
    writable: bool = False
    folders: Mapping[str, Path] = field(default_factory=dict)
    hidden: Sequence[str] = ()

    @property
    def writable_mounts(self) -> dict[str, int]:
        """The directories where a command can write, with their size in MB. All are in memory."""
        small = {"/dev/shm": SHARED_MEMORY_MB, "/run": SHARED_MEMORY_MB}  # noqa: S108 - in the sandbox
        return {**small, "/tmp": self.disk_mb, WORKSPACE: self.disk_mb}  # noqa: S108 - in the sandbox

    @property
    def memory_mb(self) -> int:
        """Memory that files can use: their content and the kernel's overhead per file."""
        sizes = self.writable_mounts.values()
        return sum(sizes) + math.ceil(sum(map(max_files, sizes)) * FILE_KB / 1024)

    @property
    def tmpfs(self) -> str:
        """Limits that bwrap cannot set, for the guest agent: mount options and a path per line."""
        return "\n".join(f"nr_inodes={max_files(size)} {path}" for path, size in self.writable_mounts.items())


def max_files(size_mb: int) -> int:
    """Inode limit of a tmpfs of that size: twice the default of ext4."""
    return 128 * max(size_mb, 64)


def launch_argv(
    tools: Tools, groups: Sequence[Path], owner: int | None, program: Sequence[str], *, namespace: bool = True
) -> list[str]:
    """The command that joins the control groups, switches to the owner and enters the outer user namespace."""
    arguments = ["\n".join(map(str, groups)), "" if owner is None else str(owner), "namespace" if namespace else ""]
    return [tools.perl, "-e", LAUNCH, *arguments, *program]


def bwrap_argv(tools: Tools, etc: Mapping[str, int], view: SandboxView) -> list[str]:
    """The command that creates the other namespaces and runs the guest agent as their first process."""
    namespaces = "--unshare-ipc --unshare-pid --unshare-uts --unshare-cgroup-try".split()
    if not view.network:
        namespaces.append("--unshare-net")
    process = ["--new-session", "--as-pid-1", "--cap-drop", "ALL"]
    for capability in (SETUP_CAPABILITIES if view.writable else _GUEST_CAPABILITIES).split():
        process += ["--cap-add", f"CAP_{capability}"]
    system = _host_files(etc) if view.image is None else _image_files(view.image, etc, writable=view.writable)
    system += ["--proc", "/proc", "--dev", "/dev"]
    for path, size in view.writable_mounts.items():
        system += ["--size", str(size * _MB), "--tmpfs", path]
    for target, folder in view.folders.items():
        system += ["--ro-bind", str(folder), target]
    system += ["--remount-ro", "/dev"]
    if view.network and (view.image is None or _has_etc_file(view.image, "resolv.conf")):
        system += ["--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]
    # Root's writes to /proc/sys would reach the host; bwrap only covers the parts that file modes let it see.
    system += ["--ro-bind", "/proc/sys", "/proc/sys"] if view.writable else ["--remount-ro", "/"]
    system += ["--chdir", WORKSPACE, "--clearenv", "--hostname", "sandbox"]
    for name, value in base_environment(WORKSPACE).items():
        system += ["--setenv", name, value]
    perl = "/usr/bin/perl" if view.image is not None else tools.perl
    return [tools.bwrap, *namespaces, *process, *_covered(system, view), "--", perl, "-e", PROGRAM]


@contextmanager
def etc_files(view: SandboxView) -> Iterator[dict[str, int]]:
    """The files of /etc that differ from the host's or the image's: name -> descriptor for bwrap to read."""
    texts = _ETC if view.image is None else _amended_etc(view.image)
    with ExitStack() as opened:
        files = {}
        # A setup works on the image's own files.
        for name, text in {} if view.writable else texts.items():
            files[name] = os.memfd_create(name)
            opened.callback(os.close, files[name])
            os.write(files[name], text.encode("utf-8", "surrogateescape"))
            os.lseek(files[name], 0, os.SEEK_SET)
        yield files


def fresh_uid(taken: set[int | None]) -> int:
    """A random uid that no other sandbox here has, from the upper half of the uids available to this root."""
    largest = max(
        (int(first), int(count))
        for first, _, count in map(str.split, Path("/proc/self/uid_map").read_text().splitlines())
    )
    end = min(sum(largest), 2**31)
    while True:
        uid = random.SystemRandom().randrange(end - (end - largest[0]) // 2, end)
        if uid not in taken and uid != 65534:
            return uid


def require_enterable(directory: Path, what: str = "image") -> None:
    """ConfigError unless other users can enter the directory: sandboxes started by root run under their own uid."""
    closed = [path for path in (directory, *directory.parents) if not path.stat().st_mode & stat.S_IXOTH]
    if closed:
        raise ConfigError(
            f"the {what} {directory} cannot be used: sandboxes started by root run under their own uid, and "
            f"{closed[-1]} cannot be entered by other users. Move the {what}, or set HERMES_HOME to a directory that "
            "all users can enter"
        )


def explain_start_failure(backend: str, stderr: str) -> str:
    message = f"a {backend} sandbox could not start: {stderr}."
    if any(word in stderr for word in ("unshare", "uid_map", "max_user_namespaces", "new namespace", "user namespace")):
        message += (
            " User namespaces seem to be disabled here: as root set sysctl user.max_user_namespaces=10000 and, where "
            "they exist, kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0."
        )
    elif "source path" in stderr:
        message += (
            " Each sandbox runs under its own uid, which must be able to enter the image's directory: move it, or set "
            "HERMES_HOME to a directory that all users can enter."
        )
    elif "perl" in stderr:
        message += " The image needs bash and perl (Debian's and Ubuntu's have them: packages bash and perl-base)."
    return message


def _covered(argv: Sequence[str], view: SandboxView) -> list[str]:
    """The arguments with an empty folder or an unreadable file over each hidden path, right after the mount."""
    result: list[str] = []
    own_uid = os.geteuid() == 0 and not view.writable
    for index, word in enumerate(argv):
        result.append(word)
        if index < 2 or argv[index - 2] not in _BINDS:
            continue
        for cover in covers(Path(argv[index - 1]), word, view.hidden, enterable=own_uid):
            if cover.folder:
                result += ["--perms", "0555", "--size", str(_MB), "--tmpfs", cover.target]
                result += ["--remount-ro", cover.target]
            else:
                result += ["--ro-bind", os.devnull, cover.target]
    return result


def _host_files(etc: Mapping[str, int]) -> list[str]:
    """/usr, and the top-level directories, which are links into it or, on older systems, real directories."""
    argv = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        argv += _bind_or_link(Path("/", name), name)
    for name, fd in etc.items():
        argv += ["--ro-bind-data", str(fd), f"/etc/{name}"]
    for name in _HOST_ETC:
        argv += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return argv


def _image_files(image: Path, etc: Mapping[str, int], *, writable: bool) -> list[str]:
    if writable:
        return ["--bind", str(image), "/"]
    argv: list[str] = []
    for name in sorted(entry.name for entry in image.iterdir() if entry.name not in _FRESH_DIRECTORIES):
        argv += _bind_or_link(image / name, name)
    for name, fd in etc.items():
        argv += ["--ro-bind-data", str(fd), f"/etc/{name}"]
    return argv


def _amended_etc(image: Path) -> dict[str, str]:
    """The image's passwd and group with the agent added, unless its uid is taken, and our hosts file."""
    amended = {name: _ETC[name] for name in ("hosts",) if _has_etc_file(image, name)}
    for name in ("passwd", "group"):
        if _has_etc_file(image, name):
            lines = (image / "etc" / name).read_text(errors="surrogateescape").splitlines()
            if not any(line.split(":")[2:3] == [str(AGENT_ID)] for line in lines):
                lines += _ETC[name].splitlines()[1:]
                amended[name] = "".join(f"{line}\n" for line in lines)
    return amended


def _has_etc_file(image: Path, name: str) -> bool:
    """Whether the image has that file in /etc. Links do not count: they could lead to a file of the host."""
    etc = image / "etc"
    return not etc.is_symlink() and not (etc / name).is_symlink() and (etc / name).is_file()


def _bind_or_link(path: Path, name: str) -> list[str]:
    if path.is_symlink():
        return ["--symlink", str(path.readlink()), f"/{name}"]
    return ["--ro-bind", str(path), f"/{name}"] if path.exists() else []
