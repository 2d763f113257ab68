"""Starting, watching and ending an engine: SkyRL's API and the process that computes, one group of processes.

Always true: it listens on this machine only, nothing of it outlives its API or the command it was started by, and it
counts as started only when it can answer.
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

from hermes_rl import jsontext
from hermes_rl.errors import ConfigError, HermesRLError
from hermes_rl.processes import moment_of_start
from hermes_rl.training.selfhost.environment import EngineEnvironment, clean_environ
from hermes_rl.training.selfhost.places import EnginePlaces, engines_home
from hermes_rl.training.selfhost.record import EngineRecord, read_record

INSIDE = Path(__file__).with_name("inside")
HOST = "127.0.0.1"
# A connection of somebody else may have that port for a moment.
LAST_PORT_S = 3.0
# A model of some gigabytes on a slow disk; 5 to 40 s were measured for small ones.
READY_DEADLINE_S = 1800.0
# How long the last one of the name may take to notice that it is to end.
LOCK_DEADLINE_S = 5.0
END_DEADLINE_S = 15.0
# The SDK sends a heartbeat every 10 s.
SESSION_TIMEOUT_S, SESSION_LOOK_S = 60, 5


class EngineStartError(HermesRLError):
    """The engine ended before it could answer; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class EngineSettings:
    model: str
    name: str = "default"
    port: int | None = None
    rank: int = 32
    adapters: int = 8
    micro_batch: int = 8
    samples: int = 8
    detach: bool = False

    def arguments(self) -> list[str]:
        """SkyRL's own, and where it keeps things."""
        places = EnginePlaces(self.name)
        backend = {
            "max_lora_adapters": self.adapters,
            "max_lora_rank": self.rank,
            "train_micro_batch_size": self.micro_batch,
            "sample_max_num_sequences": self.samples,
        }
        pairs = {
            "--base-model": self.model,
            "--database-url": f"sqlite:///{places.database}",
            "--checkpoints-base": str(places.checkpoints),
            "--session-timeout-sec": str(SESSION_TIMEOUT_S),
            "--session-cleanup-interval-sec": str(SESSION_LOOK_S),
            "--backend-config": jsontext.dumps(backend).decode(),
        }
        return [word for pair in pairs.items() for word in pair]


@dataclass(frozen=True, slots=True)
class RunningEngine:
    record: EngineRecord
    process: subprocess.Popen[bytes]


def start_engine(settings: EngineSettings, environment: EngineEnvironment) -> RunningEngine:
    """Its processes run when this returns; `await_ready` says when it can answer."""
    places = EnginePlaces(settings.name)
    places.checkpoints.mkdir(parents=True, exist_ok=True)
    known = read_record(settings.name)
    with places.lock.open("w") as lock:
        # First: an engine of the name that is ending holds its port until then.
        _take(lock.fileno(), settings.name, known)
        with _listening(settings.port, known.port if known else 0) as door:
            command = [str(environment.python), "-m", "hermes_skyrl", "api", "--listen", str(door.fileno())]
            if not settings.detach:
                command += ["--parent", str(os.getpid())]
            with places.log.open("ab") as log:
                process = subprocess.Popen(
                    [*command, *settings.arguments()],
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    pass_fds=(door.fileno(), lock.fileno()),
                    env=_environ(environment),
                    cwd=places.folder,
                    start_new_session=True,
                )
            record = EngineRecord(
                name=settings.name,
                pid=process.pid,
                began=moment_of_start(process.pid) or "",
                port=int(door.getsockname()[1]),
                model=settings.model,
                log=str(places.log),
            )
            record.write()
    return RunningEngine(record, process)


def await_ready(running: RunningEngine, say: Callable[[str], None]) -> None:
    """Until it can answer; EngineStartError when it ends before."""
    began = time.monotonic()
    while time.monotonic() - began < READY_DEADLINE_S:
        if running.process.poll() is not None:
            raise EngineStartError(
                f"the engine ended with exit status {running.process.returncode} before it could answer; "
                f"{running.record.log} ends:\n{log_end(Path(running.record.log))}"
            )
        if answers(running.record.url):
            return
        say(f"loading the model, {time.monotonic() - began:.0f} s")
        time.sleep(0.1)
    end_engine(running.record)
    raise EngineStartError(
        f"the engine could not answer within {READY_DEADLINE_S:g} s and was ended; its log: {running.record.log}"
    )


def answers(url: str, seconds: float = 5.0) -> bool:
    """Whether an engine there takes requests."""
    # No proxy stands between us and our own server.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        for path in ("healthz", "get_server_capabilities"):
            with opener.open(f"{url}/api/v1/{path}", timeout=seconds):
                pass
    except (OSError, urllib.error.URLError):
        return False
    return True


def end_engine(record: EngineRecord) -> bool:
    """Whether it was running; nothing of its group is left."""
    if not record.alive():
        return False
    with suppress(ProcessLookupError):
        os.kill(record.pid, signal.SIGTERM)
    deadline = time.monotonic() + END_DEADLINE_S
    while record.alive() and time.monotonic() < deadline:
        time.sleep(0.05)
    # Its engine, should that have outlived it, is in its group; while one member is left the id is not used again.
    with suppress(ProcessLookupError):
        os.killpg(record.pid, signal.SIGKILL)
    return True


def log_end(log: Path, lines: int = 20) -> str:
    # SkyRL fills its lines up to the width of the terminal that it takes its log for.
    return "\n".join(line.rstrip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])


def _listening(port: int | None, last: int) -> socket.socket:
    """A socket on the port asked for; else on the name's last one if that is free, so that clients find it again."""
    until = time.monotonic() + (LAST_PORT_S if port is None and last else 0.0)
    wanted = last if port is None else port
    while True:
        door = socket.socket()
        door.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            door.bind((HOST, wanted))
        except OSError as error:
            door.close()
            if error.errno != errno.EADDRINUSE or port is not None:
                raise ConfigError(
                    f"--port {wanted}: {error.strerror}; name another, or leave it out for a free one"
                ) from error
        else:
            door.listen(128)
            return door
        if time.monotonic() < until:
            time.sleep(0.05)
        else:
            wanted = 0


def _take(lock: int, name: str, known: EngineRecord | None) -> None:
    """The name's lock, which the engine's API inherits and holds while it lives."""
    deadline = time.monotonic() + LOCK_DEADLINE_S
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                where = f" at {known.url}, with {known.model}" if known else ""
                raise ConfigError(
                    f"the engine {name!r} is running{where}; `hermes-rl engine stop {name}` ends it, another --name "
                    "starts one beside it"
                ) from None
            time.sleep(0.1)
        else:
            return


def _environ(environment: EngineEnvironment) -> dict[str, str]:
    cache = engines_home() / "compiled" / environment.key
    defaults = {
        "JAX_COMPILATION_CACHE_DIR": str(cache),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
        # Its log lines are wrapped at the width of a terminal, which it has none of.
        "COLUMNS": "240",
    }
    return {**defaults, **clean_environ(), "PYTHONPATH": str(INSIDE), "PYTHONUNBUFFERED": "1"}
