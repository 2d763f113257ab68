"""Where the store of a chaos lies: SQLite or PostgreSQL, on a disk of its own that can be filled; root's to make."""

import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.store.database.postgres_server import PostgresServer

DATABASES = ("sqlite", "postgresql")
# What is left of a disk that is full for all purposes.
SCRAPS = 64 * 2**10


@dataclass(frozen=True, slots=True)
class Disk:
    """A file system of our own. It is filled by a file that can be taken away again."""

    place: Path

    @property
    def _ballast(self) -> Path:
        return self.place / "ballast"

    def fill(self) -> None:
        """Leave no room. A database gives some back now and then, so it is to be called again and again."""
        with self._ballast.open("ab") as file:
            disk = os.statvfs(self.place)
            more = disk.f_bavail * disk.f_frsize - SCRAPS
            if more > 0:
                # The database may take some of it meanwhile.
                with suppress(OSError):
                    os.posix_fallocate(file.fileno(), file.tell(), more)

    def make_room(self) -> None:
        self._ballast.unlink()


@dataclass(frozen=True, slots=True)
class Ground:
    """A store's address, its disk, and how its server is restarted where there is one."""

    address: str
    disk: Disk
    restart: Callable[[signal.Signals], None] | None = None


@contextmanager
def ground(database: str, megabytes: int) -> Iterator[Ground]:
    """An empty store, until the end."""
    if database == "sqlite":
        with _mounted(megabytes) as place:
            yield Ground(str(place / "store.db"), Disk(place))
        return
    with PostgresServer() as server, server.small_disk(megabytes) as small:

        def restart(how: signal.Signals) -> None:
            server.stop(how)
            server.start()

        yield Ground(small.address, Disk(small.place), restart)


@contextmanager
def _mounted(megabytes: int) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hermes-rl-disk-") as name:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", name], check=True)
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", name], check=True)
