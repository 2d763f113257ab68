"""`kill -9` of a whole `hermes-rl process` or `evaluate` at random moments, and its resumption until it is done.

After it nothing is there twice, nothing is missing, no line is torn and no sandbox is left. On the scripted model the
groups are those of an uninterrupted run but for their times; on a real one (`--endpoint`) items and counts are. Every
fourth kill is aimed at a write: it comes when the file begins to grow. Exit status 1 when anything differs.

`python -m tests.chaos.killed_runs --times 50 process` or `evaluate`
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

from hermes_rl.core.trajectory import Group
from hermes_rl.sandbox.reaper import reap
from hermes_rl.store.records import group_to_record, read_groups
from tests.chaos import numbers_env
from tests.sandbox.living import living, nap
from tests.support.scripted_model import ScriptedModel

ENVIRONMENTS = Path(numbers_env.__file__)
PROGRAM = (
    *("--env.agent_command", "exec python3 agent.py"),
    *(
        "--env.agent_files",
        json.dumps({"agent.py": str(ENVIRONMENTS.parents[1] / "rollout/external/small_agent.py")}),
    ),
    *("--env.agent_env", json.dumps({"PROMPT_FILE": "{prompt_file}"})),
    # What the model says at the end has tokens for longer than that.
    *("--env.rollout_deadline", "10000"),
)
VARIANTS = {
    "stream": ("Streamed", ()),
    "program": ("Streamed", PROGRAM),
    "uniform": ("Drawn", ("--env.item_sampler", "uniform")),
    "by_difficulty": ("Drawn", ("--env.item_sampler", "by_difficulty")),
}
AIMED_EVERY = 4
STARTING = 0.15
SANDBOXES_END_WITHIN = 10.0
PATIENCE = 120.0
REAL_GROUPS = 3
METRICS = "evaluation/metrics.json"
MEASURES_OF_TIME = ("eval/seconds", "eval/time_share")
TIMES = ("created_at", "timings", "seconds", "task_id")


@dataclass(frozen=True, slots=True)
class Run:
    """A command that is killed and resumed: the words it starts with, and the file its groups are in."""

    words: Sequence[str]
    groups: str
    expected: int
    same: Callable[[Group], object]
    """What of a group is the same in every run."""


@dataclass(slots=True)
class Count:
    """What the kills did."""

    kills: int = 0
    runs: int = 0
    torn: int = 0
    kept: list[int] = field(default_factory=list)
    too_late: int = 0
    sandboxes_alive: int = 0
    faults: list[str] = field(default_factory=list)


class Killer:
    """Starts one command in folders of its own, kills it, resumes it and compares what it left."""

    def __init__(self, run: Run, mine: str, random: Random) -> None:
        self.run, self.count = run, Count()
        self._mine, self.random = mine, random
        self._whole: dict[Any, Any] = {}
        self._metrics: dict[str, Any] = {}
        self._seconds = self._idle = 0.0

    async def measure(self) -> None:
        """An uninterrupted run: what the others are compared with, how long it takes, and when nothing is missing."""
        with folder() as place:
            self._seconds = await self._to_the_end(place)
            self._idle = await self._to_the_end(place)
            self._whole = contents(place / self.run.groups, self.run)
            self._metrics = metrics(place / METRICS)
            if faults := differences(place / self.run.groups, self._whole, self.run):
                raise SystemExit(f"the uninterrupted run is at fault: {faults}")

    async def kill_and_resume(self, kills: int) -> None:
        """One file: this many kills, or as many as come before it is done; then to the end."""
        with folder() as place:
            for _ in range(kills):
                if not await self._kill_once(place):
                    break
            await self._to_the_end(place)
            self.count.runs += 1
            self.count.faults += differences(place / self.run.groups, self._whole, self.run)
            if self.run.same is all_but_times:
                now, before = metrics(place / METRICS), self._metrics
                changed = {name: (before.get(name), now.get(name)) for name in {*before, *now}}
                self.count.faults += [
                    f"{name} of metrics.json: {a}, then {b}" for name, (a, b) in changed.items() if a != b
                ]
            self.count.faults += await self._left_behind()
            # What the run reaps when it starts, a short run may leave half done.
            await reap(place / "home" / "rl" / "sandboxes")
            if left := [*place.glob("hermes-rl-*"), *place.glob("home/rl/sandboxes/*")]:
                self.count.faults.append(f"left behind: {left}")

    async def _kill_once(self, place: Path) -> bool:
        """False when the run was done before the moment came."""
        path = place / self.run.groups
        process = await self._start(place)
        ended = asyncio.create_task(process.wait())
        if (self.count.kills + 1) % AIMED_EVERY == 0:
            await asyncio.to_thread(kill_when_it_grows, process.pid, path, ended.done)
        else:
            await self._moment(place, ended)
            self.count.sandboxes_alive += len(living(self._mine))
            if not ended.done():
                process.kill()
        if await ended != -signal.SIGKILL:
            self.count.too_late += 1
            return False
        self.count.kills += 1
        self.count.torn += torn(path)
        self.count.kept.append(whole_groups(path))
        self.count.faults += await self._left_behind()
        return True

    async def _moment(self, place: Path, ended: asyncio.Task[int]) -> None:
        """A random one: of the run's start now and then, else of the time that the missing groups should take."""
        missing = 1 - whole_groups(place / self.run.groups) / self.run.expected
        longest = missing * (self._seconds - self._idle)
        if self.random.random() < STARTING:
            longest = self._idle
        else:
            while not ended.done() and not (place / "stderr").stat().st_size:
                await asyncio.sleep(0.01)
        await asyncio.wait([ended], timeout=self.random.uniform(0, longest))

    async def _to_the_end(self, place: Path) -> float:
        """Run it, and the seconds it took."""
        began = time.monotonic()
        process = await self._start(place)
        try:
            async with asyncio.timeout(PATIENCE):
                code = await process.wait()
        except TimeoutError:
            process.kill()
            code = await process.wait()
        if code != 0:
            self.count.faults.append(f"exit status {code}: {(place / 'stderr').read_text()[-2000:]}")
        return time.monotonic() - began

    async def _start(self, place: Path) -> asyncio.subprocess.Process:
        with (place / "stderr").open("wb") as said:
            return await asyncio.create_subprocess_exec(
                sys.executable, "-m", "hermes_rl", *self.run.words, "--resume",
                cwd=place, stdout=asyncio.subprocess.DEVNULL, stderr=said, start_new_session=True,
                env={**os.environ, "PYTHONPATH": str(ENVIRONMENTS.parents[2]), "HERMES_HOME": str(place / "home"),
                     "TMPDIR": str(place)},
            )  # fmt: skip

    async def _left_behind(self) -> list[str]:
        """Sandboxes end by themselves when their owner is dead; those that live longer are told."""
        until = time.monotonic() + SANDBOXES_END_WITHIN
        while (left := living(self._mine)) and time.monotonic() < until:
            await asyncio.sleep(0.05)
        return [f"{len(left)} processes of sandboxes live {SANDBOXES_END_WITHIN:g} s after their owner"] if left else []


def kill_when_it_grows(pid: int, path: Path, ended: Any) -> None:
    """Kill a process in the middle of a write, as nearly as another process can."""
    before = path.stat().st_size if path.exists() else 0
    while not ended():
        with contextlib.suppress(FileNotFoundError):
            if os.stat(path).st_size > before:  # noqa: PTH116 (each microsecond counts)
                break
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def whole_groups(path: Path) -> int:
    return sum(1 for _ in read_groups(path)) if path.exists() else 0


def torn(path: Path) -> bool:
    data = path.read_bytes() if path.exists() else b""
    return bool(data) and not data.endswith(b"\n")


def contents(path: Path, run: Run) -> dict[Any, Any]:
    """What of a file of groups is the same in every run, by place."""
    return {place_of(group): run.same(group) for group in read_groups(path)}


def place_of(group: Group) -> tuple[str, int, str]:
    return group.split, group.draw, group.item_id if group.split == "eval" else ""


def size(group: Group) -> int:
    return len(group.rollouts)


def item_and_size(group: Group) -> tuple[str, str, int]:
    return group.item_id, group.id, len(group.rollouts)


def all_but_times(group: Group) -> str:
    """The record without times, its tool calls named in the order they come: an endpoint numbers them as it likes."""
    names: dict[str, str] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(part) for key, part in value.items() if key not in TIMES}
        if isinstance(value, list | tuple):
            return [plain(part) for part in value]
        if isinstance(value, str) and value.startswith("call_"):
            return names.setdefault(value, f"call {len(names)}")
        return value

    return json.dumps(plain(group_to_record(group)), sort_keys=True)


def differences(path: Path, whole: dict[Any, Any], run: Run) -> list[str]:
    if torn(path):
        return ["the last line is torn"]
    groups = list(read_groups(path))
    seen = Counter(map(place_of, groups)) + Counter(group.id for group in groups)
    found = [f"{place} is there {count} times" for place, count in seen.items() if count > 1]
    if len(groups) != run.expected:
        found.append(f"{len(groups)} groups, not {run.expected}")
    now = contents(path, run)
    found += [f"{place} is missing" for place in whole if place not in now]
    found += [f"{place} is of no uninterrupted run" for place in now if place not in whole]
    return found + [f"{place} differs" for place in whole if place in now and now[place] != whole[place]]


def metrics(path: Path) -> dict[str, Any]:
    """What an evaluation measured, but for times; nothing for a `process`."""
    if not path.exists():
        return {}
    report = json.loads(path.read_text())
    measured = {name: value for name, value in report["metrics"].items() if not name.startswith(MEASURES_OF_TIME)}
    return {
        **measured,
        "items": report["items"],
        "samples": len((path.parent / "samples.jsonl").read_bytes().split(b"\n")),
    }


@contextmanager
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="killed-runs-") as name:
        yield Path(name)


def scripted_run(mode: str, variant: str, endpoint: str) -> Run:
    name, flags = VARIANTS[variant]
    words = [mode, f"{ENVIRONMENTS}:{name}", *endpoint_flags(endpoint, "scripted"), *flags, "--env.group_size", "2"]
    same = size if variant == "by_difficulty" else all_but_times
    return _with_output(mode, words, numbers_env.ITEMS, same, "--env.max_num_workers", "3")


def real_run(mode: str, endpoint: str, model: str) -> Run:
    """A few short rollouts of terminal_test: as small as a run with something to kill can be."""
    words = [mode, "terminal_test", *endpoint_flags(endpoint, model), "--env.group_size", "2"]
    words += ["--env.max_token_length", "12"]
    return _with_output(mode, words, REAL_GROUPS, item_and_size, "--env.max_num_workers", "2")


def endpoint_flags(endpoint: str, model: str) -> list[str]:
    return ["--openai.base_url", endpoint, "--openai.model_name", model]


def _with_output(mode: str, words: list[str], groups: int, same: Callable[[Group], object], *flags: str) -> Run:
    if mode == "process":
        more = ["--env.total_steps", str(groups), "--env.data_path_to_save_groups", "groups.jsonl", *flags]
        return Run([*words, *more], "groups.jsonl", groups, same)
    more = ["--env.eval_size", str(groups), "--env.data_dir_to_save_evals", "evaluation", "--env.max_eval_workers", "4"]
    more += ["--env.eval_samples", "2"]
    return Run([*words, *more], "evaluation/groups.jsonl", groups, same)


@asynccontextmanager
async def scripted(mode: str, variant: str, delay: float, random: Random) -> AsyncIterator[Killer]:
    mine = nap()
    async with ScriptedModel(numbers_env.writes_a_number(delay, mine), keep_bodies=0) as model:
        yield Killer(scripted_run(mode, variant, model.base_url), mine, random)


async def kill_often(killer: Killer, times: int) -> Count:
    """`times` kills, one to three in the life of a file, each at a random moment of an uninterrupted run's length."""
    await killer.measure()
    while killer.count.kills < times:
        await killer.kill_and_resume(min(killer.random.randint(1, 3), times - killer.count.kills))
        print(f"{killer.count.kills} of {times} kills, {len(killer.count.faults)} faults", file=sys.stderr, flush=True)
    return killer.count


def told(what: str, count: Count, seconds: float) -> dict[str, Any]:
    return {
        "what": what,
        "kills": count.kills,
        "files": count.runs,
        "torn_lines_left_by_a_kill": count.torn,
        "groups_kept_at_the_kills": count.kept,
        "moments_after_the_end": count.too_late,
        "sandbox_processes_alive_at_the_kills": count.sandboxes_alive,
        "seconds": round(seconds, 1),
        "faults": count.faults,
    }


async def main(arguments: argparse.Namespace) -> int:
    clean = True
    share = -(-arguments.times // len(arguments.variant))
    async with AsyncExitStack() as stack:
        killers: dict[str, Killer] = {}
        if arguments.endpoint:
            run = real_run(arguments.mode, arguments.endpoint, arguments.model)
            killers[arguments.model], share = Killer(run, nap(), Random(arguments.seed)), arguments.times
        else:
            for variant in arguments.variant if arguments.mode == "process" else ["stream"]:
                random = Random(f"{arguments.seed}/{variant}")
                killers[variant] = await stack.enter_async_context(
                    scripted(arguments.mode, variant, arguments.delay, random)
                )
        for name, killer in killers.items():
            began = time.monotonic()
            count = await kill_often(killer, share if arguments.mode == "process" else arguments.times)
            print(json.dumps(told(f"{arguments.mode}, {name}", count, time.monotonic() - began)), flush=True)
            clean = clean and not count.faults
    return 0 if clean else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["process", "evaluate"])
    parser.add_argument("--times", type=int, default=50, help="kills in all, shared by the variants")
    parser.add_argument("--variant", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), help="sources of items")
    parser.add_argument("--delay", type=float, default=0.3, help="seconds of each answer of the scripted model")
    parser.add_argument("--endpoint", help="a real model instead: its base URL, as scripts/small_model.py prints it")
    parser.add_argument("--model", default="smollm2", help="its name there")
    parser.add_argument("--seed", type=int, default=0)
    sys.exit(asyncio.run(main(parser.parse_args())))
