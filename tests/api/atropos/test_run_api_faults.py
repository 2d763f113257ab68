"""Each fault of faults.py is there on atroposlib's own run-api, with its symptom, and is not there on our API."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import pytest

from hermes_rl.api.config import ApiSettings
from hermes_rl.store.database.store import open_store
from tests.api.atropos.faults import FAULTS
from tests.api.atropos.talking import FaultSeenError, Server, Talk
from tests.support.api_process import ApiProcess
from tests.support.run_api import RunApi
from tests.support.trajectory_api import served

SMALL = ApiSettings(max_queued=200, full_patience=0.2)
CRASHES = {"what_was_posted_outlives_a_crash", "an_environment_goes_on_after_a_crash"}


class TheirServer:
    """run-api, killed and started again."""

    def __init__(self, run_api: RunApi) -> None:
        self._run_api = run_api
        self.url = run_api.url

    async def crash(self) -> None:
        await asyncio.to_thread(self._run_api.restart)


class OurProcess:
    """`hermes-rl api`, killed and started again over the same database."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._process = ApiProcess(database)

    @property
    def url(self) -> str:
        return self._process.url

    async def crash(self) -> None:
        await asyncio.to_thread(self._process.kill)
        self._process = await asyncio.to_thread(ApiProcess, self._database)

    def end(self) -> None:
        self._process.kill()


class OurServer:
    """Our API in this process, with a small queue and little patience with silent environments."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def crash(self) -> None:
        raise NotImplementedError


@pytest.fixture
def run_api(atropos_python: Path, tmp_path: Path) -> Iterator[TheirServer]:
    with RunApi(atropos_python, tmp_path / "run-api.log") as started:
        yield TheirServer(started)


@pytest.fixture
async def our_api(fault: str, tmp_path: Path) -> AsyncIterator[Server]:
    database = str(tmp_path / "store.db")
    if fault in CRASHES:
        process = OurProcess(database)
        yield process
        process.end()
        return
    async with open_store(database, heartbeat_timeout=0.5) as store, served(store, SMALL) as url:
        yield OurServer(url)


@pytest.mark.long
@pytest.mark.parts
@pytest.mark.parametrize("fault", FAULTS)
async def test_run_api_has_the_fault(fault: str, run_api: TheirServer) -> None:
    check, symptom = FAULTS[fault]
    async with aiohttp.ClientSession() as session:
        with pytest.raises(FaultSeenError, match=symptom):
            await check(Talk(run_api, session))


@pytest.mark.parametrize("fault", FAULTS)
async def test_our_api_does_not_have_it(fault: str, our_api: Server) -> None:
    check, _ = FAULTS[fault]
    async with aiohttp.ClientSession() as session:
        await check(Talk(our_api, session))
