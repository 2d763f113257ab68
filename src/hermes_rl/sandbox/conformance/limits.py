"""What a backend claims to bound: memory, processes, disk, processor. Each is run over, and the sandbox must go on."""

from dataclasses import dataclass
from typing import Any

from hermes_rl.sandbox.conformance.check import Group, Trial, must, run, same, says
from hermes_rl.sandbox.protocol import Sandbox
from hermes_rl.sandbox.spec import Limits

GROUP = Group("limits")

_MB = 1024 * 1024
_MEMORY_MB = 128
_PROCESSES = 40
_DISK_MB = 16
_CPUS = 0.25
_BUSY_TIME = 4


@GROUP.on_backend(claims="memory_mb")
async def memory_is_bounded(trial: Trial) -> None:
    """A command that takes 1 GB under a limit of 128 MB fails, and the sandbox still answers."""
    sandbox = await _limited(trial, memory_mb=_MEMORY_MB)
    await sandbox.write("kept", b"kept")
    # Without a newline `tail` keeps all that it reads.
    result = await run(sandbox, f"head -c {1024 * _MB} /dev/zero | tail -n 1 | wc -c; exit ${{PIPESTATUS[1]}}")
    must(result.exit_code != 0, "1 GB could be taken")
    same("a file of the sandbox afterwards", await sandbox.read("kept"), b"kept")


@GROUP.on_backend(claims="memory_mb")
async def memory_within_the_limit_can_be_had(trial: Trial) -> None:
    """A command that takes 48 MB under a limit of 128 MB succeeds."""
    sandbox = await _limited(trial, memory_mb=_MEMORY_MB)
    await says(sandbox, f"head -c {48 * _MB} /dev/zero | tail -n 1 | wc -c", b"%d\n" % (48 * _MB))


@GROUP.on_backend(claims="processes")
async def processes_are_bounded(trial: Trial) -> None:
    """Of 200 children at most 40 can live under a limit of 40, and after end_processes the sandbox still answers."""
    sandbox = await _limited(trial, processes=_PROCESSES)
    # Each child tells of itself, so that nothing must be started to count them while none can be.
    command = "for i in $(seq 200); do (echo $i >> born; sleep 600) & done; echo all > all"
    await run(sandbox, command, timeout=5, max_output=1000)
    await sandbox.end_processes()
    born = len((await sandbox.read("born")).split())
    must(0 < born <= _PROCESSES, f"{born} children lived at once")
    must((await run(sandbox, "test -e all")).exit_code != 0, "all 200 could be started")


@GROUP.on_backend(claims="disk_mb")
async def disk_is_bounded(trial: Trial) -> None:
    """Filling the workspace or /tmp beyond 16 MB fails for want of space; the sandbox answers, and space comes back."""
    sandbox = await _limited(trial, disk_mb=_DISK_MB)
    for place in (sandbox.workspace, "/tmp"):  # noqa: S108 - inside
        result = await run(sandbox, f"head -c {4 * _DISK_MB * _MB} /dev/zero > fill", cwd=place)
        must(result.exit_code != 0, f"{4 * _DISK_MB} MB could be written to {place}")
        must(b"space" in result.stderr or b"quota" in result.stderr, f"the message was {result.stderr!r}")
        await says(sandbox, "rm fill && echo x > small && cat small", b"x\n", cwd=place)


@GROUP.on_backend(claims="disk_mb")
async def full_disk_is_told_to_write(trial: Trial) -> None:
    """Writing a file that does not fit is an OSError, and the next that fits is written."""
    sandbox = await _limited(trial, disk_mb=_DISK_MB)
    try:
        await sandbox.write("fill", bytes(2 * _DISK_MB * _MB))
    except OSError:
        await run(sandbox, "rm -f fill")
        await sandbox.write("small", b"x")
        return
    must(False, f"{2 * _DISK_MB} MB could be written")


@GROUP.on_backend(claims="disk_mb")
async def disk_within_the_limit_can_be_had(trial: Trial) -> None:
    """10 MB fit into the workspace under a limit of 16 MB."""
    sandbox = await _limited(trial, disk_mb=_DISK_MB)
    await says(sandbox, f"head -c {10 * _MB} /dev/zero > fill && stat -c %s fill", b"%d\n" % (10 * _MB))


@GROUP.on_backend(claims="cpus")
async def processor_is_bounded(trial: Trial) -> None:
    """Under a limit of a quarter of a processor two busy loops get no more than that."""
    limited = await _busy(await _limited(trial, cpus=_CPUS))
    if limited.seconds < _BUSY_TIME * _CPUS * 1.6:
        return
    # Some kernels count the time that a process waits for its share; then what was done must tell.
    free = await _busy(await trial.start())
    must(
        limited.rounds < 0.6 * free.rounds,
        f"two loops of {_BUSY_TIME} s got {limited.seconds:.2f} s of processor time, and did {limited.rounds} rounds "
        f"where {free.rounds} are done without a limit",
    )


@dataclass(frozen=True, slots=True)
class _Work:
    rounds: int
    seconds: float


async def _busy(sandbox: Sandbox) -> _Work:
    loop = f"n=0; end=$((SECONDS + {_BUSY_TIME})); while ((SECONDS < end)); do ((n += 1)); done; echo $n"
    one, other, *times = (await run(sandbox, f"({loop}) & ({loop}) & wait; times")).stdout.decode().split()
    return _Work(int(one) + int(other), sum(map(_seconds, times)))


async def _limited(trial: Trial, **limits: Any) -> Sandbox:
    # Where files are kept in memory, the room for them is added to the limit on memory.
    if "disk_mb" in trial.can.limits:
        limits.setdefault("disk_mb", _DISK_MB)
    return await trial.start(trial.spec(limits=Limits(**limits)))


def _seconds(word: str) -> float:
    """Of bash's `0m1.234s`."""
    minutes, _, rest = word.rstrip("s").partition("m")
    return int(minutes) * 60 + float(rest)
