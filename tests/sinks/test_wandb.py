"""The real wandb holds what was logged, offline, and tells nobody."""

import asyncio
import json
import os
import pty
import select
import socket
import sys
import time
from pathlib import Path

import pytest

from hermes_rl.core.secrets import HIDDEN
from hermes_rl.sinks.run_sinks import open_sinks
from hermes_rl.sinks.selection import SinkConfig
from tests.sinks.parts import KEY, lines, offline_run, run, run_program

PROGRAM = """
import asyncio, sys
from pathlib import Path
from hermes_rl import APIServerConfig, HermesAgentEnvConfig
from hermes_rl.sinks.selection import SinkConfig
from hermes_rl.sinks.run_sinks import MetricsRun, open_sinks
from hermes_rl.sinks.serialize import public_config

assert not {"wandb", "trackio"} & sys.modules.keys()

async def main(folder):
    endpoint = APIServerConfig(base_url="http://127.0.0.1:9/v1", api_key="sk-literal")
    config = HermesAgentEnvConfig(use_wandb=True, wandb_name="my run", group_size=3, user_endpoint=endpoint)
    run = MetricsRun("env", folder, config.wandb_name, config=public_config(config))
    async with open_sinks(run, SinkConfig.from_config(config, "env")) as sinks:
        sinks.log({"train": {"mean_score": 0.25}, "train/tool_error_details": "[turn 1] x", "none": None})
        sinks.rollouts([("the whole text", 1.0), ("another", 0.0)])
        sinks.log({"eval/mean_reward": 0.75}, step=20)
        sinks.log({"late": 1}, step=10)
        assert sinks.active == ["wandb"], sinks.active
    assert not sinks.failures, sinks.failures

asyncio.run(main(Path(sys.argv[1])))
print("done")
"""


@pytest.mark.parametrize("mode", [{"WANDB_MODE": "offline"}, {}], ids=["by variable", "for want of a key"])
def test_wandb_offline_holds_what_was_logged_and_connects_to_nobody(
    mode: dict[str, str], tmp_path: Path, unconnected: dict[str, str]
) -> None:
    folder = tmp_path / "data"
    done = run_program(PROGRAM, folder, "--openai.api_key", "sk-argument", WANDB_PROJECT="mine", **mode, **unconnected)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert f"wandb stores the run offline; to upload it: wandb sync {folder}" in done.stderr
    kept = offline_run(folder)
    first, second = kept.history
    assert (first["_step"], first["train/mean_score"], first["train/tool_error_details"]) == (0, 0.25, "[turn 1] x")
    assert (second["_step"], second["eval/mean_reward"], second["late"]) == (20, 0.75, 1)
    assert "none" not in first
    (table,) = folder.glob("wandb/offline-run-*/files/media/table/train/rollouts_*.json")
    assert json.loads(table.read_text()) == {
        "columns": ["text", "score"], "data": [["the whole text", 1.0], ["another", 0.0]],
    }  # fmt: skip
    assert (kept.display_name, kept.group, kept.project) == ("my run", "env", "mine")
    assert (kept.config["group_size"], kept.config["user_endpoint"]["api_key"]) == (3, HIDDEN)
    on_disk = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert b"sk-literal" not in on_disk and b"sk-argument" not in on_disk


def test_wandb_without_a_key_asks_nothing_on_a_terminal(tmp_path: Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        variables = {**os.environ, "WANDB_MODE": "online", "WANDB_DATA_DIR": str(tmp_path)}
        os.execve(sys.executable, [sys.executable, "-c", PROGRAM, str(tmp_path / "data")], variables)
    said, until = b"", time.monotonic() + 60
    while time.monotonic() < until and select.select([terminal], [], [], until - time.monotonic())[0]:
        try:
            said += os.read(terminal, 65536)
        except OSError:  # Linux says so when the other end is closed
            break
    os.close(terminal)
    assert os.waitpid(child, 0)[1] == 0, said.decode()
    assert b"Enter your choice" not in said and b"stores the run offline" in said


@pytest.mark.slow
def test_wandb_that_cannot_be_reached_keeps_the_run_offline(tmp_path: Path) -> None:
    hasty = "from hermes_rl.sinks import wandb_sink\nwandb_sink.INIT_SECONDS = 1.0\n"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    nobody = f"http://127.0.0.1:{port}"
    variables = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": nobody, "WANDB_ERROR_REPORTING": "false"}
    done = run_program(hasty + PROGRAM, tmp_path / "data", **variables)
    assert done.returncode == 0, done.stderr
    assert "wandb could not start online" in done.stderr and KEY not in done.stderr
    assert [row["_step"] for row in offline_run(tmp_path / "data").history] == [0, 20]


async def test_two_environments_in_one_process_have_runs_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WANDB_MODE": "offline", "WANDB_DATA_DIR": tmp_path, "WANDB_CACHE_DIR": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    first, second = (open_sinks(run(tmp_path / number), SinkConfig()) for number in "12")
    async with first as one, second as two:
        import wandb

        assert wandb.run is None
        one.log({"a": 1, "table": wandb.Table(columns=["x"], data=[[5]])})
        two.log({"a": 2})
    # wandb's own process writes on after finish(), for some milliseconds; at exit it is waited for, as here.
    await asyncio.to_thread(wandb.teardown)
    assert [[row["a"] for row in offline_run(tmp_path / number).history] for number in "12"] == [[1], [2]]
    assert lines(tmp_path / "1" / "metrics.jsonl")[0]["table"] == {"columns": ["x"], "data": [[5]]}
