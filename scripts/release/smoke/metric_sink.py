"""The extras `wandb` and `trackio`: metrics of a run through the sink, kept on this machine."""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from hermes_rl.sinks.run_sinks import MetricsRun, open_sinks
from hermes_rl.sinks.selection import SinkConfig

OFFLINE = {"WANDB_MODE": "offline", "TRACKIO_DIR": "trackio", "HF_HUB_OFFLINE": "1"}


def main(given: dict[str, Any]) -> str:
    os.environ.update(OFFLINE)
    name = str(given["extra"])
    asyncio.run(logged(name))
    kept = list(Path().rglob("*.wandb" if name == "wandb" else "trackio/*.db"))
    assert kept, sorted(map(str, Path().rglob("*")))
    return f"metrics kept in a file of {name}'s, offline"


async def logged(name: str) -> None:
    run = MetricsRun("smoke", Path("data"), "a run", config={"group_size": 3})
    async with open_sinks(run, SinkConfig([name], use_wandb=None if name == "wandb" else False)) as sinks:
        sinks.log({"train": {"mean_score": 0.25}})
        sinks.log({"eval/mean_reward": 0.75}, step=20)
    assert sinks.active == [name] and not any(sinks.failures.values()), (sinks.active, sinks.failures)


if __name__ == "__main__":
    print(main(json.loads(sys.argv[1])))
