"""Forks of recorded rollouts: is the sandbox what it was at the turn, and what does it cost to get there?

    python benchmarks/fork.py --quick                  40 forks, in a temporary folder
    python benchmarks/fork.py --folder runs/fork       1,000 forks on two processes; the same command continues it
    python benchmarks/fork.py --folder runs/fork --cost      forks at turn 20 compared with their commands' own time
    python benchmarks/fork.py --folder runs/fork --summary   print the figures of a folder

A scripted policy plays the bundled environments with a terminal, file tools and Python. Each time it is asked for an
answer it first takes a hash of the sandbox's files, so a rollout has one for each turn, and a fork has one for the
moment in which the model goes on. Every tenth rollout contains a command whose outcome changes. Nothing is scored.
Always true: a group is forked as it was read from a file of records, and a fork that was refused or differs is counted.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from random import Random
from statistics import median
from typing import Any, Self, cast

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from hermes_rl import HermesAgentBaseEnv  # noqa: E402
from hermes_rl.core.observation import observing  # noqa: E402
from hermes_rl.core.trajectory import Group, Rollout, Span  # noqa: E402
from hermes_rl.environment.loading.loader import load_environment  # noqa: E402
from hermes_rl.environment.prebuild import NO_MODEL  # noqa: E402
from hermes_rl.environment.scripted_policy import EnvironmentWithPolicy, ScriptedPolicy, Step, ToolStep  # noqa: E402
from hermes_rl.evaluation.fork import Fork, fork_rollout  # noqa: E402
from hermes_rl.rollout.environment_protocol import Environment  # noqa: E402
from hermes_rl.rollout.group import plan_group, run_groups  # noqa: E402
from hermes_rl.rollout.rebuild import past_turns, rebuild  # noqa: E402
from hermes_rl.rollout.replay import fresh_session  # noqa: E402
from hermes_rl.sandbox.protocol import Sandbox  # noqa: E402
from hermes_rl.store.records import RecordWriter, group_to_record, read_groups  # noqa: E402
from hermes_rl.tools.session import ToolSession  # noqa: E402

ENVIRONMENTS = ("terminal_test", "append_log", "terminal_words", "gsm8k", "swe")
TOOLSETS = ["terminal", "file", "code_execution"]
MAX_TURNS = 12
COST_TURN, COST_GOAL = 20, 1.5
NOTES = ("notes.md", "src/main.py", "data/rows.csv", "out/a.txt", "out/b.txt")
WORDS = "red green blue black white amber coral ivory".split()

# Names, modes (with the kind) and link targets of everything, and the bytes of every file. A .pyc begins with the time
# of its source, which is left out; so are times of change, which a replay cannot repeat. One process, as it runs often.
HASH = r"""exec perl -MDigest::SHA -MFile::Find -e '
my $sha = Digest::SHA->new(256);
find({no_chdir => 1, preprocess => sub { sort @_ }, wanted => sub {
    my $mode = (lstat)[2];
    $sha->add(sprintf("%s\0%o\0%s\0", $_, $mode, -l _ ? readlink : ""));
    return unless -f _;
    open(my $file, "<:raw", $_) or return $sha->add("unreadable");
    read($file, my $head, 16) if /\.pyc$/;
    $sha->addfile($file);
}}, "/workspace", "/tmp");
print $sha->hexdigest' """
SAVE = "tar -C / -cf - workspace tmp"
RESTORE = "tar -C / -xpf - --no-overwrite-dir --no-same-owner"

# Commands whose outcome changes, and whether a result shows it. /proc/self has a pid of the sandbox's own namespace.
CHANGING: dict[str, Step] = {
    "time": ("terminal", {"command": "date +%s%N | tee stamp"}),
    "random": ("execute_code", {"code": "import os; print(os.urandom(8).hex())"}),
    "pid": ("terminal", {"command": "echo $$ | tee pid"}),
    "time, declared as noise": ("terminal", {"command": "date +%s%N"}),
    "time, written and not shown": ("terminal", {"command": "date +%s%N > stamp"}),
    "two calls of one turn on one file": [
        ("terminal", {"command": "cp race.txt copy.txt; ls *.txt"}),
        ("terminal", {"command": "echo done > race.txt"}),
    ],
}
NOISE = (r"\d{19}",)


def action(rng: Random) -> Step:
    """One tool call that gives the same again in an equal sandbox."""
    path, other, word, number = rng.choice(NOTES), rng.choice(NOTES), rng.choice(WORDS), rng.randrange(1000)
    python = (
        f"import pathlib, random\nat = pathlib.Path({path!r})\nat.parent.mkdir(parents=True, exist_ok=True)\n"
        f"old = at.read_text() if at.is_file() else ''\nnew = random.Random({number}).randint(0, 10**9)\n"
        "at.write_text(old + f'{new}\\n')\nprint(len(old), new)"
    )
    shell = (
        f"mkdir -p {Path(path).parent} && echo {word} {number} >> {path} && wc -l {path}",
        f"mkdir -p out && seq {number % 50} | sort -r > out/a.txt; tail -n 3 out/a.txt",
        f"sed -i 's/{word}/{word.upper()}/' {path}; grep -c {word.upper()} {path}",
        f"mkdir -p data && cp {path} data/{word}.txt; ls -1 data",
        f"ln -sfn {Path(path).name} link-{word}; chmod 6{number % 7}4 {path}; readlink link-{word}",
        f"tar -cf pack.tar --mtime=@0 {path} 2>/dev/null; rm -f {other}; find . -type f | sort | head -n 20",
        f"cat {path}; exit {number % 3}",
        "for i in 1 2 3; do mkdir -p deep/$i; echo $i > deep/$i/x; done; find deep -type f | sort",
        "test -d repo && cd repo && python3 -m compileall -q . ; ls -R repo 2>/dev/null | sort | head -n 20",
    )
    calls: list[Step] = [("terminal", {"command": command}) for command in shell]
    calls += [
        ("write_file", {"path": path, "content": f"# {word}\n" * (1 + number % 9)}),
        ("patch", {"path": path, "old_string": word, "new_string": word[::-1], "replace_all": True}),
        ("read_file", {"path": path}),
        ("search_files", {"pattern": word, "path": "."}),
        ("execute_code", {"code": python}),
        ("execute_code", {"code": python}),
    ]
    return rng.choice(calls)


def with_another(call: Step) -> Step:
    """The call and one more in the same turn. They run at the same time, so the other must not touch its files."""
    return [cast("ToolStep", call), ("execute_code", {"code": "print(sum(range(100)))"})]


class HashedPolicy(ScriptedPolicy):
    """Plays its steps, and takes the hash of the sandbox's files before each answer."""

    def __init__(self, steps: Sequence[Step], env: HermesAgentBaseEnv, parts: Sequence[object]) -> None:
        super().__init__(steps)
        self._parts = parts
        self.outage = env.server.outage
        self.hashes: list[str] = []
        self.asked_at: list[float] = []

    def session(self) -> Self:
        return self

    async def chat_completion(self, messages: Sequence[Any], **parameters: Any) -> Any:
        self.asked_at.append(time.perf_counter())
        session = next(part for part in self._parts if isinstance(part, ToolSession))
        self.hashes.append(await tree_hash(await session.sandbox()))
        return await super().chat_completion(messages, **parameters)


async def not_scored(*_: Any) -> float:
    """A reward may start a sandbox of its own, which is not what is measured."""
    return 0.0


async def tree_hash(sandbox: Sandbox) -> str:
    done = await sandbox.exec(HASH, timeout=60)
    assert done.exit_code == 0, done
    return done.stdout.decode()[:16]


class Player:
    """The bundled environments, each opened at its first use."""

    def __init__(self, folder: Path, name: str, stack: AsyncExitStack) -> None:
        self.records = folder / f"groups-{name}.jsonl"
        self._stack = stack
        self._open: dict[str, HermesAgentBaseEnv] = {}

    async def environment(self, name: str) -> HermesAgentBaseEnv:
        if name not in self._open:
            kind = load_environment(name)
            changes = {
                "enabled_toolsets": TOOLSETS,
                "max_agent_turns": 2 * COST_TURN,
                "group_size": 1,
                "max_repeated_calls": None,
                "terminal_backend": "bubblewrap",
                "rollout_retries": 0,
                # A command that is stopped has done more or less by then, and its result is the same.
                "terminal_timeout": 300,
            }
            env = kind(kind.env_config_cls(**{**kind.config_init()[0].model_dump(), **changes}), [NO_MODEL])
            # terminal_words allows two turns, whatever the configuration says.
            env.turn_limit = lambda item: 2 * COST_TURN  # type: ignore[method-assign]  # noqa: ARG005 - its name
            await self._stack.enter_async_context(env.opened())
            self._open[name] = env
        return self._open[name]

    async def record(self, name: str, item: Any, steps: Sequence[Step]) -> tuple[Group, list[str]]:
        """The group of one rollout that takes these steps, read from the file it was written to, and its hashes."""
        env = await self.environment(name)
        with observing() as parts:
            policy = HashedPolicy([*steps, "done"], env, parts)
            scripted = cast("Environment", EnvironmentWithPolicy(cast("Environment", env), policy, not_scored))
            (made,) = await run_groups(scripted, plan_group(scripted, item, size=1))
        self.records.unlink(missing_ok=True)
        with RecordWriter(self.records) as writer:
            writer.write(group_to_record(made))
        return next(iter(read_groups(self.records))), policy.hashes

    async def fork(self, name: str, group: Group, turn: int) -> tuple[Rollout, list[str], float]:
        """The fork at this turn, whose model stops at once; its hashes, and the seconds until its model was asked."""
        env = await self.environment(name)
        began = time.perf_counter()
        with observing() as parts:
            policy = HashedPolicy(["I stop."], env, parts)
            scripted = cast("Environment", EnvironmentWithPolicy(cast("Environment", env), policy, not_scored))
            forked = await fork_rollout(scripted, group, Fork(rollout=0, turn=turn))
        asked = policy.asked_at[0] - began if policy.asked_at else 0.0
        return forked.rollouts[0], policy.hashes, asked


async def proof(player: Player, number: int) -> dict[str, Any]:
    """Record rollout `number`, and fork it at a random turn."""
    rng = Random(f"fork/{number}")
    name = ENVIRONMENTS[number % len(ENVIRONMENTS)]
    env = await player.environment(name)
    items = list(env.train_items() or ())
    turns = rng.randint(2, MAX_TURNS)
    turn = rng.randint(2, turns + 1)
    steps: list[Step] = [with_another(action(rng)) if rng.random() < 0.2 else action(rng) for _ in range(turns)]
    kind, planted = "deterministic", None
    if number % 10 == 9:
        kind = list(CHANGING)[number // 10 % len(CHANGING)]
        planted = rng.randint(1, turn - 1)
        steps[planted - 1] = CHANGING[kind]
    env.replay_noise = NOISE if "noise" in kind else ()  # type: ignore[misc]
    group, hashes = await player.record(name, items[number % len(items)], steps)
    recorded = group.rollouts[0]
    row: dict[str, Any] = {"rollout": number, "environment": name, "kind": kind, "turns": turns, "turn": turn}
    row |= {"planted": planted, "calls": sum(use.turn < turn for use in recorded.tool_uses)}
    row["stopped"] = sum("timed out" in use.result for use in recorded.tool_uses)
    if recorded.failure is not None or len(hashes) != turns + 1:
        return {**row, "outcome": "not recorded", "said": str(recorded.failure)}
    forked, found, _ = await player.fork(name, group, turn)
    failure = forked.failure
    if failure is not None:
        named = planted is not None and f"differs: turn {planted}, " in failure.message
        return {**row, "outcome": "refused", "cause": str(failure), "named": named, "said": failure.message[:600]}
    equal = found[0] == hashes[turn - 1]
    return {**row, "outcome": "equal" if equal else "differs"}


class KeptTimings(list[Any]):
    """The timings of a session, which `rebuild` clears once they are there."""

    kept: Sequence[Any] = ()

    def clear(self) -> None:
        self.kept = list(self)
        super().clear()


WORK = "import time\nbegan = time.process_time()\nwhile time.process_time() - began < 0.2: pass"
DUMP = "import json, pathlib\npathlib.Path('n{}').write_text(json.dumps(list(range({}))))"
COST_KINDS = ("shell", "files", "mixed", "python", "tests", "0.2 s of work")


def cost_step(kind: str, rng: Random, at: int) -> Step:
    """Call number `at` of a rollout whose cost is measured."""
    steps: dict[str, Step] = {
        "shell": ("terminal", {"command": f"echo {at} >> lines; wc -l < lines"}),
        "files": ("write_file", {"path": f"notes/{at}.md", "content": f"{rng.random()}\n" * 20}),
        "mixed": action(rng),
        "python": ("execute_code", {"code": DUMP.format(at, at)}),
        "tests": ("terminal", {"command": "cd repo && python3 -m unittest discover 2>&1 | tail -n 1"}),
        "0.2 s of work": ("execute_code", {"code": f"{WORK}\nprint({at})"}),
    }
    return steps[kind]


async def cost(player: Player, kind: str, number: int) -> dict[str, Any]:
    """What a fork at turn 20 takes, what its commands take, and what a copy of the files takes instead."""
    rng = Random(f"cost/{kind}/{number}")
    name = "swe" if kind in ("tests", "mixed") else "terminal_test"
    env = await player.environment(name)
    env.replay_noise = (r"Ran \d+ tests? in [\d.]+s",)  # type: ignore[misc]
    items = list(env.train_items() or ())
    item = items[number % len(items)]
    steps = [cost_step(kind, rng, at) for at in range(COST_TURN)]
    group, hashes = await player.record(name, item, steps)
    recorded = group.rollouts[0]
    forked, found, whole = await player.fork(name, group, COST_TURN)
    assert forked.failure is None, forked.failure
    # The same again in parts: the sandbox, the commands, the rest.
    began = time.perf_counter()
    async with fresh_session(cast("Environment", env), item, recorded.seed) as session:
        sandbox = await session.sandbox()
        started = time.perf_counter()
        timings = session.timings = KeptTimings()
        past = past_turns(recorded, COST_TURN)
        await rebuild(cast("Environment", env), recorded, group.tools, past, session)
        rebuilt = time.perf_counter()
        saved = await sandbox.exec(SAVE, timeout=60, max_output=1 << 30)
        copied = time.perf_counter()
    begin_restore = time.perf_counter()
    async with fresh_session(cast("Environment", env), item, recorded.seed) as session:
        sandbox = await session.sandbox()
        fresh = time.perf_counter()
        unpacked = await sandbox.exec(RESTORE, stdin=saved.stdout, timeout=60)
        restored = time.perf_counter()
        same = unpacked.exit_code == 0 and await tree_hash(sandbox) == hashes[COST_TURN - 1]
    commands = sum(timing.seconds for timing in timings.kept if timing.span is Span.TOOL)
    return {
        "kind": kind,
        "number": number,
        "equal": found[0] == hashes[COST_TURN - 1],
        "fork": whole,
        "sandbox": started - began,
        "replay": rebuilt - started,
        "commands": commands,
        "ratio": (rebuilt - began) / commands,
        "ratio_without_start": (rebuilt - started) / commands,
        "save": copied - rebuilt,
        "restore": restored - fresh,
        "start_to_restore": fresh - begin_restore,
        "copy_equal": same,
        "copy_bytes": len(saved.stdout),
    }


@asynccontextmanager
async def playing(folder: Path, name: str) -> AsyncIterator[Player]:
    async with AsyncExitStack() as stack:
        yield Player(folder, name, stack)


def rows_of(paths: Iterable[Path]) -> Iterator[dict[str, Any]]:
    for path in paths:
        for line in path.read_text().splitlines():
            try:
                yield json.loads(line)
            except ValueError:  # torn by a kill
                continue


async def work(folder: Path, worker: int, workers: int, rollouts: int) -> None:
    path = folder / f"proof-{worker}.jsonl"
    done = {row["rollout"] for row in rows_of(folder.glob("proof-*.jsonl"))}  # noqa: ASYNC240 (before anything runs)
    async with playing(folder, f"proof-{worker}") as player:
        with path.open("a") as file:
            for number in range(worker, rollouts, workers):
                if number not in done:
                    file.write(json.dumps(await proof(player, number)) + "\n")
                    file.flush()


async def work_cost(folder: Path, repeats: int) -> None:
    path = folder / "cost.jsonl"
    done = {(row["kind"], row["number"]) for row in rows_of([path] if path.exists() else [])}
    async with playing(folder, "cost") as player:
        with path.open("a") as file:
            for number in range(repeats):
                for kind in COST_KINDS:
                    if (kind, number) not in done:
                        file.write(json.dumps(await cost(player, kind, number)) + "\n")
                        file.flush()


def summary(folder: Path) -> dict[str, Any]:
    """The figures of a folder."""
    rows = list(rows_of(sorted(folder.glob("proof-*.jsonl"))))
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    environments: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        kinds[row["kind"]][row["outcome"]] += 1
        if row["outcome"] == "refused":
            kinds[row["kind"]]["names the planted turn"] += row["named"]
        if row["kind"] == "deterministic":
            environments[row["environment"]][row["outcome"]] += 1
    plain = [row for row in rows if row["kind"] == "deterministic"]
    costs: dict[str, dict[str, float]] = {}
    path = folder / "cost.jsonl"
    by_kind: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in rows_of([path] if path.exists() else []):
        by_kind[row["kind"]].append(row)
    for kind, found in by_kind.items():
        numbers = [name for name, value in found[0].items() if isinstance(value, float) or name == "copy_bytes"]
        costs[kind] = {"rollouts": len(found), "equal": sum(row["equal"] for row in found)}
        costs[kind] |= {"copies_equal": sum(row["copy_equal"] for row in found)}
        costs[kind] |= {name: round(median(row[name] for row in found), 4) for name in numbers}
    return {
        "benchmark": "fork",
        "rollouts": len(rows),
        "calls_replayed": sum(row["calls"] for row in rows),
        "mean_turn": round(sum(row["turn"] for row in rows) / max(len(rows), 1), 2),
        "kinds": kinds,
        "deterministic_by_environment": environments,
        "cost_at_turn_20": costs,
        "goals": {
            "equal": {"goal": len(plain), "measured": sum(row["outcome"] == "equal" for row in plain)},
            "ratio": {"goal": COST_GOAL, "measured": {kind: found["ratio"] for kind, found in costs.items()}},
        },
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="40 forks, one cost rollout of each kind")
    parser.add_argument("--folder", type=Path, help="keep the results here, and continue them")
    parser.add_argument("--rollouts", type=int, default=1000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=10, help="cost rollouts of each kind")
    parser.add_argument("--cost", action="store_true", help="measure what forks cost, and nothing else")
    parser.add_argument("--summary", action="store_true", help="only print the figures of the folder")
    parser.add_argument("--worker", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        rollouts = 40 if arguments.quick else arguments.rollouts
        if arguments.worker is not None:
            asyncio.run(work(folder, arguments.worker, arguments.workers, rollouts))
            return 0
        if not arguments.summary and not arguments.cost:
            command = [sys.executable, __file__, "--folder", str(folder), "--rollouts", str(rollouts)]
            command += ["--workers", str(arguments.workers)]
            running = [subprocess.Popen([*command, "--worker", str(at)]) for at in range(arguments.workers)]
            codes = [process.wait() for process in running]
            if any(codes):
                return 1
        if arguments.cost or arguments.quick:
            asyncio.run(work_cost(folder, 1 if arguments.quick else arguments.repeats))
        figures = summary(folder)
    print(json.dumps(figures, indent=1))
    equal = figures["goals"]["equal"]
    return 0 if equal["measured"] == equal["goal"] else 1


if __name__ == "__main__":
    sys.exit(main())
