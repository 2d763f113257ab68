"""What stands on the other side of an extra: a real server where one can be started here, its contract server else.

Always true: each is on loopback, started for one trial and gone after it. One that cannot be started here is a
`Missing` with its reason, and the table shows it.
"""

import asyncio
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

Given = Mapping[str, Any]


class Missing(Exception):  # noqa: N818 - a fact about this machine, no fault
    """Why the other side is not to be had here."""


@contextmanager
def surroundings(extra: str) -> Iterator[Given]:
    """What the trial of an extra is given: addresses, settings, and `variables` for its process."""
    with _SIDES.get(extra, _nothing)() as given:
        yield given


@contextmanager
def _nothing() -> Iterator[Given]:
    yield {}


@contextmanager
def _postgres() -> Iterator[Given]:
    from tests.store.database.postgres_server import PostgresServer, programs

    try:
        programs()
    except RuntimeError as error:
        raise Missing(str(error)) from error
    with PostgresServer() as server:
        yield {"address": server.new_schema()}


@contextmanager
def _docker() -> Iterator[Given]:
    from tests.support.sandbox_parts import IMAGE, DockerDaemon, find_parts

    _need_root("dockerd")
    with DockerDaemon(find_parts().image) as daemon:
        yield {"settings": {"url": daemon.url, "image": IMAGE}}


@contextmanager
def _ssh() -> Iterator[Given]:
    from tests.support.sandbox_parts import SshServer

    _need_root("sshd")
    with SshServer() as server:
        settings = {"host": server.host, "port": server.port, "username": server.username}
        yield {"settings": {**settings, "key": str(server.key), "known_hosts": str(server.known_hosts)}}


@contextmanager
def _modal() -> Iterator[Given]:
    from tests.support.modal_cloud import ModalCloud

    with _on_a_thread(ModalCloud) as cloud:
        yield {"settings": {}, "variables": cloud.environment}


@contextmanager
def _daytona() -> Iterator[Given]:
    from tests.support.daytona_cloud import DaytonaCloud

    with _on_a_thread(DaytonaCloud) as cloud:
        yield {"settings": {}, "variables": cloud.environment}


@contextmanager
def _browser() -> Iterator[Given]:
    if not any(map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))):
        raise Missing("there is no Chromium: apt-get install chromium")
    yield {}


def _need_root(program: str) -> None:
    if os.geteuid() != 0 or shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin") is None:
        raise Missing(f"{program} is started for this, which takes the program and root")


@contextmanager
def _on_a_thread(make: Callable[[], Any]) -> Iterator[Any]:
    """A server that lives on an event loop, while this thread waits for the trial."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def entered() -> Any:
        return await make().__aenter__()

    async def left(server: Any) -> None:
        await server.__aexit__(None, None, None)
        # Some of theirs outlive them, and a loop that closes complains of each.
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    try:
        server = asyncio.run_coroutine_threadsafe(entered(), loop).result(60)
        try:
            yield server
        finally:
            asyncio.run_coroutine_threadsafe(left(server), loop).result(60)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


_SIDES: dict[str, Callable[[], AbstractContextManager[Given]]] = {
    "browser": _browser,
    "daytona": _daytona,
    "docker": _docker,
    "modal": _modal,
    "postgres": _postgres,
    "ssh": _ssh,
}
