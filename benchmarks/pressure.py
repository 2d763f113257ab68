"""Rollouts in flight at engines of four shapes, over sockets: fixed numbers of groups, and as many as they bear.

The engines are in a process of their own. A rollout is four turns of talk, as `process` makes them, without tools. For
each shape the fixed numbers are tried one after another, then `auto`. What counts are ratios within one run: the
answers a second of `auto`, once it has had half of its time to find its place, to those of the best fixed number; and
refusals (429) to answers, from its first second on.
"""

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
import uvloop

from hermes_rl import AgentResult, APIServerConfig, HermesAgentBaseEnv, HermesAgentEnvConfig, ToolContext
from hermes_rl.rollout.generate import generate_groups

HERE = Path(__file__).resolve().parent
TURNS = 4
GROUP_SIZE = 4
THROUGHPUT_GOAL, REFUSED_GOAL = 0.85, 0.05


class TalkingEnv(HermesAgentBaseEnv):
    """So many turns, and a reward for all of them."""

    name = "talking"

    async def setup(self) -> None:
        self._next = 0

    async def get_next_item(self) -> int:
        self._next += 1
        return self._next

    def format_prompt(self, item: int) -> str:
        return f"task {item}"

    async def next_user_message(self, item: int, messages: list[Any], session: Any = None) -> str | None:
        return None if len(messages) >= 2 * TURNS else "go on"

    async def compute_reward(self, item: int, result: AgentResult, ctx: ToolContext) -> float:
        return float(result.turns_used == TURNS)


@dataclass(frozen=True)
class Size:
    """Of the engines, by shape, and of the runs; `groups` are the fixed numbers."""

    shapes: dict[str, tuple[str, ...]]
    groups: tuple[int, ...]
    fixed_seconds: float
    auto_seconds: float


def shapes(width: int, seconds: float) -> dict[str, tuple[str, ...]]:
    """Two alone, one that batches, and a slow one that queues beside a quick one that refuses."""
    return {
        "queues": (f"queues:{width}:{seconds}",),
        "refuses": (f"refuses:{width}:{seconds}",),
        "batches": (f"batches:{width}:{seconds / 2}",),
        "slow_queues_quick_refuses": (f"queues:{width}:{2 * seconds}", f"refuses:{width}:{seconds / 2}"),
    }


SMALL = Size(shapes(8, 0.2), groups=(1, 3, 6, 16), fixed_seconds=3.0, auto_seconds=10.0)
FULL = Size(shapes(32, 0.8), groups=(4, 8, 12, 24, 48, 96), fixed_seconds=20.0, auto_seconds=180.0)


@asynccontextmanager
async def engines(shape: tuple[str, ...]) -> AsyncIterator[list[str]]:
    """Their base URLs."""
    command = [sys.executable, str(HERE / "pressure_engines.py"), *shape]
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        yield json.loads(await process.stdout.readline())
    finally:
        process.terminate()
        await process.wait()


async def measure(urls: list[str], folder: Path, seconds: float, groups: int | None) -> dict[str, float]:
    """So many groups at once, or `auto`, for so many seconds; what ends after them is not counted."""
    config: dict[str, Any] = {"concurrency": "auto"} if groups is None else {"max_num_workers": groups}
    env = TalkingEnv(
        HermesAgentEnvConfig.model_validate(
            {
                **config,
                "group_size": GROUP_SIZE,
                "enabled_toolsets": [],
                "terminal_backend": "local",
                "use_wandb": False,
                "total_steps": 1_000_000,
                "time_limit": seconds,
                "ensure_scores_are_not_same": False,
            }
        ),
        [APIServerConfig(base_url=url, model_name="null") for url in urls],
    )
    async with aiohttp.ClientSession() as session, env.opened():
        await stats(session, urls)
        making = asyncio.create_task(generate_groups(env, folder / "groups.jsonl"))
        began = time.monotonic()
        await asyncio.sleep(seconds / 2)
        first, half = await stats(session, urls), time.monotonic()
        await asyncio.sleep(seconds / 2)
        second, end = await stats(session, urls), time.monotonic()
        answered, refused = first["answered"] + second["answered"], first["refused"] + second["refused"]
        figures = {
            "answers_per_second": second["answered"] / (end - half),
            "answers_per_second_in_all": answered / (end - began),
            "refused": float(refused),
            "refused_per_answer": refused / max(1, answered),
            "p50_seconds": median(second["times"]) if second["times"] else 0.0,
        }
        if groups is not None:
            making.cancel()
            with suppress(asyncio.CancelledError):
                await making
            return figures
        tally = await making
    return figures | {"failed_share": sum(tally.failures.values()) / max(1, tally.rollouts)}


async def stats(session: aiohttp.ClientSession, urls: list[str]) -> dict[str, Any]:
    """Of all engines together, since it was asked last."""
    total: dict[str, Any] = {"answered": 0, "refused": 0, "times": []}
    for url in urls:
        async with session.get(f"{url}/stats") as response:
            for name, value in (await response.json()).items():
                total[name] += value
    return total


async def compared(name: str, size: Size) -> dict[str, Any]:
    """One shape: each fixed number, and `auto`."""
    fixed = {}
    async with engines(size.shapes[name]) as urls:
        with tempfile.TemporaryDirectory() as scratch:
            for groups in size.groups:
                folder = Path(scratch) / str(groups)
                folder.mkdir()
                fixed[groups] = await measure(urls, folder, size.fixed_seconds, groups)
                print(f"{name}, {groups} groups: {json.dumps(fixed[groups])}", flush=True)
                # What was given up is still computed.
                await asyncio.sleep(0.5)
            auto = await measure(urls, Path(scratch), size.auto_seconds, None)
            print(f"{name}, auto: {json.dumps(auto)}", flush=True)
    best = max(fixed, key=lambda groups: fixed[groups]["answers_per_second"])
    rate = fixed[best]["answers_per_second"]
    return {
        "best_fixed_groups": best,
        "to_best_fixed": auto["answers_per_second"] / rate,
        "to_best_fixed_in_all": auto["answers_per_second_in_all"] / rate,
        "fixed": fixed,
        "auto": auto,
    }


def goals(rows: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Of the worst shape."""
    throughput = min(row["to_best_fixed"] for row in rows.values())
    refused = max(row["auto"]["refused_per_answer"] for row in rows.values())
    failed = max(row["auto"]["failed_share"] for row in rows.values())
    return {
        "to_best_fixed": {"goal": THROUGHPUT_GOAL, "measured": throughput, "met": throughput >= THROUGHPUT_GOAL},
        "refused_per_answer": {"goal": REFUSED_GOAL, "measured": refused, "met": refused <= REFUSED_GOAL},
        "failed_share": {"goal": 0.0, "measured": failed, "met": failed == 0},
    }


async def run(size: Size) -> dict[str, Any]:
    return {name: await compared(name, size) for name in size.shapes}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="larger engines, five minutes for each shape")
    given = parser.parse_args()
    load = os.getloadavg()[0]
    rows = uvloop.run(run(FULL if given.full else SMALL))
    reached = goals(rows)
    print(json.dumps({"benchmark": "pressure", "load": [load, os.getloadavg()[0]], "figures": rows, "goals": reached}))
    return 0 if all(one["met"] for one in reached.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
