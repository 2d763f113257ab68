"""Limits that a backend claims: memory, processes, disk, CPU. Each is exceeded, and the sandbox must keep working."""

from dataclasses import dataclass
from typing import Any

from hermes_rl.sandbox.conformance.check import CheckContext, CheckGroup, require, require_equal, require_output, run
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import Limits

GROUP = CheckGroup("limits")

_MB = 1024 * 1024
_MEMORY_MB = 128
_PROCESSES = 40
_DISK_MB = 16
_CPUS = 0.25
_BUSY_TIME = 4


@GROUP.on_backend(claims="memory_mb")
async def memory_is_limited(context: CheckContext) -> None:
    """A command that allocates 1 GB under a limit of 128 MB fails, and the sandbox keeps working."""
    sandbox = await _start_limited(context, memory_mb=_MEMORY_MB)
    await sandbox.write("kept", b"kept")
    # Without a newline `tail` buffers all its input.
    result = await run(sandbox, f"head -c {1024 * _MB} /dev/zero | tail -n 1 | wc -c; exit ${{PIPESTATUS[1]}}")
    require(result.exit_code != 0, "1 GB could be allocated")
    require_equal("a file of the sandbox afterwards", await sandbox.read("kept"), b"kept")


@GROUP.on_backend(claims="memory_mb")
async def memory_within_limit_is_usable(context: CheckContext) -> None:
    """A command that allocates 48 MB under a limit of 128 MB succeeds."""
    sandbox = await _start_limited(context, memory_mb=_MEMORY_MB)
    await require_output(sandbox, f"head -c {48 * _MB} /dev/zero | tail -n 1 | wc -c", b"%d\n" % (48 * _MB))


@GROUP.on_backend(claims="processes")
async def processes_are_limited(context: CheckContext) -> None:
    """Under a limit of 40, at most 40 of 200 children run, and after end_processes the sandbox keeps working."""
    sandbox = await _start_limited(context, processes=_PROCESSES)
    # Each child records itself: no process could be started to count them.
    command = "for i in $(seq 200); do (echo $i >> born; sleep 600) & done; echo all > all"
    await run(sandbox, command, timeout=5, max_output=1000)
    await sandbox.end_processes()
    born = len((await sandbox.read("born")).split())
    require(0 < born <= _PROCESSES, f"{born} children ran at once")
    require((await run(sandbox, "test -e all")).exit_code != 0, "all 200 could be started")


@GROUP.on_backend(claims="disk_mb")
async def disk_is_limited(context: CheckContext) -> None:
    """Writing more than 16 MB to the workspace or /tmp fails with no space left; deleting frees the space."""
    sandbox = await _start_limited(context, disk_mb=_DISK_MB)
    for directory in (sandbox.workspace, "/tmp"):  # noqa: S108 - inside
        result = await run(sandbox, f"head -c {4 * _DISK_MB * _MB} /dev/zero > fill", cwd=directory)
        require(result.exit_code != 0, f"{4 * _DISK_MB} MB could be written to {directory}")
        require(b"space" in result.stderr or b"quota" in result.stderr, f"the message was {result.stderr!r}")
        await require_output(sandbox, "rm fill && echo x > small && cat small", b"x\n", cwd=directory)


@GROUP.on_backend(claims="disk_mb")
async def write_reports_full_disk(context: CheckContext) -> None:
    """Writing a file that does not fit raises OSError; one that fits can be written afterwards."""
    sandbox = await _start_limited(context, disk_mb=_DISK_MB)
    try:
        await sandbox.write("fill", bytes(2 * _DISK_MB * _MB))
    except OSError:
        await run(sandbox, "rm -f fill")
        await sandbox.write("small", b"x")
        return
    require(False, f"{2 * _DISK_MB} MB could be written")


@GROUP.on_backend(claims="disk_mb")
async def disk_within_limit_is_usable(context: CheckContext) -> None:
    """10 MB can be written to the workspace under a limit of 16 MB."""
    sandbox = await _start_limited(context, disk_mb=_DISK_MB)
    await require_output(sandbox, f"head -c {10 * _MB} /dev/zero > fill && stat -c %s fill", b"%d\n" % (10 * _MB))


@GROUP.on_backend(claims="cpus")
async def cpu_is_limited(context: CheckContext) -> None:
    """Under a limit of 0.25 CPUs, two busy loops get no more than that."""
    limited = await _run_busy_loops(await _start_limited(context, cpus=_CPUS))
    if limited.seconds < _BUSY_TIME * _CPUS * 1.6:
        return
    # Some kernels count the time that a throttled process waits; then compare the work done.
    free = await _run_busy_loops(await context.start())
    require(
        limited.rounds < 0.6 * free.rounds,
        f"two loops of {_BUSY_TIME} s got {limited.seconds:.2f} s of CPU time and did {limited.rounds} rounds, "
        f"compared with {free.rounds} without a limit",
    )


@dataclass(frozen=True, slots=True)
class _LoopResult:
    rounds: int
    seconds: float


async def _run_busy_loops(sandbox: Sandbox) -> _LoopResult:
    loop = f"n=0; end=$((SECONDS + {_BUSY_TIME})); while ((SECONDS < end)); do ((n += 1)); done; echo $n"
    one, other, *times = (await run(sandbox, f"({loop}) & ({loop}) & wait; times")).stdout.decode().split()
    return _LoopResult(int(one) + int(other), sum(map(_seconds, times)))


async def _start_limited(context: CheckContext, **limits: Any) -> Sandbox:
    # Backends that keep files in memory add the disk limit to the memory limit.
    if "disk_mb" in context.capabilities.limits:
        limits.setdefault("disk_mb", _DISK_MB)
    return await context.start(context.spec(limits=Limits(**limits)))


def _seconds(word: str) -> float:
    """Parse bash's `0m1.234s`."""
    minutes, _, rest = word.rstrip("s").partition("m")
    return int(minutes) * 60 + float(rest)
