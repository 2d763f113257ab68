"""An endpoint's response may not fill the memory, however small it is on the wire."""

import gzip

import pytest
from aiohttp import web

from hermes_rl import APIServerConfig, ServerManager
from hermes_rl.core.errors import EndpointError
from hermes_rl.inference import endpoint
from tests.support.ports import free_port


async def answer(compressed: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint's answer to a readiness request, with a limit of 1 MB."""
    monkeypatch.setattr(endpoint, "MAX_RESPONSE_BYTES", 2**20)

    async def models(_: web.Request) -> web.Response:
        return web.Response(body=compressed, headers={"Content-Encoding": "gzip", "Content-Type": "application/json"})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    port = free_port()
    await web.TCPSite(runner, "127.0.0.1", port).start()
    try:
        config = APIServerConfig(base_url=f"http://127.0.0.1:{port}/v1", model_name="m")
        async with ServerManager([config]) as server:
            await server.wait_until_ready(20.0)
    finally:
        await runner.cleanup()


async def test_a_compressed_response_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    await answer(gzip.compress(b'{"data": []}'), monkeypatch)


async def test_a_small_response_that_expands_beyond_the_limit_is_a_bad_response(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bomb = gzip.compress(b'{"data": "' + bytes(100 * 2**20) + b'"}')
    assert len(bomb) < 2**20
    with pytest.raises(EndpointError, match="sent more than 1048576 bytes, decompressed"):
        await answer(bomb, monkeypatch)
