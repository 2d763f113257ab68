"""A real PostgreSQL for one test run: in a folder of its own, on a port that was free, gone when it is closed."""

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self

import psycopg

from tests.support.ports import free_port

# A unix socket's path holds 107 bytes, and PostgreSQL's own user must be able to enter: pytest's tmp_path is neither.
PLACE = Path("/var/tmp")
READY_S = 60.0


class SmallDisk(NamedTuple):
    address: str
    place: Path

    def grow(self, megabytes: int) -> None:
        subprocess.run(["mount", "-o", f"remount,size={megabytes}m", self.place], check=True)


class PostgresServer:
    """`with PostgresServer() as server`; PostgreSQL refuses to run as root, so root starts it as `postgres`."""

    def __init__(self) -> None:
        self._programs = programs()
        self._user = "postgres" if os.geteuid() == 0 else None
        self._directory = Path(tempfile.mkdtemp(prefix="hermes-rl-pg-", dir=PLACE))
        if self._user:
            owner = pwd.getpwnam(self._user)
            os.chown(self._directory, owner.pw_uid, owner.pw_gid)
        self._data = self._directory / "data"
        self._port = free_port()
        self._process: subprocess.Popen[bytes] | None = None
        self._schemas = 0

    def __enter__(self) -> Self:
        try:
            self._call(
                "initdb", "-D", self._data, "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-locale", "--no-sync"
            )
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def address(self) -> str:
        return f"postgresql://tester@127.0.0.1:{self._port}/postgres"

    def new_schema(self) -> str:
        """The address of an empty schema."""
        self._schemas += 1
        name = f"store_{self._schemas}"
        with psycopg.connect(self.address, autocommit=True) as connection:
            connection.execute(f"CREATE SCHEMA {name}".encode())
        return f"{self.address}?options=-csearch_path%3D{name}"

    @contextmanager
    def small_disk(self, megabytes: int) -> Iterator["SmallDisk"]:
        """A disk on which the tables of a new schema lie, and nothing else of the server; root's to make."""
        place = Path(tempfile.mkdtemp(prefix="hermes-rl-disk-", dir=PLACE))
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", place], check=True)
        try:
            shutil.chown(place, self._user or os.geteuid())
            with psycopg.connect(self.address, autocommit=True) as connection:
                connection.execute(f"CREATE TABLESPACE small LOCATION '{place}'".encode())
            yield SmallDisk(f"{self.new_schema()}%20-cdefault_tablespace%3Dsmall", place)
        finally:
            self.stop()
            subprocess.run(["umount", place], check=True)
            place.rmdir()

    def start(self) -> None:
        arguments: list[str | Path] = [
            "-D",
            self._data,
            "-p",
            str(self._port),
            "-h",
            "127.0.0.1",
            "-k",
            self._directory,
        ]
        with (self._directory / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", *arguments], stdout=log, stderr=log, user=self._user, cwd="/"
            )
        deadline = time.monotonic() + READY_S
        while True:
            try:
                psycopg.connect(self.address, connect_timeout=5).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline or self._process.poll() is not None:
                    raise RuntimeError((self._directory / "log").read_text()) from None
                time.sleep(0.05)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """All of its processes stand still: connections stay open and nothing answers."""
        assert self._process is not None
        server = self._process.pid
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        everyone = [server, *map(int, children)]
        for process in everyone:
            os.kill(process, signal.SIGSTOP)
        try:
            yield
        finally:
            for process in everyone:
                os.kill(process, signal.SIGCONT)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT ends it at once and in order; SIGQUIT as a crash would."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(how)
            process.wait(READY_S)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self._directory)

    def _call(self, program: str, *arguments: str | Path) -> None:
        done = subprocess.run(
            [self._programs / program, *arguments], user=self._user, cwd="/", capture_output=True, check=False
        )
        if done.returncode:
            raise RuntimeError(f"{program}: {done.stderr.decode(errors='replace')}")


def programs() -> Path:
    """Where Debian and others put the server's programs; it is not on the PATH."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    beside = shutil.which("initdb")
    if found:
        return found[-1].parent
    if beside:
        return Path(beside).parent
    raise RuntimeError("these tests start a PostgreSQL server of their own: apt-get install postgresql")
