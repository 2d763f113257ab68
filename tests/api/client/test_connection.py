import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from hermes_rl.api.client.connection import ApiConnection, ApiError, ApiUnavailableError, RequestContent
from hermes_rl.api.schemas import Ended
from hermes_rl.core.errors import ConfigError

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def connected(handler: Handler, token: str | None = None) -> AsyncIterator[ApiConnection]:
    """A connection to a server that answers everything by `handler`."""
    app = web.Application(client_max_size=2**26)
    app.router.add_route("*", "/{path:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        async with ApiConnection(f"http://127.0.0.1:{runner.addresses[0][1]}/", token=token) as connection:
            yield connection
    finally:
        await runner.cleanup()


class Faulty:
    """Answers with each of these in turn, the last one for ever."""

    def __init__(self, *answers: web.Response | None) -> None:
        self.answers = list(answers)
        self.asked: list[float] = []

    async def answer(self, request: web.Request) -> web.Response:
        self.asked.append(time.monotonic())
        await request.read()
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        return web.Response(body=answer.body, status=answer.status, headers=answer.headers)


def busy(status: int, seconds: str = "0") -> web.Response:
    return web.json_response({"kind": "queue_full", "message": "full"}, status=status, headers={"Retry-After": seconds})


DONE = web.json_response({"count": 1})


@pytest.mark.parametrize("status", [408, 429, 502, 503, 504, 507])
async def test_an_api_that_cannot_now_is_asked_again(status: int) -> None:
    async with connected(Faulty(busy(status), DONE).answer) as connection:
        assert await connection.ask("POST", "/x", Ended, patience=10) == Ended(count=1)


async def test_a_connection_that_breaks_is_asked_again() -> None:
    faulty = Faulty(None, None, DONE)
    async with connected(faulty.answer) as connection:
        await connection.request("POST", "/x", patience=10)
    assert len(faulty.asked) == 3


async def test_without_patience_an_api_is_asked_once() -> None:
    faulty = Faulty(busy(503))
    async with connected(faulty.answer) as connection:
        with pytest.raises(ApiUnavailableError):
            await connection.request("GET", "/x")
    assert len(faulty.asked) == 1


async def test_when_patience_runs_out_the_last_refusal_is_told() -> None:
    async with connected(Faulty(busy(507)).answer) as connection:
        with pytest.raises(ApiUnavailableError, match="full") as caught:
            await connection.request("GET", "/x", patience=0.3)
    assert (caught.value.status, caught.value.kind) == (507, "queue_full")


async def test_the_wait_that_was_asked_for_is_kept() -> None:
    faulty = Faulty(busy(429, "0.5"), DONE)
    async with connected(faulty.answer) as connection:
        await connection.request("GET", "/x", patience=10)
    assert faulty.asked[1] - faulty.asked[0] >= 0.5


async def test_a_wait_beyond_patience_is_not_begun() -> None:
    async with connected(Faulty(busy(429, "3600")).answer) as connection:
        async with asyncio.timeout(5):
            with pytest.raises(ApiUnavailableError) as caught:
                await connection.request("GET", "/x", patience=60)
    assert caught.value.retry_after == 3600


async def test_a_refusal_is_told_by_kind_and_field_and_not_repeated() -> None:
    faulty = Faulty(web.json_response({"kind": "invalid", "message": "too small", "field": "batch_size"}, status=422))
    async with connected(faulty.answer) as connection:
        with pytest.raises(ApiError, match="too small") as caught:
            await connection.request("POST", "/x", patience=10)
    assert (caught.value.status, caught.value.kind, caught.value.field) == (422, "invalid", "batch_size")
    assert len(faulty.asked) == 1


async def test_a_refusal_that_is_no_problem_of_ours_is_shown() -> None:
    async with connected(Faulty(web.Response(text="<h1>Teapot</h1>", status=418)).answer) as connection:
        with pytest.raises(ApiError, match="HTTP 418: <h1>Teapot</h1>"):
            await connection.request("GET", "/x")


async def test_a_redirect_is_told_and_not_followed() -> None:
    faulty = Faulty(web.Response(status=307, headers={"Location": "http://elsewhere.invalid/"}))
    async with connected(faulty.answer, token="secret-word") as connection:
        with pytest.raises(ApiError, match="elsewhere"):
            await connection.request("GET", "/x")


async def test_a_hung_api_is_away_after_the_deadline() -> None:
    async def hang(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(3600)
        return web.Response()

    async with connected(hang) as connection:
        with pytest.raises(ApiUnavailableError, match="did not answer GET /x in time"):
            await connection.request("GET", "/x", deadline=0.1)


async def test_nobody_there_is_an_api_that_is_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with ApiConnection(f"http://127.0.0.1:{port}") as connection:
        with pytest.raises(ApiUnavailableError, match="cannot be reached") as caught:
            await connection.request("GET", "/x", patience=0.2)
    assert (caught.value.status, caught.value.kind) == (0, "unreachable")


async def test_an_answer_of_another_shape_is_told() -> None:
    async with connected(Faulty(web.json_response({"number": 1})).answer) as connection:
        with pytest.raises(ApiError, match="sent an invalid Ended"):
            await connection.ask("GET", "/x", Ended)


async def test_the_token_is_sent_and_never_shown() -> None:
    async def repeat(request: web.Request) -> web.StreamResponse:
        return web.Response(text=request.headers["Authorization"], status=400)

    async with connected(repeat, token="secret-word") as connection:
        with pytest.raises(ApiError) as caught:
            await connection.request("GET", "/x")
    assert "Bearer **********" in str(caught.value)


async def test_large_bodies_arrive_whole() -> None:
    data = bytes(range(256)) * 40_000

    async def check(request: web.Request) -> web.StreamResponse:
        same = await request.read() == data and request.headers["Content-Length"] == str(len(data))
        return web.json_response({"count": int(same)})

    async with connected(check) as connection:
        assert await connection.ask("POST", "/x", Ended, RequestContent(data, "application/x")) == Ended(count=1)


async def test_a_body_is_sent_whole_again_at_the_second_try() -> None:
    sizes = []

    async def count(request: web.Request) -> web.StreamResponse:
        sizes.append(len(await request.read()))
        return busy(503) if len(sizes) == 1 else web.Response()

    async with connected(count) as connection:
        await connection.request("POST", "/x", RequestContent(bytes(3_000_000), "application/x"), patience=10)
    assert sizes == [3_000_000, 3_000_000]


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://host", "", "http://"])
def test_an_address_that_is_none_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ConfigError, match=r"http://127\.0\.0\.1:8000"):
        ApiConnection(url)
