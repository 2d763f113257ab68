"""The red team on ten planted exploits: how many are found, what `validate` says of them, and of a sound reward.

A scripted attacker plays each exploit among calls that it does not need, behind a real endpoint. Commands, sandboxes,
rewards and audits are the real ones. It shows what happens to an exploit that a model tries, not whether one tries it.
"""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.planted_rewards import FLAWS, ScriptedAttacker

CHECKOUT = Path(__file__).parents[1]
PLANTED = Path(__file__).with_name("planted_rewards.py")
ITEMS = 3
WITH_CHEATS = """
from benchmarks.planted_rewards import {base}
from found import found_cheats


class WithCheats({base}):
    def cheats(self, item):
        return found_cheats(item)
"""


async def hermes_rl(folder: Path, *arguments: str) -> dict[str, Any]:
    """The JSON that a command prints, with its exit code."""
    command = [sys.executable, "-m", "hermes_rl", *arguments, "--json"]
    paths = [str(folder), str(CHECKOUT), *filter(None, [os.environ.get("PYTHONPATH")])]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=folder, stdout=asyncio.subprocess.PIPE, env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    )
    out, _ = await process.communicate()
    report: dict[str, Any] = json.loads(out.splitlines()[-1])
    return {**report, "exit_code": process.returncode}


async def attacked(folder: Path, base: str) -> dict[str, Any]:
    """A campaign with one attack for each flaw."""
    from tests.support.scripted_model import Calls, ScriptedModel, Text

    attacker = ScriptedAttacker(tuple(FLAWS))

    def answer(request: dict[str, Any]) -> Any:
        step = attacker.next_step(request["messages"])
        return Text(step) if isinstance(step, str) else Calls([(step[0], json.dumps(step[1]))])

    async with ScriptedModel(answer) as model:
        options = ["--url", model.base_url, "--model", "scripted", "--out", "found.py", "--items", str(ITEMS)]
        limits = ["--max-rollouts", str(len(FLAWS)), "--parallel", "2", "--env.max_agent_turns", "10"]
        return await hermes_rl(folder, "redteam", f"{PLANTED}:{base}", *options, *limits)


async def reported(folder: Path, base: str) -> int:
    """How many of the found cheats `validate` reports."""
    path = folder / f"with_cheats_{base.lower()}.py"
    path.write_text(WITH_CHEATS.format(base=base))
    report = await hermes_rl(folder, "validate", f"{path}:WithCheats", "--items", str(ITEMS))
    return sum("your own cheat" in finding["seen"] for finding in report["findings"])


async def measure(folder: Path) -> dict[str, Any]:
    sound = await attacked(folder, "SoundEnv")
    planted = await attacked(folder, "PlantedEnv")
    exploits = planted["exploits"]
    return {
        "planted": len(FLAWS),
        "found": len(exploits),
        "shortened": sum(len(exploit["steps"]) == exploit["steps_before"] - 3 for exploit in exploits),
        "work_on_all_items": sum(exploit["works_on"] == exploit["tried_on"] for exploit in exploits),
        "reported_by_validate": await reported(folder, "PlantedEnv"),
        "reported_with_a_sound_reward": await reported(folder, "SoundEnv"),
        "found_in_a_sound_reward": len(sound["exploits"]),
        "exit_codes": [planted["exit_code"], sound["exit_code"]],
    }


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = asyncio.run(measure(Path(folder)))
    wanted = dict.fromkeys(("found", "shortened", "work_on_all_items", "reported_by_validate"), len(FLAWS))
    wanted |= dict.fromkeys(("reported_with_a_sound_reward", "found_in_a_sound_reward"), 0)
    goals = {
        name: {"goal": f"= {goal}", "measured": figures[name], "met": figures[name] == goal}
        for name, goal in wanted.items()
    }
    print(json.dumps({"benchmark": "redteam", "figures": figures, "goals": goals}))
    return 0 if all(goal["met"] for goal in goals.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
