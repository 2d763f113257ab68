"""The seccomp filter: its numbers, its verdicts on both architectures, and what it refuses in a real sandbox."""

import errno
import json
import os
import re
import shutil
import struct
from pathlib import Path

import pytest

from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.seccomp import ARCHITECTURES, NEWEST, compile_filter

HEADERS = {
    "x86_64": (Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"), r"#define __NR_(\w+)\s+(\d+)"),
    # aarch64 has the generic table.
    "aarch64": (Path("/usr/include/asm-generic/unistd.h"), r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
}
ALLOWED, REFUSED, UNKNOWN = 0x7FFF0000, 0x00050000 | errno.EPERM, 0x00050000 | errno.ENOSYS
NEW_USER, NEW_NETWORK, THREAD = 0x10000000, 0x40000000, 0x3D0F00


def verdict(machine: str, number: int, *arguments: int, audit: int | None = None) -> int:
    """What the kernel would make of a call: the program, interpreted."""
    audit = ARCHITECTURES[machine].audit if audit is None else audit
    data = struct.pack("=IIQ6Q", number, audit, 0, *(*arguments, *[0] * 6)[:6])
    program = list(struct.iter_unpack("=HBBI", compile_filter(machine)))
    at = accumulator = 0
    while True:
        operation, yes, no, value = program[at]
        at += 1
        if operation == 0x06:
            return int(value)
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
            continue
        tests = {
            0x15: accumulator == value,
            0x25: accumulator > value,
            0x35: accumulator >= value,
            0x45: bool(accumulator & value),
        }
        at += yes if tests[operation] else no


def numbers(machine: str) -> dict[str, int]:
    """The calls of the kernel headers on this machine; none if they are not installed."""
    file, pattern = HEADERS[machine]
    if not file.exists():
        return {}
    return {name: int(number) for name, number in re.findall(pattern, file.read_text())}


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_the_numbers_are_those_of_the_kernel_headers(machine: str) -> None:
    ours = ARCHITECTURES[machine].refused | ARCHITECTURES[machine].checked
    known = numbers(machine)
    assert ours.items() <= known.items() or not known
    # A name that the table says does not exist on this architecture.
    others = {name for each in ARCHITECTURES.values() for name in each.refused}
    assert not (others - set(ours)) & set(known)


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_every_call_of_the_headers_has_the_verdict_of_the_table(machine: str) -> None:
    refused = {*ARCHITECTURES[machine].refused.values()}
    by_value = {*ARCHITECTURES[machine].checked.values()}
    for number in {*numbers(machine).values()} - by_value:
        assert verdict(machine, number) == (REFUSED if number in refused else ALLOWED), number


@pytest.mark.parametrize("machine", ARCHITECTURES)
@pytest.mark.parametrize(
    ("name", "arguments", "expected"),
    [
        ("clone", (THREAD,), ALLOWED),
        ("clone", (THREAD | NEW_USER,), REFUSED),
        ("clone", (17 | NEW_NETWORK,), REFUSED),
        ("clone3", (), UNKNOWN),
        ("unshare", (0x400,), ALLOWED),
        ("unshare", (NEW_USER,), REFUSED),
        ("unshare", (0x80,), REFUSED),
        ("ioctl", (0, 0x5401), ALLOWED),
        ("ioctl", (0, 0x5412), REFUSED),
        # The kernel looks at the lower half only, so a high bit must not get past the filter.
        ("ioctl", (0, 1 << 32 | 0x5412), REFUSED),
        ("ioctl", (0, 0x541C), REFUSED),
        ("ptrace", (0,), ALLOWED),
        ("ptrace", (16,), REFUSED),
        ("ptrace", (0x4206,), REFUSED),
        ("socket", (2,), ALLOWED),
        ("socket", (16,), ALLOWED),
        ("socket", (38,), REFUSED),
        ("socket", (40,), REFUSED),
        ("personality", (0xFFFFFFFF,), ALLOWED),
        ("personality", (0x0040000,), REFUSED),
    ],
)
def test_calls_are_refused_by_their_arguments(
    machine: str, name: str, arguments: tuple[int, ...], expected: int
) -> None:
    assert verdict(machine, ARCHITECTURES[machine].checked[name], *arguments) == expected


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_other_architectures_and_newer_calls_do_not_exist(machine: str) -> None:
    other = next(each.audit for name, each in ARCHITECTURES.items() if name != machine)
    assert verdict(machine, 0, audit=other) == UNKNOWN
    assert verdict(machine, 0, audit=0x40000003) == UNKNOWN, "32-bit x86"
    assert verdict(machine, 0x40000000) == UNKNOWN, "x32"
    assert verdict(machine, NEWEST) == ALLOWED
    assert verdict(machine, NEWEST + 1) == UNKNOWN


# Each call with arguments that would fail in another way, or do nothing, if it were let through.
CALL_ALL = """
import ctypes, errno, json, sys
libc = ctypes.CDLL(None, use_errno=True)
failed = {}
for name, (number, *arguments) in json.load(sys.stdin).items():
    ctypes.set_errno(0)
    result = libc.syscall(ctypes.c_long(number), *map(ctypes.c_long, (arguments + [-1] * 6)[:6]))
    failed[name] = errno.errorcode[ctypes.get_errno()] if result == -1 else "done"
json.dump(failed, sys.stdout)
"""


async def call_all(jail: Sandbox, calls: dict[str, list[int]]) -> dict[str, str]:
    await jail.write("call.py", CALL_ALL.encode())
    ran = await jail.exec("/usr/bin/python3 call.py", stdin=json.dumps(calls).encode(), timeout=60)
    assert ran.exit_code == 0, ran.stderr.decode()
    named: dict[str, str] = json.loads(ran.stdout)
    return named


async def test_every_refused_call_is_refused_in_the_sandbox(jail: Sandbox) -> None:
    calls = {name: [number] for name, number in ARCHITECTURES[os.uname().machine].refused.items()}
    assert await call_all(jail, calls) == dict.fromkeys(calls, "EPERM")


async def test_calls_are_refused_by_their_arguments_in_the_sandbox(jail: Sandbox) -> None:
    number = ARCHITECTURES[os.uname().machine].checked
    calls = {
        "new user namespace": [number["unshare"], NEW_USER],
        "new time namespace": [number["unshare"], 0x80],
        "clone into a new network": [number["clone"], 17 | NEW_NETWORK, 0, 0, 0, 0],
        "input to a terminal": [number["ioctl"], 0, 0x5412, 0],
        "attach": [number["ptrace"], 16, 1, 0, 0],
        "seize": [number["ptrace"], 0x4206, 1, 0, 0],
        "vsock": [number["socket"], 40, 1, 0],
        "kernel crypto": [number["socket"], 38, 5, 0],
    }
    assert await call_all(jail, calls) == dict.fromkeys(calls, "EPERM")
    unknown = {"clone3": [number["clone3"], 0, 0], "x32": [0x40000000], "newer": [NEWEST + 1]}
    assert await call_all(jail, unknown) == dict.fromkeys(unknown, "ENOSYS")
    allowed = {"no new namespace": [number["unshare"], 0x400], "query": [number["personality"], 0xFFFFFFFF]}
    assert await call_all(jail, allowed) == dict.fromkeys(allowed, "done")


C_PROGRAM = "printf '#include <stdio.h>\\nint main() { puts(\"42\"); }' > a.c"
PROGRAMS = [
    'python3 -c \'import subprocess; subprocess.run(["echo", "42"], check=True)\'',
    "python3 -c 'import threading; threading.Thread(target=print, args=[42]).start()'",
    "python3 -c 'import multiprocessing as m; m.Process(target=print, args=[42]).start()'",
    "python3 -c 'import socket; s = socket.create_server((\"127.0.0.1\", 0)); print(42)'",
    "python3 -m venv --without-pip v && v/bin/python -c 'print(42)'",
    "python3 -m pip --version && echo 42",
    f"{C_PROGRAM} && gcc -O2 a.c -o a && ./a",
    f"{C_PROGRAM} && gcc -g a.c -o a && gdb -q -batch -ex 'break main' -ex run -ex continue ./a",
    'node -e \'require("fs").promises.readFile("/etc/passwd").then(() => console.log(42))\'',
    # With threads and a compiler of its own. Debian's needs /etc/java for more, which the sandbox does not show.
    "java -Xcomp -XshowSettings:vm -version && echo 42",
    "perl -e 'print 6 * 7'",
    "git init -q r && cd r && git -c user.name=a -c user.email=b commit -q --allow-empty -m 42 && git log -1",
    "tar -cf t.tar -C /etc passwd && tar -tf t.tar && echo 42",
]
# Which of them a machine has: bash, perl and python are everywhere.
PRESENT = [
    program
    for program in PROGRAMS
    if all(shutil.which(name) for name in ("gcc", "gdb", "node", "java", "git") if f"{name} " in program)
]


@pytest.mark.parametrize("program", PRESENT)
async def test_programs_work_under_the_filter(jail: Sandbox, program: str) -> None:
    ran = await jail.exec(program, timeout=120)
    assert "42" in ran.stdout.decode(), ran.stderr.decode()


async def test_a_policy_cannot_take_the_filter_off(jail: Sandbox) -> None:
    status = (await jail.exec("cat /proc/self/status", timeout=10)).stdout.decode()
    assert re.search(r"^Seccomp:\s+2$", status, re.MULTILINE)
    assert re.search(r"^NoNewPrivs:\s+1$", status, re.MULTILINE)
