"""How bwrap is started and entered: the tools, the argument lists, the user, the few files of /etc.

Two user namespaces are nested. The outer one, where the bwrap process stays, owns the others and maps our uid to root,
as a terminal device needs. The inner one maps it to `agent` and takes the only user namespace that may be made there.
A command enters the outer one, the rest, then the inner one; becoming a uid that is not root drops every capability.
"""

import random
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from hermes_rl.errors import SandboxError
from hermes_rl.sandbox import commands
from hermes_rl.sandbox.protocol import WORKSPACE

_UID = 1000
# bash as the first process: no signal from inside reaches it, it reaps whoever lost its parent, a line on its stdin
# kills everyone else at one stroke (which even a fork bomb does not survive), and the end of its stdin ends it.
# That end is how it learns of our death. Not by bwrap's --die-with-parent or --info-fd: a bwrap that dies while it
# starts, by that signal or for want of a reader, leaves a child that waits for it for ever (measured, 0.8.0).
INIT = "echo ready; exec >/dev/null 2>&1; while read -r _; do kill -9 -1; done"
READY = b"ready\n"
OUTER = 'echo 1 > /proc/sys/user/max_user_namespaces && exec "$@"'
_ETC = {
    "passwd": f"root:x:0:0:root:/root:/bin/sh\nagent:x:{_UID}:{_UID}:agent:{WORKSPACE}:/bin/bash\n",
    "group": f"root:x:0:\nagent:x:{_UID}:\n",
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


@dataclass(frozen=True, slots=True)
class Tools:
    bwrap: str
    nsenter: str
    setpriv: str
    unshare: str
    bash: str
    sh: str

    @classmethod
    def find(cls) -> Self:
        names = ("bwrap", "nsenter", "setpriv", "unshare", "bash", "sh")
        found = {name: shutil.which(name, path=commands.PATH) for name in names}
        missing = [name for name, path in found.items() if path is None]
        if missing:
            raise SandboxError(
                "start",
                f"the bubblewrap backend needs {', '.join(missing)}: "
                "install the packages bubblewrap, util-linux and bash (apt-get install bubblewrap util-linux bash)",
            )
        return cls(**{name: path for name, path in found.items() if path is not None})


def start_argv(tools: Tools, owner: int | None, workspace: Path, etc: Path) -> list[str]:
    """The command that makes the namespaces and stays outside as their owner."""
    outer = [tools.unshare, "--user", "--map-root-user", "--", tools.sh, "-c", OUTER, "sh"]
    namespaces = "--unshare-ipc --unshare-pid --unshare-net --unshare-uts --unshare-cgroup-try".split()
    # CAP_SETFCAP: without it Linux 5.12 and later refuse to map root of the outer namespace into the inner one.
    life = "--new-session --cap-drop ALL --cap-add CAP_SETFCAP --as-pid-1".split()
    # Entering runs nsenter from inside with capabilities, so nothing that its loader reads may be writable.
    files = ["--remount-ro", "/", "--bind", str(workspace), WORKSPACE, "--chdir", WORKSPACE]
    system = [*_system_files(), "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]  # noqa: S108 - a path inside
    for name in _ETC:
        system += ["--ro-bind", str(etc / name), f"/etc/{name}"]
    for name in _ETC_OF_HOST:
        system += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    system += ["--dir", WORKSPACE, "--clearenv", "--hostname", "sandbox"]
    for name, value in commands.base_environment(WORKSPACE).items():
        system += ["--setenv", name, value]
    inner = [tools.unshare, "--user", f"--map-user={_UID}", f"--map-group={_UID}", "--keep-caps", "--"]
    # The capabilities that it keeps reach over nothing, but the policy, which has none, cannot trace it.
    init = [tools.setpriv, "--pdeathsig", "KILL", tools.bash, "-c", INIT]
    return [*_as_owner(tools, owner), *outer, tools.bwrap, *namespaces, *life, *system, *files, "--", *inner, *init]


def enter_argv(tools: Tools, owner: int | None, outer: int, first: int) -> list[str]:
    """What stands before a command: into the outer namespaces, then into the inner one."""
    user = f"--user=/proc/{outer}/ns/user"
    into = [
        tools.nsenter,
        f"--target={first}",
        user,
        "--preserve-credentials",
        *"-m -p -n -i -u".split(),
    ]
    inner = [tools.nsenter, "--target=1", "--user", "--preserve-credentials"]
    return [*_as_owner(tools, owner), *into, "--", *inner, "--"]


def write_etc(parent: Path) -> Path:
    """The few files of /etc that differ from the host's, written once for all sandboxes."""
    directory = parent / "etc"
    if not directory.exists():
        directory.mkdir(mode=0o755)
        for name, text in _ETC.items():
            (directory / name).write_text(text)
            (directory / name).chmod(0o644)
        directory.chmod(0o755)
    return directory


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


def why_not(said: str) -> str:
    reason = said or "it ended without a message"
    message = f"a bubblewrap sandbox could not start: {reason}."
    if "unshare" in reason or "uid_map" in reason or "max_user_namespaces" in reason or "new namespace" in reason:
        message += (
            " User namespaces seem to be forbidden here: as root set sysctl user.max_user_namespaces=10000 and, where "
            "they exist, kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0."
        )
    elif "source path" in reason:
        message += " Each sandbox has a user of its own, who must be able to enter the temporary directory: set TMPDIR."
    return message


def _as_owner(tools: Tools, owner: int | None) -> list[str]:
    account = [] if owner is None else [f"--reuid={owner}", f"--regid={owner}", "--clear-groups"]
    return [tools.setpriv, *account, "--no-new-privs"]


def _system_files() -> list[str]:
    """/usr as it is, and the top-level directories that are links into it or, on older systems, real ones."""
    argv = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        path = Path("/", name)
        if path.is_symlink():
            argv += ["--symlink", str(path.readlink()), str(path)]
        elif path.is_dir():
            argv += ["--ro-bind", str(path), str(path)]
    return argv
