"""`kill -9` of each process of the engine: nothing of it is left, and the same command goes on with what was saved."""

import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.error import HTTPError

import numpy as np
import pytest

from hermes_rl.core.process_identity import process_start_time
from tests.engines.skyrl.conftest import OPTIONS
from tests.engines.skyrl.tiny_training import TinyTraining, post
from tests.support.skyrl_engine import SkyrlEngine, skyrl_environment

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def engine(tiny_model: Path, tmp_path: Path) -> Iterator[SkyrlEngine]:
    with SkyrlEngine(tiny_model, tmp_path, *OPTIONS) as engine:
        yield engine


def gone(*pids: int, within: float = 20.0) -> bool:
    deadline = time.monotonic() + within
    while time.monotonic() < deadline:
        if all(process_start_time(pid) is None for pid in pids):
            return True
        time.sleep(0.05)
    return False


def test_the_same_command_goes_on_with_what_was_saved_before_it_was_killed(engine: SkyrlEngine) -> None:
    training = TinyTraining.begun(engine.url, engine.model)
    training.step()
    state, sampler, expected = training.save_state(), training.save_sampler(), training.logprobs()
    training.step()
    after_a_step = training.logprobs()
    before, api, worker = engine.url, engine.pid, engine.worker
    # Requests of the life that is about to end: one that takes a slot, and a checkpoint that will be torn.
    os.kill(worker, signal.SIGSTOP)
    session = post(f"{engine.url}/api/v1/create_session", {"tags": [], "sdk_version": "0.36.0"})["session_id"]
    asked = {"session_id": session, "base_model": engine.model, "lora_config": {"rank": 4}}
    post(f"{engine.url}/api/v1/create_model", asked)
    saving = {"model_id": training.model_id, "path": "torn", "seq_id": 99}
    post(f"{engine.url}/api/v1/save_weights", saving)
    torn = engine.log.parent / "checkpoints" / training.model_id / "torn.tar.gz.part"
    torn.mkdir()
    os.kill(worker, signal.SIGCONT)
    engine.kill()
    assert gone(api, worker)

    engine.start()

    assert engine.url == before
    assert not torn.exists()
    with closing(sqlite3.connect(engine.log.with_name("tinker.db"))) as database:
        assert database.execute("SELECT count(*) FROM futures WHERE status = 'PENDING'").fetchone() == (0,)
        assert database.execute("SELECT count(*) FROM checkpoints WHERE status = 'PENDING'").fetchone() == (0,)
    # As the SDK does whose answer got lost. After a 409 it would go on for five minutes.
    with pytest.raises(HTTPError, match="400"):
        post(f"{engine.url}/api/v1/save_weights", saving)
    fresh = TinyTraining.begun(engine.url, engine.model)
    restored = fresh.from_state(state)
    assert np.array_equal(restored.logprobs(), expected)
    assert np.abs(fresh.sampler_logprobs(sampler) - expected).max() < 1e-5
    restored.step()
    assert np.array_equal(restored.logprobs(), after_a_step)
    fresh.close()
    training.close()


def test_an_engine_that_cannot_load_its_model_says_why(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path / "model")
    (tmp_path / "model" / "model.safetensors").write_bytes(b"torn")
    environment = str(skyrl_environment())
    command = [sys.executable, "-m", "hermes_rl", "engine", "start", "--environment", environment, "--model", "model"]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"HERMES_HOME": str(tmp_path), "JAX_COMPILATION_CACHE_DIR": f"{environment}/compiled"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 1
    assert "before it was ready" in done.stderr and "SafetensorError" in done.stderr


@pytest.mark.parametrize("victim", ["api", "worker"])
def test_no_process_outlives_another(engine: SkyrlEngine, victim: str) -> None:
    api, worker = engine.pid, engine.worker
    os.kill(api if victim == "api" else worker, signal.SIGKILL)
    assert gone(api, worker)
    assert engine.process.wait(30) == 1


def test_one_that_was_left_running_is_ended_by_its_name(tiny_model: Path, tmp_path: Path) -> None:
    environment = skyrl_environment()
    variables = {"HERMES_HOME": str(tmp_path), "JAX_COMPILATION_CACHE_DIR": str(environment / "compiled")}

    def hermes_rl(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "hermes_rl", "engine", *words],
            env=os.environ | variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    start = ("start", "--model", str(tiny_model), "--environment", str(environment), "--name", "left", "--detach")
    said = json.loads(hermes_rl(*start, "--json", *OPTIONS).stdout)
    assert said["model"] == str(tiny_model)
    [row] = json.loads(hermes_rl("status", "--json").stdout)
    assert (row["name"], row["state"], row["url"]) == ("left", "ready", said["url"])
    assert "is already running" in hermes_rl(*start).stderr
    assert "Initialized TinkerEngine" in hermes_rl("logs", "left").stdout
    assert hermes_rl("stop", "left").returncode == 0
    assert gone(said["pid"])
    [row] = json.loads(hermes_rl("status", "--json").stdout)
    assert row["state"] == "ended"
