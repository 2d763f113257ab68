"""Importing the package does not assume Linux: it works without what only Linux's Python has."""

import subprocess
import sys

LINUX_ONLY = {
    "os": "pidfd_open memfd_create sched_getaffinity sched_setaffinity eventfd unshare setns splice pipe2 fdatasync "
    "posix_fadvise posix_fallocate copy_file_range getrandom getxattr setxattr setresuid O_PATH O_TMPFILE O_DIRECT",
    "select": "epoll EPOLLIN EPOLLOUT EPOLLERR EPOLLHUP POLLRDHUP",
    "signal": "SIGRTMIN SIGRTMAX SIGPWR SIGPOLL SIGSTKFLT sigtimedwait sigwaitinfo pidfd_send_signal",
    "socket": "AF_VSOCK AF_NETLINK AF_PACKET AF_ALG SO_PEERCRED SO_BINDTODEVICE SOCK_CLOEXEC TCP_USER_TIMEOUT",
    "fcntl": "F_ADD_SEALS F_SETPIPE_SZ F_OFD_SETLK F_SETLEASE",
    "resource": "prlimit RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_SIGPENDING",
    "time": "CLOCK_BOOTTIME CLOCK_TAI",
}
# The libraries are imported first: what they do on another system is theirs.
SCRIPT = """
import aiohttp, click, fastapi, greenlet, orjson, pydantic, rich, uvicorn, uvloop, yaml, zlib
import asyncio, ctypes, importlib, multiprocessing, pkgutil, sysconfig
sysconfig.get_paths()
for module, names in {names!r}.items():
    for name in names.split():
        vars(importlib.import_module(module)).pop(name, None)
import sys
sys.platform = "darwin"
import hermes_rl
for name in hermes_rl.__all__:
    getattr(hermes_rl, name)
for module in pkgutil.walk_packages(hermes_rl.__path__, "hermes_rl."):
    if module.name.split(".")[1] in {packages!r} and not module.name.endswith("__main__"):
        importlib.import_module(module.name)
        print(module.name)
"""
PACKAGES = set("agent cli core environment evaluation inference parsers rewards rollout sandbox".split())


def test_the_core_imports_without_what_only_linux_has() -> None:
    script = SCRIPT.format(names=LINUX_ONLY, packages=PACKAGES)
    command = [sys.executable, "-P", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert {name.split(".")[1] for name in done.stdout.split()} == PACKAGES
