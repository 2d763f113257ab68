"""The callers of trajectory_api.py, the same for both servers: blocking sockets, a thread each, in their own processes.

Always true: a connection is kept for all requests of its thread; a time ends with the last byte of the answer.
"""

import json
import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import count, islice
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from benchmarks.trajectory_api_bodies import BinaryBodies, JsonBodies

SPAWNED = multiprocessing.get_context("spawn")
BINARY = "application/vnd.hermes-rl.group"
PATIENCE_S = 300.0


class Environment(NamedTuple):
    """Where an environment of this number posts its groups, and whether in `form` binary or json."""

    url: str
    path: str
    form: str
    number: int


class Posts(NamedTuple):
    """Groups to post, of which the file `base` has one: so many from the `first` on, or without end."""

    environment: Environment
    base: Path
    first: int
    groups: int | None
    clients: int


class Posted(NamedTuple):
    """What came of them."""

    seconds: float
    latencies: list[float]

    @property
    def per_second(self) -> float:
        return len(self.latencies) / self.seconds


def connect(url: str) -> HTTPConnection:
    place = urlsplit(url)
    return HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE_S)


def call(connection: HTTPConnection, method: str, path: str, body: Any = None) -> bytes:
    """The answer's bytes, unpacked by nobody: none of these requests asks for an encoding."""
    data = None if body is None else json.dumps(body)
    connection.request(method, path, data, {"Content-Type": "application/json", "Accept-Encoding": "identity"})
    answer = connection.getresponse()
    content = answer.read()
    if answer.status >= 400:
        raise RuntimeError(f"{method} {path}: {answer.status} {content[:300]!r}")
    return content


def post(posts: Posts) -> Posted:
    """Send them from a process of their own."""
    posted: Posted = _apart(_post_here, posts)
    return posted


@contextmanager
def posting(posts: Posts) -> Iterator[None]:
    """Send them in a process of their own while the block runs, which may end first."""
    process = SPAWNED.Process(target=_post_here, args=(posts,), daemon=True)
    process.start()
    try:
        yield
    finally:
        process.terminate()
        process.join()


def probe(url: str, requests: list[tuple[str, str, Any]], seconds: float, every: float) -> list[float]:
    """Small requests one after the other, so many seconds apart; how long each took."""
    latencies: list[float] = _apart(_probe_here, url, requests, seconds, every)
    return latencies


def _probe_here(url: str, requests: list[tuple[str, str, Any]], seconds: float, every: float) -> list[float]:
    connection = connect(url)
    latencies: list[float] = []
    deadline = time.perf_counter() + seconds
    for number in count():
        began = time.perf_counter()
        if began >= deadline:
            return latencies
        call(connection, *requests[number % len(requests)])
        latencies.append(time.perf_counter() - began)
        time.sleep(max(0.0, every - latencies[-1]))
    raise AssertionError("it counts for ever")


def _post_here(posts: Posts) -> Posted:
    base = posts.base.read_bytes()
    url, path, form, number = posts.environment
    bodies = BinaryBodies(base) if form == "binary" else JsonBodies(base, number)
    kind = BINARY if form == "binary" else "application/json"
    waiting: Iterator[list[bytes]] = map(bodies.pieces, count(posts.first))
    if posts.groups is not None:
        # Made before the clock runs, as environments have theirs ready before they post.
        waiting = iter(list(islice(waiting, posts.groups)))
    latencies: list[float] = []
    failures: list[Exception] = []
    lock = threading.Lock()

    def send() -> None:
        connection = connect(url)
        try:
            while True:
                with lock:
                    pieces = next(waiting, None)
                if pieces is None:
                    return
                began = time.perf_counter()
                size = str(sum(map(len, pieces)))
                connection.request("POST", path, pieces, {"Content-Type": kind, "Content-Length": size})
                answer = connection.getresponse()
                content = answer.read()
                latencies.append(time.perf_counter() - began)
                if answer.status not in {200, 201}:
                    raise RuntimeError(f"{path}: {answer.status} {content[:300]!r}")
        except Exception as error:  # noqa: BLE001 - told by whoever joins the threads
            failures.append(error)

    threads = [threading.Thread(target=send) for _ in range(posts.clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return Posted(time.perf_counter() - began, latencies)


def _apart(work: Callable[..., Any], *arguments: Any) -> Any:
    """What the function returns in a process of its own."""
    ours, theirs = SPAWNED.Pipe()
    process = SPAWNED.Process(target=_told, args=(theirs, work, arguments), daemon=True)
    process.start()
    theirs.close()
    try:
        done, result = ours.recv()
    except EOFError:
        raise RuntimeError(f"{work.__name__} ended without a word") from None
    finally:
        process.join()
    if not done:
        raise RuntimeError(f"{work.__name__}: {result}")
    return result


def _told(pipe: Any, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    try:
        pipe.send((True, work(*arguments)))
    except Exception as error:  # noqa: BLE001 - told by the process that waits
        pipe.send((False, f"{type(error).__name__}: {error}"))
