"""The two servers of trajectory_api.py as processes on loopback, and the bare stores beside them.

Always true: a process is ended, and its files are gone, when its block ends; a bare store writes the very bytes the
API is posted, each group in one transaction that is on disk before the next of its connection begins.
"""

import json
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from benchmarks.trajectory_api_client import Environment, call, connect
from hermes_rl.store.database.sqlite_log import CHECKPOINT_PAGES, PAGE_BYTES

ROOT = Path(__file__).resolve().parents[1]
# PostgreSQL's own user must be able to enter it.
PLACE = Path("/var/tmp")
READY_S = 60.0
SEQUENCES = 128


class Process(NamedTuple):
    url: str
    pid: int

    def resident_mb(self) -> float:
        [line] = [line for line in Path(f"/proc/{self.pid}/status").read_text().splitlines() if "VmRSS" in line]
        return int(line.split()[1]) / 1024


@contextmanager
def our_api(database: str | Path) -> Iterator[Process]:
    program = Path(sys.executable).with_name("hermes-rl")
    command: list[str | Path] = [program, "api", "--port", "0", "--database", str(database), "--json"]
    with _running(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield Process(json.loads(process.stdout.readline())["url"], process.pid)


@contextmanager
def run_api(environment: Path) -> Iterator[Process]:
    """Atropos' own, from the environment that has it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command: list[str | Path] = [environment / "bin" / "run-api", "--host", "127.0.0.1", "--port", str(port)]
    with _running(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        deadline = time.monotonic() + READY_S
        while True:
            try:
                call(connect(f"http://127.0.0.1:{port}"), "GET", "/")
                break
            except OSError:
                if time.monotonic() > deadline or process.poll() is not None:
                    raise
                time.sleep(0.1)
        yield Process(f"http://127.0.0.1:{port}", process.pid)


@contextmanager
def _running(command: Sequence[str | Path], **options: Any) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, **options) as process:
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(READY_S)
            except subprocess.TimeoutExpired:
                process.kill()


def atropos_environment() -> Path:
    """Made on first use, which takes minutes."""
    made = subprocess.run(
        [ROOT / "scripts" / "engine_environment", "atropos"], check=True, stdout=subprocess.PIPE, text=True
    )
    return Path(made.stdout.strip())


def start_natively(url: str) -> Environment:
    """Register a trainer and an environment."""
    connection = connect(url)
    call(connection, "POST", "/v1/trainers", {"name": "bench", "batch_size": SEQUENCES, "needs": []})
    number = json.loads(call(connection, "POST", "/v1/environments", {"name": "bench"}))["id"]
    return Environment(url, f"/v1/environments/{number}/groups", "binary", number)


def start_as_atropos(url: str, tokens: int) -> Environment:
    """The same as Atropos' trainers and environments do it, on either server."""
    connection = connect(url)
    trainer = {"wandb_group": "g", "wandb_project": "p", "batch_size": SEQUENCES, "max_token_len": tokens}
    saving = {"checkpoint_dir": "", "save_checkpoint_interval": 0, "starting_step": 0, "num_steps": 1_000_000}
    call(connection, "POST", "/register", trainer | saving)
    call(connection, "GET", "/batch")
    environment = {"max_token_length": tokens, "desired_name": "bench", "weight": 1.0, "group_size": 16}
    number = json.loads(call(connection, "POST", "/register-env", environment))["env_id"]
    return Environment(url, "/scored_data", "json", number)


def batch_natively(url: str) -> tuple[float, int]:
    """Lease a batch and read it; seconds to the last byte, and how many bytes. It is acknowledged afterwards."""
    connection = connect(url)
    began = time.perf_counter()
    batch = json.loads(call(connection, "POST", "/v1/batches", {"trainer": "bench"}))
    size = len(call(connection, "GET", f"/v1/batches/{batch['id']}/groups"))
    seconds = time.perf_counter() - began
    call(connection, "POST", "/v1/batches/acknowledge", {"batches": [batch["id"]]})
    return seconds, size


def batch_as_atropos(url: str) -> tuple[float, int]:
    connection = connect(url)
    began = time.perf_counter()
    body = call(connection, "GET", "/batch")
    seconds = time.perf_counter() - began
    if body.startswith(b'{"batch":null'):
        raise RuntimeError("there was no batch")
    return seconds, len(body)


def bare_sqlite(groups: list[bytes]) -> float:
    """Groups a second: WAL, full sync, the store's page size, one INSERT of the blob in each transaction."""
    with tempfile.TemporaryDirectory(prefix="hermes-rl-bare-", dir=PLACE) as place:
        connection = sqlite3.connect(f"{place}/bare.db", isolation_level=None)
        pragmas = ("journal_mode = WAL", "synchronous = FULL", f"wal_autocheckpoint = {CHECKPOINT_PAGES}")
        for pragma in (f"page_size = {PAGE_BYTES}", *pragmas):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("CREATE TABLE bare (place INTEGER PRIMARY KEY, data BLOB NOT NULL)")
        began = time.perf_counter()
        for data in groups:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("INSERT INTO bare (data) VALUES (?)", (data,))
            connection.execute("COMMIT")
        seconds = time.perf_counter() - began
        connection.close()
    return len(groups) / seconds


def bare_postgres(address: str, groups: list[bytes], connections: int) -> float:
    """Groups a second: one INSERT of the blob in each transaction, on so many connections with a thread each."""
    with psycopg.connect(address, autocommit=True) as first:
        first.execute("CREATE TABLE bare (place BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, data BYTEA NOT NULL)")
        first.execute("ALTER TABLE bare ALTER COLUMN data SET STORAGE EXTERNAL")
    waiting = iter(groups)
    lock = threading.Lock()

    def write(connection: "psycopg.Connection[Any]") -> None:
        while True:
            with lock:
                data = next(waiting, None)
            if data is None:
                return
            connection.execute("INSERT INTO bare (data) VALUES (%b)", (data,))

    opened = [psycopg.connect(address, autocommit=True) for _ in range(connections)]
    threads = [threading.Thread(target=write, args=(connection,)) for connection in opened]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    seconds = time.perf_counter() - began
    for connection in opened:
        connection.close()
    return len(groups) / seconds
