"""The real trackio holds what was logged, and connects to nobody."""

import json
from pathlib import Path

from tests.sinks.parts import run_program

TRACKIO_PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from hermes_rl.sinks.selection import SinkConfig
from hermes_rl.sinks.run_sinks import MetricsRun, open_sinks

async def main(folder):
    run = MetricsRun("env", folder, "my run", config={"group_size": 3})
    async with open_sinks(run, SinkConfig(["trackio"], use_wandb=False)) as sinks:
        sinks.log({"train": {"mean_score": 0.25}, "train/tool_error_details": "[turn 1] x", "none": None})
        sinks.rollouts([("the whole text", 1.0)])
        sinks.log({"eval/mean_reward": 0.75}, step=20)
        sinks.log({"late": 1}, step=10)
    assert not sinks.failures, sinks.failures

asyncio.run(main(Path(sys.argv[1])))

import trackio
from trackio.sqlite_storage import SQLiteStorage
(run,) = trackio.Api().runs("hermes-rl")
print(json.dumps({"name": run.name, "config": run.config, "logs": SQLiteStorage.get_logs("hermes-rl", run.name)}))
"""


def test_trackio_holds_what_was_logged_and_connects_to_nobody(tmp_path: Path, unconnected: dict[str, str]) -> None:
    done = run_program(TRACKIO_PROGRAM, tmp_path / "data", TRACKIO_DIR=str(tmp_path / "trackio"), **unconnected)
    assert done.returncode == 0, done.stderr
    run = json.loads(done.stdout)
    assert (run["name"], run["config"]["group_size"], run["config"]["_Group"]) == ("my run", 3, "env")
    logs = [{name: value for name, value in log.items() if name != "timestamp"} for log in run["logs"]]
    assert logs == [
        {"step": 0, "train/mean_score": 0.25, "train/tool_error_details": "[turn 1] x"},
        {"step": 0, "train/rollouts": {"_type": "trackio.table", "_value": [{"text": "the whole text", "score": 1.0}]}},
        {"step": 20, "eval/mean_reward": 0.75},
        {"step": 20, "late": 1},
    ]
    assert "trackio show --project hermes-rl" in done.stderr
