import fcntl
import json
import os
import shutil
import socket
import threading
from pathlib import Path

import pytest

from hermes_rl.core.errors import ConfigError
from hermes_rl.training.engines.skyrl import process
from hermes_rl.training.engines.skyrl.paths import EnginePaths
from hermes_rl.training.engines.skyrl.process import EngineSettings, log_tail, start_engine, stop_engine
from hermes_rl.training.engines.skyrl.record import EngineRecord
from hermes_rl.training.engines.skyrl.virtualenv import EngineVenv

NOWHERE = EngineVenv(Path("/no/environment"))


def test_the_options_become_skyrls() -> None:
    settings = EngineSettings(
        "/model", name="n", rank=16, adapters=9, micro_batch=2, samples=4, tensor_parallel=4, fsdp=2, max_length=4096
    )
    words = settings.arguments()
    given = dict(zip(words[::2], words[1::2], strict=True))
    assert given["--base-model"] == "/model"
    assert given["--database-url"] == f"sqlite:///{EnginePaths('n').database}"
    assert json.loads(given["--backend-config"]) == {
        "max_lora_adapters": 9,
        "max_lora_rank": 16,
        "train_micro_batch_size": 2,
        "sample_max_num_sequences": 4,
        "tensor_parallel_size": 4,
        "fully_sharded_data_parallel_size": 2,
        "expert_parallel_size": 1,
        "shard_attention_heads": True,
        "gradient_checkpointing": False,
        "loss_chunk_size": 1024,
    }
    assert given["--max-length"] == "4096"


def test_a_port_that_is_taken_is_refused() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="omit it to use a free one"):
            start_engine(EngineSettings("/model", port=taken.getsockname()[1]), NOWHERE)


def test_it_listens_where_it_did_the_last_time() -> None:
    with process._listen(None, 0) as first:
        port = first.getsockname()[1]
    with process._listen(None, port) as again:
        assert again.getsockname() == ("127.0.0.1", port)


def test_it_waits_for_the_port_of_one_that_is_ending(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(shutil.which("true") or "true")
    places = EnginePaths("one")
    places.folder.mkdir(parents=True)
    door = process._listen(None, 0)
    port = door.getsockname()[1]
    EngineRecord("one", os.getpid(), "", port, "/model", "/log").write()
    held = places.lock.open("w")
    fcntl.flock(held, fcntl.LOCK_EX)

    def end() -> None:
        held.close()
        door.close()

    ending = threading.Timer(0.3, end)
    ending.start()
    started = start_engine(EngineSettings("/model", name="one"), EngineVenv(tmp_path))
    ending.join()
    started.process.wait()
    assert started.record.port == port


def test_it_listens_elsewhere_when_the_last_port_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "PORT_RETRY_S", 0.1)
    with process._listen(None, 0) as taken, process._listen(None, taken.getsockname()[1]) as other:
        assert other.getsockname()[1] != taken.getsockname()[1]


def test_a_name_that_runs_is_not_started_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "LOCK_DEADLINE_S", 0.1)
    places = EnginePaths("one")
    places.folder.mkdir(parents=True)
    EngineRecord("one", os.getpid(), "", 4321, "/model", "/log").write()
    with places.lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(ConfigError, match=r"'one' is already running at http://127\.0\.0\.1:4321, with /model"):
            start_engine(EngineSettings("/model", name="one"), NOWHERE)


def test_no_other_process_of_the_same_id_is_ended() -> None:
    assert not stop_engine(EngineRecord("one", os.getpid(), "at another moment", 1, "/model", "/log"))


def test_nobody_there_does_not_answer() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        assert not process.is_ready(f"http://127.0.0.1:{free.getsockname()[1]}", seconds=1)


def test_the_end_of_a_log_is_its_last_lines(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("\n".join(map(str, range(100))))
    assert log_tail(tmp_path / "log", 3) == "97\n98\n99"


def test_a_cache_that_the_user_chose_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "/chosen")
    assert process._environ(NOWHERE, EngineSettings("/model"))["JAX_COMPILATION_CACHE_DIR"] == "/chosen"


def test_several_devices_on_a_cpu_are_virtual(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_one=1")
    several = process._environ(NOWHERE, EngineSettings("/model", tensor_parallel=2, fsdp=4))
    assert several["XLA_FLAGS"] == "--xla_one=1 --xla_force_host_platform_device_count=8"
    assert several["JAX_PLATFORMS"] == "cpu"
    on_gpus = process._environ(NOWHERE, EngineSettings("/model", tensor_parallel=2, cuda=True))
    assert (on_gpus["XLA_FLAGS"], on_gpus["JAX_PLATFORMS"]) == ("--xla_one=1", "cuda")
