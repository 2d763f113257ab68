"""512 rollouts in one process whose rewards call `ctx.terminal("sleep 1")` without await, beside bare bubblewrap.

Each rollout: one tool call and one answer from a scripted model (in a process of its own), a sandbox, a reward that
sleeps in it. The bare side starts as many `bwrap … bash -c "sleep 1"` from one event loop and does nothing else.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from statistics import median

import uvloop

from hermes_rl import AgentResult, APIServerConfig, HermesAgentBaseEnv, HermesAgentEnvConfig, ToolContext
from hermes_rl.rollout.generate import generate_groups

ROOT = Path(__file__).resolve().parents[1]
GROUP_SIZE = 16
TOTAL_GOAL, LAG_GOAL = 20.0, 0.100
TICK = 0.005
BARE = (
    "bwrap --unshare-all --die-with-parent --new-session --cap-drop ALL --ro-bind /usr /usr --symlink usr/bin /bin "
    "--symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp bash -c"
).split()


class SleepingRewardEnv(HermesAgentBaseEnv):
    name = "sleeping_reward"
    default_toolsets = ("terminal",)

    async def setup(self) -> None:
        self._next = 0

    async def get_next_item(self) -> int:
        self._next += 1
        return self._next

    def format_prompt(self, item: int) -> str:
        return f"task {item}"

    async def compute_reward(self, item: int, result: AgentResult, ctx: ToolContext) -> float:
        return 1.0 if ctx.terminal("sleep 1")["exit_code"] == 0 else 0.0


@asynccontextmanager
async def scripted_model() -> AsyncIterator[str]:
    """The scripted model in a process of its own: its base URL."""
    command = [sys.executable, "-m", "tests.support.scripted_model", "--port", "0"]
    model = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdout=subprocess.PIPE)
    assert model.stdout is not None
    yield next(word for word in (await model.stdout.readline()).decode().split() if word.startswith("http"))
    model.terminate()
    await model.wait()


async def with_lag(work: Callable[[], Awaitable[None]]) -> tuple[float, list[float]]:
    """How long the work took, and how late the event loop woke a sleeper meanwhile."""
    lags: list[float] = []

    async def watch() -> None:
        while True:
            began = time.perf_counter()
            await asyncio.sleep(TICK)
            lags.append(time.perf_counter() - began - TICK)

    watcher = asyncio.create_task(watch())
    began = time.perf_counter()
    await work()
    seconds = time.perf_counter() - began
    watcher.cancel()
    with suppress(asyncio.CancelledError):
        await watcher
    return seconds, sorted(lags)


async def ours(rollouts: int) -> tuple[float, list[float]]:
    with tempfile.TemporaryDirectory() as folder:
        async with scripted_model() as base_url:
            config = HermesAgentEnvConfig(
                total_steps=rollouts // GROUP_SIZE,
                group_size=GROUP_SIZE,
                max_num_workers=rollouts,
                tool_pool_size=rollouts,
            )
            env = SleepingRewardEnv(config, [APIServerConfig(base_url=base_url, model_name="scripted")])

            async def work() -> None:
                tally = await generate_groups(env, Path(folder) / "groups.jsonl")
                assert tally.scores == [1.0] * rollouts, tally.summary()

            async with env.opened():
                return await with_lag(work)


async def bare(rollouts: int) -> tuple[float, list[float]]:
    async def one() -> None:
        process = await asyncio.create_subprocess_exec(*BARE, "sleep 1", stdin=subprocess.DEVNULL)
        assert await process.wait() == 0

    async def work() -> None:
        await asyncio.gather(*(one() for _ in range(rollouts)))

    return await with_lag(work)


def quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rollouts", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="64 rollouts, once")
    arguments = parser.parse_args()
    rollouts, repeats = (64, 1) if arguments.quick else (arguments.rollouts, arguments.repeats)
    runs: dict[str, list[dict[str, float]]] = {"ours": [], "bare": []}
    for _ in range(repeats):
        for side, work in (("ours", ours), ("bare", bare)):
            seconds, lags = uvloop.run(work(rollouts))
            run = {"seconds": seconds, "lag_p50": quantile(lags, 0.5), "lag_p99": quantile(lags, 0.99)}
            runs[side].append({name: round(value, 4) for name, value in run.items()})
            print(side, runs[side][-1])
    middle = {side: {name: median(run[name] for run in done) for name in done[0]} for side, done in runs.items()}
    total, lag = middle["ours"]["seconds"], middle["ours"]["lag_p99"]
    goals = {
        "total_seconds": {"goal": TOTAL_GOAL, "measured": round(total, 2), "met": total < TOTAL_GOAL},
        "loop_lag_p99_seconds": {"goal": LAG_GOAL, "measured": round(lag, 4), "met": lag < LAG_GOAL},
    }
    figures = {"rollouts": rollouts, "runs": runs, "ratio_to_bare": total / middle["bare"]["seconds"]}
    print(json.dumps({"benchmark": "sync_rewards", "figures": figures, "goals": goals}))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
