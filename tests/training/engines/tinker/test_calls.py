"""Requests to a server that is there, that is away, and that refuses."""

import asyncio
import time
from collections.abc import AsyncIterator

import pytest
import tinker
from aiohttp import web

from hermes_rl.training.engines.protocol import EngineError
from hermes_rl.training.engines.tinker import Calls
from hermes_rl.training.engines.tinker import calls as calls_module
from hermes_rl.training.utilization import BusyTimer


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls_module, "PROBE_INTERVAL_S", 0.02)
    monkeypatch.setattr(calls_module, "RETRY_INTERVAL_S", 0.02)


@pytest.fixture
async def server() -> AsyncIterator[tuple[str, list[str]]]:
    """Its address, which ends in letters that `rstrip("/v1")` would cut, and the paths it was asked for."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response()

    app = web.Application()
    app.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    address = runner.addresses[0]
    yield f"http://{address[0]}:{address[1]}/v11", asked
    await runner.cleanup()


async def test_an_address_may_end_in_letters_of_v1(server: tuple[str, list[str]]) -> None:
    url, asked = server
    await Calls(url, 5.0, BusyTimer()).wait_until_up()
    assert asked == ["/v11/api/v1/healthz"]


async def test_a_server_that_never_comes_is_told_with_the_next_step() -> None:
    with pytest.raises(EngineError, match="hermes-rl engine start") as gone:
        await Calls("http://127.0.0.1:9", 0.05, BusyTimer()).wait_until_up()
    assert gone.value.permanent


async def test_a_request_is_given_up_when_the_server_is_away_for_too_long() -> None:
    with pytest.raises(EngineError, match="has been unreachable"):
        await Calls("http://127.0.0.1:9", 0.1, BusyTimer()).run("wait", asyncio.sleep(60))


async def test_a_request_may_take_long_as_long_as_the_server_answers(server: tuple[str, list[str]]) -> None:
    await Calls(server[0], 1.0, BusyTimer()).run("wait", asyncio.sleep(2.0))


async def test_what_the_sdk_raises_is_an_engine_error() -> None:
    async def fails() -> None:
        raise tinker.TinkerError("no such model")

    with pytest.raises(EngineError, match="cannot train at hosted Tinker: no such model"):
        await Calls(None, 5.0, BusyTimer()).run("train", fails())


async def test_the_time_of_requests_that_overlap_counts_once() -> None:
    busy = BusyTimer()
    calls = Calls(None, 5.0, busy)
    began = time.monotonic()
    await asyncio.gather(calls.run("wait", asyncio.sleep(0.2)), calls.run("wait", asyncio.sleep(0.2)))
    assert 0.19 < busy.take() <= time.monotonic() - began
    assert busy.take() == 0
