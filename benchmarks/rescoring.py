"""Rescoring recorded terminal_test rollouts by replay, beside bare bubblewrap running the same commands, alternating.

Bare: for each rollout one `bwrap … bash -c COMMAND; cat out.txt`, as many at once as there are processors: no limits,
no warden, nothing kept. The rollouts are made first, on a scripted model, a third of them wrong.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import uvloop

from hermes_rl import APIServerConfig
from hermes_rl.core.trajectory import Group
from hermes_rl.environment.loading.loader import load_environment
from hermes_rl.environment.prebuild import NO_MODEL
from hermes_rl.evaluation.rescore import RescoreSource, RescoreStats, rescore_groups
from hermes_rl.rollout.generate import generate_groups
from hermes_rl.store.records import read_groups

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

GOAL_SECONDS = 60.0
GROUP_SIZE = 4
BARE = (
    "bwrap --unshare-all --die-with-parent --new-session --cap-drop ALL --ro-bind /usr /usr --symlink usr/bin /bin "
    "--symlink usr/lib /lib --symlink usr/lib64 /lib64 --proc /proc --dev /dev --tmpfs /tmp --tmpfs /workspace "
    "--chdir /workspace --clearenv --setenv PATH /usr/bin:/bin bash -c"
).split()


def answer(request: dict[str, Any]) -> Any:
    from tests.support.scripted_model import Calls

    word = request["messages"][-1]["content"].split()[1] if request["seed"] % 3 else "wrong"
    return Calls([("terminal", json.dumps({"command": f"echo {word} > out.txt"}))])


async def recorded(path: Path, rollouts: int) -> list[Group]:
    from tests.support.scripted_model import ScriptedModel

    environment = load_environment("terminal_test")
    config = environment.config_init()[0].model_copy(
        update={"total_steps": rollouts // GROUP_SIZE, "group_size": GROUP_SIZE}
    )
    async with ScriptedModel(answer) as model:
        env = environment(config, [APIServerConfig(base_url=model.base_url, model_name="scripted")])
        async with env.opened():
            await generate_groups(env, path)
    return list(read_groups(path))


async def rescored(path: Path) -> tuple[float, RescoreStats]:
    environment = load_environment("terminal_test")
    env = environment(environment.config_init()[0], [NO_MODEL])
    moved = RescoreStats()
    async with env.opened():
        began = time.perf_counter()
        await rescore_groups(env, read_groups(path), lambda _: None, moved, source=RescoreSource.REPLAY)
        return time.perf_counter() - began, moved


async def bare(groups: list[Group]) -> float:
    turns = asyncio.Semaphore(os.cpu_count() or 1)

    async def one(command: str) -> None:
        async with turns:
            process = await asyncio.create_subprocess_exec(
                *BARE, f"{command}; cat out.txt", stdout=asyncio.subprocess.PIPE
            )
            await process.communicate()

    uses = [use for group in groups for rollout in group.rollouts for use in rollout.tool_uses]
    began = time.perf_counter()
    await asyncio.gather(*(one(json.loads(use.arguments)["command"]) for use in uses))
    return time.perf_counter() - began


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="200 rollouts once, in under a minute")
    arguments = parser.parse_args()
    rollouts, repeats = (200, 1) if arguments.quick else (1000, 3)
    runs: dict[str, list[float]] = {"ours": [], "bare": []}
    same = differing = 0
    with TemporaryDirectory() as folder, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        path = Path(folder) / "groups.jsonl"
        groups = runner.run(recorded(path, rollouts))
        for _ in range(repeats):
            seconds, moved = runner.run(rescored(path))
            runs["ours"].append(seconds)
            runs["bare"].append(runner.run(bare(groups)))
            same, differing = moved.same, moved.calls_that_differ
            print({side: round(done[-1], 2) for side, done in runs.items()}, f"{same} of {rollouts} the same")
    seconds = median(runs["ours"]) * 1000 / rollouts
    goals: dict[str, dict[str, Any]] = {
        "seconds_for_1000": {"goal": GOAL_SECONDS, "measured": round(seconds, 2), "met": seconds < GOAL_SECONDS},
        "same_scores": {"goal": rollouts, "measured": same, "met": same == rollouts},
    }
    figures = {
        "rollouts": rollouts,
        "runs": runs,
        "ratio_to_bare": round(median(runs["ours"]) / median(runs["bare"]), 2),
        "calls_that_differ": differing,
    }
    print(json.dumps({"benchmark": "rescoring", "figures": figures, "goals": goals}))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
