"""Rollouts with a state and without a sandbox, beside rollouts with one: memory of a rollout, and turns a second.

    python benchmarks/stateful.py --quick      64 rollouts of each kind
    python benchmarks/stateful.py              2,000 in flight with a state, 200 in bubblewrap; five turns each
    python benchmarks/stateful.py --write      and puts the results into docs/reports/stateful.md

Each kind is measured in a fresh process, beside the null model in another, as `hermes-rl process` runs it, its records
included. Always true: every rollout of a kind takes the same turns, and one that failed is counted as a miss.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

from benchmarks.in_flight_replica import available_mb  # noqa: E402
from benchmarks.peers.drive import status_kb  # noqa: E402
from benchmarks.peers.measures import pinned  # noqa: E402
from benchmarks.peers.run import machine, now  # noqa: E402
from hermes_rl import (  # noqa: E402
    AgentResult,
    APIServerConfig,
    HermesAgentBaseEnv,
    TextGameEnv,
    ToolContext,
    ToolSession,
    tool,
)
from hermes_rl.console.run_command import run_async  # noqa: E402
from hermes_rl.rollout.generate import generate_groups  # noqa: E402
from hermes_rl.store.records import read_groups  # noqa: E402

PAGE = HERE.parent / "docs" / "reports" / "stateful.md"
BEGIN, END = "<!-- begin of what benchmarks/stateful.py writes -->", "<!-- end -->"
TURNS, WARM = 5, 8
TITLES = {
    "game": "game: plain text, `TextGameEnv`",
    "tools": "tools: one own tool over a state",
    "shell": "shell: the same tool runs `echo` in bubblewrap",
}


@dataclass(frozen=True)
class Level:
    """`delay` is the model's seconds for an answer."""

    kind: str
    in_flight: int
    delay: float
    rollouts: int = 0

    @property
    def name(self) -> str:
        return f"{self.kind}_{self.in_flight}_{self.delay:g}s"


QUICK = tuple(Level(kind, 64, 0.2) for kind in TITLES)
FULL = (
    Level("game", 2_000, 5.0),
    Level("tools", 2_000, 5.0),
    Level("shell", 200, 5.0),
    Level("game", 64, 0.0, 1_000),
    Level("tools", 64, 0.0, 1_000),
    Level("shell", 64, 0.0, 256),
)


class Counting:
    def reset(self, *, seed: int | None = None) -> tuple[str, dict[str, Any]]:
        self.said: list[str] = []
        return f"Say anything, {TURNS} times.", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        self.said.append(action)
        return f"{len(self.said)} said", 1 / TURNS, len(self.said) == TURNS, False, {"said": list(self.said)}


class Game(TextGameEnv):
    game = Counting


@dataclass
class Said:
    texts: list[str] = field(default_factory=list)


class Tools(HermesAgentBaseEnv):
    def train_items(self) -> list[int]:
        return list(range(10_000))

    def initial_state(self, item: int) -> Said:
        return Said()

    def format_prompt(self, item: int) -> str:
        return f"#{item} Say hello four times with the tool, then stop."

    @tool(sandboxed=False)
    async def echo(self, session: ToolSession[Said], text: str) -> str:
        """Say a text."""
        session.state.texts.append(text)
        return text

    async def compute_reward(self, item: int, result: AgentResult, ctx: ToolContext) -> float:
        return float(len(ctx.state.texts) == TURNS - 1)


class Shell(HermesAgentBaseEnv):
    def train_items(self) -> list[int]:
        return list(range(10_000))

    def format_prompt(self, item: int) -> str:
        return f"#{item} Say hello four times with the tool, then stop."

    @tool
    async def echo(self, session: ToolSession, text: str) -> str:
        """Say a text in a sandbox."""
        done = await (await session.sandbox()).exec(f"echo {text}", timeout=60)
        return done.stdout.decode().strip()

    async def compute_reward(self, item: int, result: AgentResult, ctx: ToolContext) -> float:
        return float(len(result.tool_calls) == TURNS - 1 and not result.tool_errors)


KINDS: dict[str, type[HermesAgentBaseEnv]] = {"game": Game, "tools": Tools, "shell": Shell}


def play(url: str, level: Level, folder: Path) -> None:
    """Play a level in this process and print what it cost."""
    environment = KINDS[level.kind]
    # The null model calls a tool until so many results are there; with 1 it answers in plain text each time.
    model = "null-1" if level.kind == "game" else f"null-{TURNS}"

    async def made(rollouts: int, path: Path) -> None:
        config = environment.env_config_cls(
            group_size=1,
            total_steps=rollouts,
            max_num_workers=level.in_flight,
            tool_pool_size=level.in_flight,
            max_live_sandboxes=level.in_flight,
            max_repeated_calls=None,
            terminal_backend="bubblewrap",
            ensure_scores_are_not_same=False,
            use_wandb=False,
        )
        endpoint = APIServerConfig(
            base_url=url, model_name=model, num_max_requests_at_once=level.in_flight, health_check=False
        )
        env = environment(config, [endpoint])
        async with env.opened():
            await generate_groups(env, path)

    run_async(made(WARM, folder / "warm.jsonl"))
    slower = urllib.request.Request(f"{url}/delay", data=str(level.delay).encode(), method="PUT")
    with urllib.request.urlopen(slower, timeout=60) as response:
        response.read()
    Path("/proc/self/clear_refs").write_text("5")
    before = status_kb("VmRSS")
    print("ready", flush=True)
    sys.stdin.readline()
    rollouts = level.rollouts or level.in_flight
    cpu, began = time.process_time(), time.perf_counter()
    run_async(made(rollouts, folder / "groups.jsonl"))
    seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    peak = status_kb("VmHWM")
    recorded = [one for group in read_groups(folder / "groups.jsonl") for one in group.rollouts]
    turns = sum(one.turns_used for one in recorded)
    told = {
        "seconds": seconds,
        "turns": turns,
        "turns_per_second": round(turns / seconds, 1),
        "cpu_ms_per_turn": round(cpu * 1000 / max(turns, 1), 3),
        "kb_per_rollout": round((peak - before) / level.in_flight, 1),
        "peak_mb": round(peak / 1024, 1),
        "succeeded": sum(abs((one.score or 0.0) - 1.0) < 1e-9 for one in recorded) / rollouts,
        "causes": sorted({str(one.failure) for one in recorded if one.failure is not None}),
    }
    print(json.dumps(told), flush=True)


def measured(level: Level) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        model = subprocess.Popen(
            pinned(0, [sys.executable, str(HERE / "null_model.py")]),
            stdout=subprocess.PIPE,
            text=True,
        )
        assert model.stdout is not None
        command = [sys.executable, __file__, "--play", model.stdout.readline().strip(), json.dumps(asdict(level))]
        player = subprocess.Popen(
            pinned(1, [*command, folder]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        try:
            assert player.stdin is not None
            assert player.stdout is not None
            player.stdout.readline()
            left, ended = [available_mb()], threading.Event()

            def watch() -> None:
                while not ended.wait(0.2):
                    left.append(available_mb())

            threading.Thread(target=watch, daemon=True).start()
            player.stdin.write("go\n")
            player.stdin.flush()
            told: dict[str, Any] = json.loads(player.stdout.readline())
            ended.set()
        finally:
            for process in (player, model):
                process.terminate()
                process.communicate()
    return {**asdict(level), **told, "machine_kb_per_rollout": round((left[0] - min(left)) * 1024 / level.in_flight)}


def machine_memory(row: dict[str, Any]) -> str:
    """Of levels in which all rollouts are in flight together for a while."""
    return f"{row['machine_kb_per_rollout']:,}" if row["delay"] else "–"


def table(results: dict[str, Any]) -> str:
    where = results["machine"]
    on = f"{where['cores']} cores ({where['cpu']}), {where['memory_gb']} GB, Linux {where['kernel']}"
    columns = (
        *("kind", "in flight", "model's s", "KB a rollout, process", "KB a rollout, machine", "turns/s"),
        *("CPU ms a turn", "succeeded"),
    )
    rows = [
        f"| {TITLES[row['kind']]} | {row['in_flight']:,} | {row['delay']:g} | {row['kb_per_rollout']:.0f} "
        f"| {machine_memory(row)} | {row['turns_per_second']:,.0f} | {row['cpu_ms_per_turn']:.2f} "
        f"| {row['succeeded']:.2%} |"
        for row in results["figures"].values()
    ]
    measured_on = f"Measured on {results['date']}, size {results['size']}: {on}, Python {where['python']}."
    return "\n".join([measured_on, "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|", *rows])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="64 rollouts of each kind")
    parser.add_argument("--write", action="store_true", help="into docs/reports/stateful.md")
    parser.add_argument("--play", nargs=3, metavar=("URL", "LEVEL", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.play:
        url, level, folder = arguments.play
        play(url, Level(**json.loads(level)), Path(folder))
        return 0
    rows: dict[str, Any] = {}
    for level in QUICK if arguments.quick else FULL:
        rows[level.name] = measured(level)
        print(f"{level.name}: {json.dumps(rows[level.name])}", file=sys.stderr, flush=True)
    size = "quick" if arguments.quick else "full"
    goals = {
        f"{name}: succeeded": {"goal": 1.0, "measured": row["succeeded"], "met": row["succeeded"] == 1.0}
        for name, row in rows.items()
    }
    results = {
        "benchmark": "stateful",
        "size": size,
        "date": now(),
        "machine": machine(),
        "figures": rows,
        "goals": goals,
    }
    if arguments.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{rest.partition(END)[2]}")
    print(table(results))
    print(json.dumps({name: results[name] for name in ("benchmark", "figures", "goals")}))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
