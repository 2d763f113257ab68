"""Metrics reach the local file always, and the real wandb and trackio when asked for; neither can hurt a run."""

import asyncio
import json
import os
import pty
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from hermes_rl import APIServerConfig, HermesAgentEnvConfig
from hermes_rl.environment.sinks import Sinks, open_sinks, opening, worker
from hermes_rl.environment.sinks.opening import chosen
from hermes_rl.environment.sinks.values import saved_config
from hermes_rl.environment.sinks.wandb_run import wandb_is_set_up
from hermes_rl.environment.sinks.worker import FAILURES, Row, Sink, Worker
from hermes_rl.errors import ConfigError
from hermes_rl.secrets import HIDDEN
from hermes_rl.store import RecordWriter

# A key of the right form, so that wandb takes it for one.
KEY = "0123456789abcdef" * 3


@pytest.fixture(autouse=True)
def _no_accounts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing of the tester's own wandb, trackio or Hugging Face."""
    for name in list(os.environ):
        if name.startswith(("WANDB_", "TRACKIO_", "HF_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))


def config(**fields: Any) -> HermesAgentEnvConfig:
    return HermesAgentEnvConfig(**fields)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


class Recorded:
    """A sink that keeps what it is given."""

    package: ClassVar[str] = "recorded"

    def __init__(self) -> None:
        self.calls: list[tuple[int, dict[str, Any]]] = []
        self.tables: list[tuple[int, list[Row]]] = []
        self.finished: bool | None = None

    def start(self) -> str:
        return "is on"

    def next_step(self) -> int:
        return 0

    def log(self, metrics: Mapping[str, Any], step: int) -> None:
        self.calls.append((step, dict(metrics)))

    def rollouts(self, rows: Sequence[Row], step: int) -> None:
        self.tables.append((step, list(rows)))

    def finish(self, *, failed: bool) -> None:
        self.finished = not failed


@asynccontextmanager
async def with_sinks(path: Path, *sinks: Sink) -> AsyncIterator[Sinks]:
    workers = [Worker(sink) for sink in sinks]
    with RecordWriter(path) as file:
        opened = Sinks(file, workers)
        for one in workers:
            await one.start()
        yield opened
        await opened.close()


# --- the file ---


async def test_without_other_sinks_every_line_is_in_the_file(tmp_path: Path) -> None:
    async with open_sinks(config(), "env", tmp_path / "data") as sinks:
        sinks.log({"train/mean_score": 0.5, "train/tool_error_details": "two\nlines"})
        sinks.rollouts([("text", 1.0)])
        sinks.log({"eval/mean_reward": 1}, step=7)
        assert sinks.on == []
    first, second = lines(tmp_path / "data" / "env.metrics.jsonl")
    assert (first["step"], first["train/mean_score"], first["train/tool_error_details"]) == (0, 0.5, "two\nlines")
    assert (second["step"], second["eval/mean_reward"]) == (7, 1)
    assert first["time"] <= second["time"] <= time.time()


async def test_nested_metrics_are_flat_and_what_is_no_number_is_null(tmp_path: Path) -> None:
    metrics = {
        "train": {"failures": {"endpoint/http_500": 2, 7: 1}, "empty": {}},
        "nan": float("nan"), "inf": float("-inf"), "none": None, "flag": True, "list": [1, 2],
        "float32": np.float32(0.5), "int64": np.int64(3), "bool": np.bool_(True),
        "array": np.array([1.0, 2.0]), "scalar": np.array(4), "decimal": Decimal("0.25"),
    }  # fmt: skip
    async with open_sinks(config(), "env", tmp_path) as sinks:
        sinks.log(metrics)
    (line,) = lines(tmp_path / "env.metrics.jsonl")
    del line["time"], line["step"]
    assert line == {
        "train/failures/endpoint/http_500": 2, "train/failures/7": 1,
        "nan": None, "inf": None, "none": None, "flag": True, "list": [1, 2],
        "float32": 0.5, "int64": 3, "bool": True, "array": [1.0, 2.0], "scalar": 4, "decimal": 0.25,
    }  # fmt: skip


async def test_a_run_taken_up_again_goes_on_after_its_last_step(tmp_path: Path) -> None:
    async with open_sinks(config(), "env", tmp_path, file="m.jsonl") as sinks:
        sinks.log({"a": 1}, step=41)
    with (tmp_path / "m.jsonl").open("ab") as file:
        file.write(b'{"step": 99, "torn')
    async with open_sinks(config(), "env", tmp_path, file="m.jsonl") as sinks:
        sinks.log({"a": 2})
    assert [(line["step"], line["a"]) for line in lines(tmp_path / "m.jsonl")] == [(41, 1), (42, 2)]


# --- every other sink ---


async def test_steps_never_go_back_and_a_table_joins_the_latest(tmp_path: Path) -> None:
    sink = Recorded()
    async with with_sinks(tmp_path / "m.jsonl", sink) as sinks:
        sinks.log({"a": 1})
        sinks.log({"a": 2}, step=10)
        sinks.log({"eval": 3}, step=8)
        sinks.rollouts([("text", 0.5)])
        sinks.log({"a": 4})
    assert sink.calls == [(0, {"a": 1}), (10, {"a": 2}), (10, {"eval": 3}), (11, {"a": 4})]
    assert [line["step"] for line in lines(tmp_path / "m.jsonl")] == [0, 10, 10, 11]
    assert sink.tables == [(10, [("text", 0.5)])]


async def test_a_sink_gets_neither_none_nor_what_another_package_made(tmp_path: Path) -> None:
    sink = Recorded()
    async with with_sinks(tmp_path / "m.jsonl", sink) as sinks:
        sinks.log({"none": None, "path": Path("x"), "text": "kept", "n": 1})
    assert sink.calls == [(0, {"text": "kept", "n": 1})]


async def test_a_sink_that_raises_is_said_once_counted_and_switched_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Raises(Recorded):
        def log(self, metrics: Mapping[str, Any], step: int) -> None:
            super().log(metrics, step)
            raise OSError("no such\nhost")

    broken, sound = Raises(), Recorded()
    async with with_sinks(tmp_path / "m.jsonl", broken, sound) as sinks:
        for number in range(FAILURES + 3):
            sinks.log({"a": number})
    assert len(lines(tmp_path / "m.jsonl")) == len(sound.calls) == FAILURES + 3
    assert len(broken.calls) == FAILURES
    assert (sinks.failures, sinks.on) == ({"recorded": FAILURES}, ["recorded"])
    said = capsys.readouterr().err
    assert said.count("OSError: no such host") == 1 and said.count("in a row and is off") == 1


async def test_single_failures_do_not_add_up_to_a_sink_that_is_off(tmp_path: Path) -> None:
    class Now(Recorded):
        def log(self, metrics: Mapping[str, Any], step: int) -> None:
            super().log(metrics, step)
            if step % 2:
                raise ConnectionError

    sink = Now()
    async with with_sinks(tmp_path / "m.jsonl", sink) as sinks:
        for number in range(4 * FAILURES):
            sinks.log({"a": number})
    assert (len(sink.calls), sinks.failures, sink.finished) == (4 * FAILURES, {"recorded": 2 * FAILURES}, True)


async def test_a_sink_that_cannot_start_leaves_the_run_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    class Refuses(Recorded):
        def start(self) -> str:
            raise PermissionError("not today")

    sink = Refuses()
    async with with_sinks(tmp_path / "m.jsonl", sink) as sinks:
        sinks.log({"a": 1})
    assert (sink.calls, sinks.on, len(lines(tmp_path / "m.jsonl"))) == ([], [], 1)
    assert "could not start and is off: PermissionError: not today" in capsys.readouterr().err


async def test_a_sink_that_hangs_holds_up_neither_the_loop_nor_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "CLOSE_SECONDS", 0.2)
    go_on = threading.Event()

    class Hangs(Recorded):
        def log(self, metrics: Mapping[str, Any], step: int) -> None:
            go_on.wait(60)

    began = time.monotonic()
    async with with_sinks(tmp_path / "m.jsonl", Hangs()) as sinks:
        for number in range(1000):
            sinks.log({"a": number})
    took = time.monotonic() - began
    go_on.set()
    assert took < 5 and len(lines(tmp_path / "m.jsonl")) == 1000
    assert "was left behind" in capsys.readouterr().err


async def test_a_slow_start_is_not_waited_for_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "START_SECONDS", 0.1)
    go_on = threading.Event()

    class Slow(Recorded):
        def start(self) -> str:
            go_on.wait(60)
            return "is on"

    sink = Slow()
    async with with_sinks(tmp_path / "m.jsonl", sink) as sinks:
        sinks.log({"a": 1})
        assert sink.calls == []
        go_on.set()
    assert sink.calls == [(0, {"a": 1})]
    assert "has not started within" in capsys.readouterr().err


async def test_a_sink_that_falls_behind_drops_lines_and_not_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(worker, "WAITING", 10)
    go_on = threading.Event()

    class Slow(Recorded):
        def log(self, metrics: Mapping[str, Any], step: int) -> None:
            go_on.wait(60)
            super().log(metrics, step)

    sink = Slow()
    async with with_sinks(tmp_path / "m.jsonl", sink) as sinks:
        for number in range(50):
            sinks.log({"a": number})
        go_on.set()
    assert 10 <= len(sink.calls) <= 11 and len(lines(tmp_path / "m.jsonl")) == 50
    assert sinks.dropped == {"recorded": 50 - len(sink.calls)}
    assert capsys.readouterr().err.count("10 lines behind") == 1


# --- which sinks ---


def test_wandb_is_used_by_default_only_where_somebody_set_it_up(tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    assert chosen(config(), {"NETRC": str(netrc)}) == []
    assert chosen(config(), {"WANDB_API_KEY": KEY}) == ["wandb"]
    assert chosen(config(), {"WANDB_MODE": "offline"}) == ["wandb"]
    assert chosen(config(use_wandb=False), {"WANDB_API_KEY": KEY}) == []
    assert chosen(config(use_wandb=True), {"NETRC": str(netrc)}) == ["wandb"]
    assert chosen(config(metric_sinks=["trackio", "wandb"]), {}) == ["trackio", "wandb"]
    assert chosen(config(metric_sinks=["wandb"]), {"WANDB_MODE": "disabled"}) == []
    assert chosen(config(metric_sinks=["wandb"], use_wandb=False), {}) == []


def test_a_key_is_found_where_wandb_login_puts_it(tmp_path: Path) -> None:
    netrc = tmp_path / "netrc"
    found = {"NETRC": str(netrc)}
    assert not wandb_is_set_up(found)
    netrc.write_text(f"machine github.com\n  login user\n  password {KEY}\n")
    assert not wandb_is_set_up(found)
    netrc.write_text(f"machine api.wandb.ai\n  login user\n  password {KEY}\n")
    assert wandb_is_set_up(found)
    netrc.write_text(f"machine wandb.example:8080\n  login user\n  password {KEY}\n")
    assert not wandb_is_set_up(found)
    assert wandb_is_set_up(found | {"WANDB_BASE_URL": "http://wandb.example:8080"})
    netrc.write_text("machine")
    assert not wandb_is_set_up(found)


@pytest.mark.parametrize(
    ("fields", "package"), [({"use_wandb": True}, "wandb"), ({"metric_sinks": ["trackio"]}, "trackio")]
)
async def test_a_sink_that_is_asked_for_and_not_installed_says_what_to_install(
    fields: dict[str, Any], package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(opening, "_installed", lambda name: False)
    with pytest.raises(ConfigError, match=rf"pip install 'hermes-rl\[{package}\]'"):
        async with open_sinks(config(**fields), "env", tmp_path):
            pass
    async with open_sinks(config(), "env", tmp_path) as sinks:
        assert sinks.on == []


def test_no_secret_is_in_the_configuration_that_sinks_save() -> None:
    shown = saved_config(
        config(
            user_endpoint=APIServerConfig(base_url="http://me:secret@host/v1", api_key="sk-secret"),
            tool_settings={"web": {"api_key": "env:TAVILY"}, "mcp": {"env": {"HF_TOKEN": "hf-secret"}}},
            extra_body={"headers": [{"Authorization": "Bearer secret"}], "top_k": 5},
        )
    )
    assert "secret" not in json.dumps(shown)
    assert shown["user_endpoint"]["base_url"] == f"http://{HIDDEN}@host/v1"
    assert shown["tool_settings"] == {"web": {"api_key": "env:TAVILY"}, "mcp": {"env": {"HF_TOKEN": HIDDEN}}}
    assert (shown["tokenizer_name"], shown["max_token_length"]) == (config().tokenizer_name, 2048)


# --- the real wandb, offline ---


def transaction_log(folder: Path) -> list[Any]:
    """The records of an offline run: protobuf messages in LevelDB's log format, after a header of wandb's own."""
    from wandb.proto import wandb_internal_pb2 as messages

    (path,) = folder.glob("wandb/offline-run-*/run-*.wandb")
    data, at, parts, found = path.read_bytes(), 7, b"", []
    assert data.startswith(b":W&B")
    while at + 7 <= len(data):
        if (left := 32_768 - at % 32_768) < 7:
            at += left
            continue
        _, size, kind = struct.unpack_from("<IHB", data, at)
        chunk = data[at + 7 : at + 7 + size]
        at += 7 + size
        parts = chunk if kind in {1, 2} else parts + chunk
        if kind in {1, 4}:
            found.append(messages.Record.FromString(parts))  # type: ignore[attr-defined]
    return found


def history(folder: Path) -> list[dict[str, Any]]:
    """What wandb has at each step."""
    return [
        {"/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in transaction_log(folder)
        if record.WhichOneof("record_type") == "history"
    ]


PROGRAM = """
import asyncio, sys
from pathlib import Path
from hermes_rl import APIServerConfig, HermesAgentEnvConfig
from hermes_rl.environment.sinks import open_sinks

assert not {"wandb", "trackio"} & sys.modules.keys()

async def main(folder):
    endpoint = APIServerConfig(base_url="http://127.0.0.1:9/v1", api_key="sk-literal")
    config = HermesAgentEnvConfig(use_wandb=True, wandb_name="my run", group_size=3, user_endpoint=endpoint)
    async with open_sinks(config, "env", folder) as sinks:
        sinks.log({"train": {"mean_score": 0.25}, "train/tool_error_details": "[turn 1] x", "none": None})
        sinks.rollouts([("the whole text", 1.0), ("another", 0.0)])
        sinks.log({"eval/mean_reward": 0.75}, step=20)
        sinks.log({"late": 1}, step=10)
        assert sinks.on == ["wandb"], sinks.on
    assert not sinks.failures, sinks.failures

asyncio.run(main(Path(sys.argv[1])))
print("done")
"""


@pytest.fixture
def unconnected() -> Iterator[dict[str, str]]:
    """Variables that send every request of a program to a proxy of ours, which must hear nothing."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = f"http://127.0.0.1:{proxy.getsockname()[1]}"
        yield dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy"), address)
        proxy.setblocking(False)
        with pytest.raises(BlockingIOError):
            proxy.accept()


def run_program(program: str, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {"WANDB_DATA_DIR": str(folder.parent), "WANDB_CACHE_DIR": str(folder.parent)}
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", program, folder, *arguments],
        env={**os.environ, **kept, **variables}, capture_output=True, check=False, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("mode", [{"WANDB_MODE": "offline"}, {}], ids=["by variable", "for want of a key"])
def test_wandb_offline_holds_what_was_logged_and_connects_to_nobody(
    mode: dict[str, str], tmp_path: Path, unconnected: dict[str, str]
) -> None:
    folder = tmp_path / "data"
    done = run_program(PROGRAM, folder, "--openai.api_key", "sk-argument", WANDB_PROJECT="mine", **mode, **unconnected)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert f"wandb keeps the run offline; to upload it: wandb sync {folder}" in done.stderr
    first, second = history(folder)
    assert (first["_step"], first["train/mean_score"], first["train/tool_error_details"]) == (0, 0.25, "[turn 1] x")
    assert (second["_step"], second["eval/mean_reward"], second["late"]) == (20, 0.75, 1)
    assert "none" not in first
    (table,) = folder.glob("wandb/offline-run-*/files/media/table/train/rollouts_*.json")
    assert json.loads(table.read_text()) == {
        "columns": ["text", "score"], "data": [["the whole text", 1.0], ["another", 0.0]],
    }  # fmt: skip
    (run,) = [record.run for record in transaction_log(folder) if record.WhichOneof("record_type") == "run"]
    saved = {item.key: json.loads(item.value_json) for item in run.config.update}
    assert (run.display_name, run.run_group, run.project) == ("my run", "env", "mine")
    assert (saved["group_size"], saved["user_endpoint"]["api_key"]) == (3, HIDDEN)
    kept = b"".join(file.read_bytes() for file in folder.rglob("*") if file.is_file())
    assert b"sk-literal" not in kept and b"sk-argument" not in kept


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
    assert b"Enter your choice" not in said and b"keeps the run offline" in said


@pytest.mark.slow
def test_wandb_that_cannot_be_reached_keeps_the_run_offline(tmp_path: Path) -> None:
    hasty = "from hermes_rl.environment.sinks import wandb_run\nwandb_run.INIT_SECONDS = 1.0\n"
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    nobody = f"http://127.0.0.1:{port}"
    variables = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": nobody, "WANDB_ERROR_REPORTING": "false"}
    done = run_program(hasty + PROGRAM, tmp_path / "data", **variables)
    assert done.returncode == 0, done.stderr
    assert "wandb could not begin online" in done.stderr and KEY not in done.stderr
    assert [row["_step"] for row in history(tmp_path / "data")] == [0, 20]


async def test_two_environments_in_one_process_have_runs_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"WANDB_MODE": "offline", "WANDB_DATA_DIR": tmp_path, "WANDB_CACHE_DIR": tmp_path}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    async with open_sinks(config(), "one", tmp_path / "1") as one, open_sinks(config(), "two", tmp_path / "2") as two:
        import wandb

        assert wandb.run is None
        one.log({"a": 1, "table": wandb.Table(columns=["x"], data=[[5]])})
        two.log({"a": 2})
    # wandb's own process writes on after finish(), for some milliseconds; at exit it is waited for, as here.
    await asyncio.to_thread(wandb.teardown)
    assert [row["a"] for row in history(tmp_path / "1")] == [1]
    assert [row["a"] for row in history(tmp_path / "2")] == [2]
    assert lines(tmp_path / "1" / "one.metrics.jsonl")[0]["table"] == {"columns": ["x"], "data": [[5]]}


# --- the real trackio ---

TRACKIO_PROGRAM = """
import asyncio, json, sys
from pathlib import Path
from hermes_rl import HermesAgentEnvConfig
from hermes_rl.environment.sinks import open_sinks

async def main(folder):
    config = HermesAgentEnvConfig(metric_sinks=["trackio"], use_wandb=False, wandb_name="my run", group_size=3)
    async with open_sinks(config, "env", folder) as sinks:
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
