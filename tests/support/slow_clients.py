"""Clients on loopback that begin requests and never finish them, and an API with few files to open."""

import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

HEAD = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\n"
BODY = b"POST /v1/environments/1/groups HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 1000000\r\n\r\nabc"
WAIT_S = 10.0


@contextmanager
def limited_api(folder: Path, *, files: int) -> Iterator[int]:
    """The port of `hermes-rl api` that may open so many files; its log is `folder/log`."""
    api = f"hermes_rl api --json --port 0 --database {folder / 'store.db'}".split()
    limited = ["/bin/sh", "-c", f'ulimit -n {files} && exec "$@"', "sh", sys.executable, "-m", *api]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(limited, stdout=subprocess.PIPE, stderr=log)
    assert process.stdout is not None
    try:
        yield int(json.loads(process.stdout.readline())["url"].rpartition(":")[2])
    finally:
        process.kill()
        process.wait(WAIT_S)
        process.stdout.close()


class SlowClients:
    """Opens connections with half a request on each and keeps them; closes them at the end."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: list[socket.socket] = []
        self.opened = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for connection in self._open:
            connection.close()

    def open(self, *, heads: int = 0, bodies: int = 0) -> None:
        for data, count in ((HEAD, heads), (BODY, bodies)):
            for _ in range(count):
                connection = socket.create_connection(("127.0.0.1", self._port), WAIT_S)
                self._open.append(connection)
                self.opened += 1
                # The API may have closed it already.
                with suppress(OSError):
                    connection.sendall(data)

    def drop_closed(self) -> int:
        """Forget the connections that the API has closed; how many those were."""
        closed = [connection for connection in self._open if _is_closed(connection)]
        for connection in closed:
            connection.close()
        self._open = [connection for connection in self._open if connection.fileno() >= 0]
        return len(closed)

    def health_seconds(self, *, for_seconds: float) -> list[float]:
        """How long each of many GET /health on new connections took; one that fails counts as WAIT_S."""
        seconds, end = [], time.monotonic() + for_seconds
        while time.monotonic() < end:
            began = time.monotonic()
            seconds.append(time.monotonic() - began if self._healthy() else WAIT_S)
            time.sleep(0.05)
        return seconds

    def _healthy(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), WAIT_S) as connection:
                connection.settimeout(WAIT_S)
                connection.sendall(HEAD + b"Connection: close\r\n\r\n")
                return connection.recv(4096).startswith(b"HTTP/1.1 200 ")
        except OSError:
            return False


def _is_closed(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        # An answer comes only before the end.
        return connection.recv(1) is not None
    except BlockingIOError:
        return False
    except OSError:
        return True
