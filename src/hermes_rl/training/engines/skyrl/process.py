"""Starts, monitors and stops an engine: SkyRL's API process and its compute process, in one process group.

Always true: it listens on loopback only; no process outlives the API, or the starting command unless detached; it
counts as started only when it is ready.
"""

import errno
import fcntl
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hermes_rl.core import fast_json
from hermes_rl.core.child_python import python_command
from hermes_rl.core.errors import ConfigError, HermesRLError
from hermes_rl.core.private_files import open_private, private_folder
from hermes_rl.core.process_identity import process_start_time
from hermes_rl.training.engines.skyrl.paths import EnginePaths, engines_home
from hermes_rl.training.engines.skyrl.record import EngineRecord, read_record
from hermes_rl.training.engines.skyrl.virtualenv import EngineVenv, clean_environ
from hermes_rl.training.sizing.model_shape import Layout

INSIDE = Path(__file__).with_name("inside")
HOST = "127.0.0.1"
# The flag of XLA that makes several devices of one CPU.
VIRTUAL_DEVICES = "--xla_force_host_platform_device_count"
# Another connection may briefly occupy the previous port.
PORT_RETRY_S = 3.0
# Enough for several gigabytes on a slow disk; small models take 5 to 40 s (measured).
READY_DEADLINE_S = 1800.0
# A previous engine of the same name may take this long to exit.
LOCK_DEADLINE_S = 5.0
STOP_DEADLINE_S = 15.0
# An engine is ready within far fewer bytes of its log.
LOG_HEAD = 256 * 1024
# The SDK sends a heartbeat every 10 s.
SESSION_TIMEOUT_S, SESSION_CLEANUP_S = 60, 5


class EngineStartError(HermesRLError):
    """The engine exited before it was ready; the message includes the end of its log."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    model: str
    name: str = "default"
    port: int | None = None
    rank: int = 32
    adapters: int = 8
    micro_batch: int = 8
    samples: int = 8
    tensor_parallel: int = 1
    fsdp: int = 1
    expert_parallel: int = 1
    replicate_attention: bool = False
    gradient_checkpointing: bool = False
    loss_chunk: int = 1024
    max_length: int | None = None
    cuda: bool = False
    detach: bool = False

    @property
    def layout(self) -> Layout:
        return Layout(self.tensor_parallel, self.fsdp, self.expert_parallel, self.replicate_attention)

    def arguments(self) -> list[str]:
        """Command-line arguments for SkyRL."""
        paths = EnginePaths(self.name)
        backend = {
            "max_lora_adapters": self.adapters,
            "max_lora_rank": self.rank,
            "train_micro_batch_size": self.micro_batch,
            "sample_max_num_sequences": self.samples,
            "tensor_parallel_size": self.tensor_parallel,
            "fully_sharded_data_parallel_size": self.fsdp,
            "expert_parallel_size": self.expert_parallel,
            "shard_attention_heads": not self.replicate_attention,
            "gradient_checkpointing": self.gradient_checkpointing,
            "loss_chunk_size": self.loss_chunk,
        }
        pairs = {
            "--base-model": self.model,
            "--database-url": f"sqlite:///{paths.database}",
            "--checkpoints-base": str(paths.checkpoints),
            "--session-timeout-sec": str(SESSION_TIMEOUT_S),
            "--session-cleanup-interval-sec": str(SESSION_CLEANUP_S),
            "--backend-config": fast_json.dumps(backend).decode(),
        }
        if self.max_length is not None:
            pairs["--max-length"] = str(self.max_length)
        return [word for pair in pairs.items() for word in pair]


@dataclass(frozen=True, slots=True)
class RunningEngine:
    record: EngineRecord
    process: subprocess.Popen[bytes]
    log_start: int = 0
    """Where its lines begin in the log, which earlier engines of the same name wrote too."""


def start_engine(settings: EngineSettings, environment: EngineVenv) -> RunningEngine:
    """Start the processes; `wait_until_ready` waits for the engine to be ready."""
    paths = EnginePaths(settings.name)
    private_folder(paths.checkpoints)
    known = read_record(settings.name)
    with open(paths.lock, "w", opener=open_private) as lock:
        # Lock first: an exiting engine of the same name holds its port until then.
        _acquire_lock(lock.fileno(), settings.name, known)
        with _listen(settings.port, known.port if known else 0) as listener:
            command = python_command(
                "-m", "hermes_skyrl", "api", "--listen", str(listener.fileno()), python=environment.python
            )
            if not settings.detach:
                command += ["--parent", str(os.getpid())]
            with open(paths.log, "ab", opener=open_private) as log:
                log_start = log.tell()
                process = subprocess.Popen(
                    [*command, *settings.arguments()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(listener.fileno(), lock.fileno()),
                    env=_environ(environment, settings),
                    cwd=paths.folder,
                    start_new_session=True,
                )
            record = EngineRecord(
                name=settings.name,
                pid=process.pid,
                began=process_start_time(process.pid) or "",
                port=int(listener.getsockname()[1]),
                model=settings.model,
                log=str(paths.log),
            )
            record.write()
    return RunningEngine(record, process, log_start)


def wait_until_ready(running: RunningEngine, progress: Callable[[str], None]) -> None:
    """Raises EngineStartError if the engine exits first."""
    began = time.monotonic()
    while time.monotonic() - began < READY_DEADLINE_S:
        if running.process.poll() is not None:
            raise EngineStartError(
                f"the engine exited with status {running.process.returncode} before it was ready; "
                f"{running.record.log} ends:\n{log_tail(Path(running.record.log))}"
            )
        if is_ready(running.record.url):
            return
        progress(f"{engine_stage(Path(running.record.log), running.log_start)}, {time.monotonic() - began:.0f} s")
        time.sleep(0.1)
    stop_engine(running.record)
    raise EngineStartError(
        f"the engine was not ready within {READY_DEADLINE_S:g} s and was stopped; see {running.record.log}"
    )


# What the engine is doing after each of these lines of its log.
STAGES = (
    (b"Started background engine", "starting Python and JAX"),
    (b"Using local model", "loading the weights"),
    (b"Downloading", "downloading the model"),
    (b"Initialized base model", "starting the API"),
)


def engine_stage(log: Path, start: int = 0) -> str:
    """What a starting engine is doing, according to its log from this position on."""
    try:
        with log.open("rb") as file:
            file.seek(start)
            text = file.read(LOG_HEAD)
    except OSError:
        text = b""
    at, stage = max((text.rfind(mark), stage) for mark, stage in STAGES)
    return stage if at >= 0 else "starting its processes"


def is_ready(url: str, seconds: float = 5.0) -> bool:
    # Bypass proxies for loopback.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        for path in ("healthz", "get_server_capabilities"):
            with opener.open(f"{url}/api/v1/{path}", timeout=seconds):
                pass
    except (OSError, urllib.error.URLError):
        return False
    return True


def stop_engine(record: EngineRecord) -> bool:
    """Stop the whole process group; returns whether the engine was running."""
    if not record.alive():
        return False
    with suppress(ProcessLookupError):
        os.kill(record.pid, signal.SIGTERM)
    deadline = time.monotonic() + STOP_DEADLINE_S
    while record.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    # A surviving compute process is in the same group; the group id is not reused while a member is left.
    with suppress(ProcessLookupError):
        os.killpg(record.pid, signal.SIGKILL)
    return True


def log_tail(log: Path, lines: int = 20) -> str:
    # SkyRL pads its lines to the terminal width.
    return "\n".join(line.rstrip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def _listen(port: int | None, last: int) -> socket.socket:
    """Listen on `port`; without one, on the previous port if it is free, so that clients find the engine again."""
    until = time.monotonic() + (PORT_RETRY_S if port is None and last else 0.0)
    candidate = last if port is None else port
    while True:
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((HOST, candidate))
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE or port is not None:
                raise ConfigError(
                    f"--port {candidate}: {error.strerror}; choose another, or omit it to use a free one"
                ) from error
        else:
            listener.listen(128)
            return listener
        if time.monotonic() < until:
            time.sleep(0.05)
        else:
            candidate = 0


def _acquire_lock(lock: int, name: str, known: EngineRecord | None) -> None:
    """Acquire the engine's lock, which the API process inherits and holds while it runs."""
    deadline = time.monotonic() + LOCK_DEADLINE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                where = f" at {known.url}, with {known.model}" if known else ""
                raise ConfigError(
                    f"the engine {name!r} is already running{where}; stop it with `hermes-rl engine stop {name}`, or "
                    "start another one with --name"
                ) from None
            time.sleep(0.1)
        else:
            return


def _environ(environment: EngineVenv, settings: EngineSettings) -> dict[str, str]:
    cache = engines_home() / "compiled" / environment.key
    defaults = {
        # With JAX's own choice, a GPU that it cannot use would go unnoticed.
        "JAX_PLATFORMS": "cuda" if settings.cuda else "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        # SkyRL wraps log lines at the terminal width.
        "COLUMNS": "240",
    }
    given = clean_environ()
    if settings.layout.devices > 1 and not settings.cuda and VIRTUAL_DEVICES not in given.get("XLA_FLAGS", ""):
        given["XLA_FLAGS"] = f"{given.get('XLA_FLAGS', '')} {VIRTUAL_DEVICES}={settings.layout.devices}".strip()
    return {**defaults, **given, "PYTHONPATH": str(INSIDE), "PYTHONUNBUFFERED": "1"}
