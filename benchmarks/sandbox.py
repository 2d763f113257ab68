"""Sandboxes beside the bare tools, in one run, alternating: starts, commands, and docker's own exec.

Bare bubblewrap: the plain `bwrap --unshare-all … bash` with a persistent shell, all spawned, then one command in each.
Bare nsenter: one `nsenter … bash -c true` a command into such a bwrap. Bare docker: one `docker exec` a command, as the
CLI does it. Docker is a daemon of its own (root, and what scripts/sandbox_parts makes); --no-docker leaves it out.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

import uvloop

from hermes_rl.sandbox.backends.bubblewrap import BubblewrapBackend
from hermes_rl.sandbox.process_tree import children
from hermes_rl.sandbox.protocol import Backend, Sandbox

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

START_GOAL, COMMAND_GOAL, DOCKER_GOAL = 1.3, 1.5, 10.0
BARE = (
    "bwrap --unshare-all --die-with-parent --new-session --cap-drop ALL --ro-bind /usr /usr --symlink usr/bin /bin "
    "--symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp --tmpfs /workspace "
    "--chdir /workspace --clearenv --setenv PATH /usr/bin:/bin bash"
).split()
ENTER = "nsenter -U --preserve-credentials -m -p -n -i -u -t {pid} -- bash -c true"


class BareShell:
    """bwrap with a shell that reads commands from a pipe."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(BARE, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(b"echo hi\n")
        self.process.stdin.flush()

    def answer(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"hi\n"

    def close(self) -> None:
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        self.process.wait()


def bare_starts(count: int) -> float:
    began = time.perf_counter()
    shells = [BareShell() for _ in range(count)]
    for shell in shells:
        shell.ask()
    for shell in shells:
        shell.answer()
    seconds = time.perf_counter() - began
    for shell in shells:
        shell.close()
    return seconds


async def our_starts(backend: Backend, count: int) -> float:
    began = time.perf_counter()
    sandboxes = await asyncio.gather(*(backend.start() for _ in range(count)))
    answers = await asyncio.gather(*(sandbox.exec("echo hi", timeout=60) for sandbox in sandboxes))
    seconds = time.perf_counter() - began
    assert all(answer.stdout == b"hi\n" for answer in answers)
    await backend.close()
    return seconds


def timed(argv: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


async def timed_command(sandbox: Sandbox) -> float:
    began = time.perf_counter()
    assert (await sandbox.exec("true", timeout=60)).exit_code == 0
    return time.perf_counter() - began


async def starts(backend: Backend, count: int, rounds: int) -> dict[str, float]:
    ours, bare = [], []
    for _ in range(rounds):
        bare.append(bare_starts(count))
        ours.append(await our_starts(backend, count))
    return {
        "sandboxes": count,
        "bare_s": round(median(bare), 3),
        "ours_s": round(median(ours), 3),
        "ratio": round(median(one / other for one, other in zip(ours, bare, strict=True)), 3),
    }


async def commands(backend: Backend, rounds: int) -> dict[str, float]:
    shell = BareShell()
    shell.ask()
    shell.answer()
    enter = ENTER.format(pid=children(shell.process.pid)[0]).split()
    ours, bare = [], []
    async with await backend.start() as sandbox:
        for _ in range(rounds):
            bare.append(timed(enter))
            ours.append(await timed_command(sandbox))
    shell.close()
    return _compared(ours, bare)


async def docker_commands(rounds: int) -> dict[str, float]:
    from hermes_rl.sandbox.backends.docker import DockerBackend
    from tests.support.sandbox_parts import IMAGE

    with docker_daemon() as url:
        backend = DockerBackend(url=url, image=IMAGE)
        ours, bare = [], []
        async with await backend.start() as sandbox:
            plain = ["docker", "-H", url, "exec", sandbox.name, "bash", "-c", "true"]
            for _ in range(rounds):
                bare.append(timed(plain))
                ours.append(await timed_command(sandbox))
        await backend.close()
    figures = _compared(ours, bare)
    return {**figures, "times_cheaper": round(figures["bare_ms"] / figures["ours_ms"], 1)}


@contextmanager
def docker_daemon() -> Iterator[str]:
    from tests.support.sandbox_parts import DockerDaemon, find_parts

    with ExitStack() as opened:
        yield opened.enter_context(DockerDaemon(find_parts().image)).url


def _compared(ours: list[float], bare: list[float]) -> dict[str, float]:
    return {
        "commands": len(ours),
        "bare_ms": round(median(bare) * 1000, 2),
        "ours_ms": round(median(ours) * 1000, 2),
        "ratio": round(median(ours) / median(bare), 3),
    }


async def measure(quick: bool, docker: bool) -> dict[str, object]:
    backend = BubblewrapBackend()
    figures: dict[str, dict[str, float]] = {
        "bubblewrap_starts": await starts(backend, 200, 1 if quick else 5),
        "bubblewrap_commands": await commands(backend, 100 if quick else 500),
    }
    goals = {
        "start of 200, against bare bwrap": _at_most(START_GOAL, figures["bubblewrap_starts"]["ratio"]),
        "command in a live one, against bare nsenter": _at_most(COMMAND_GOAL, figures["bubblewrap_commands"]["ratio"]),
    }
    if docker:
        figures["docker_commands"] = await docker_commands(20 if quick else 100)
        cheaper = figures["docker_commands"]["times_cheaper"]
        goals["docker command, times cheaper than docker exec"] = {
            "goal": f">= {DOCKER_GOAL}",
            "measured": cheaper,
            "met": cheaper >= DOCKER_GOAL,
        }
    return {"benchmark": "sandbox", "figures": figures, "goals": goals}


def _at_most(goal: float, measured: float) -> dict[str, object]:
    return {"goal": f"<= {goal}", "measured": measured, "met": measured <= goal}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round; within 60 seconds")
    parser.add_argument("--no-docker", action="store_true", help="leave the docker part out")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        result = runner.run(measure(arguments.quick, not arguments.no_docker))
    goals = result["goals"]
    assert isinstance(goals, dict)
    for name, goal in goals.items():
        print(f"{'met   ' if goal['met'] else 'MISSED'} {name}: {goal['measured']} (goal {goal['goal']})")
    print(json.dumps(result))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
