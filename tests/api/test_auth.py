import asyncio
import io
import socket
import time
from contextlib import closing

import pytest

from hermes_rl.api.server import ApiSettings
from hermes_rl.store.database.store import Store
from tests.store.database.making import make_group
from tests.support.trajectory_api import Caller, calling, served

TOKEN = ApiSettings(token="secret")


@pytest.mark.parametrize("header", [None, "secret", "Bearer wrong", "Basic secret", "Bearer", "Bearer sécret"])
async def test_nobody_comes_in_without_the_token(store: Store, header: str | None) -> None:
    async with calling(store, TOKEN) as api:
        status, answer = await api("GET", "/v1/status", headers={"Authorization": header} if header else {})
    assert (status, answer["kind"]) == (401, "unauthorised")


async def test_the_token_opens_the_door(store: Store) -> None:
    async with calling(store, TOKEN, headers={"Authorization": "Bearer secret"}) as api:
        assert (await api("GET", "/v1/status"))[0] == 200


async def test_whoever_watches_over_the_process_needs_no_token(store: Store) -> None:
    async with calling(store, TOKEN) as api:
        assert [(await api("GET", path))[0] for path in ("/health", "/ready")] == [200, 200]


@pytest.mark.parametrize(
    "header", [{"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}, {"Origin": "null"}]
)
async def test_a_page_in_a_browser_cannot_use_an_api_without_a_token(api: Caller, header: dict[str, str]) -> None:
    assert (await api("GET", "/v1/status", headers=header))[0] == 403


@pytest.mark.parametrize(("host", "status"), [("evil.example:80", 403), ("LOCALHOST:80", 200), ("[::1]:80", 200)])
async def test_an_api_without_a_token_goes_by_its_own_names_only(store: Store, host: str, status: int) -> None:
    async with calling(store, ApiSettings(hosts=frozenset({"localhost", "[::1]"}))) as api:
        assert (await api("GET", "/v1/status", headers={"Host": host}))[0] == status


async def test_a_body_that_is_too_large_is_refused_unread(store: Store) -> None:
    async with calling(store, ApiSettings(max_body=1_000)) as api:
        status, answer = await api.post(await api.register(), bytes(1_001))
    assert (status, answer["kind"]) == (413, "too_large")


async def test_a_large_body_on_a_small_route_is_cut_off(api: Caller) -> None:
    status, answer = await api(
        "POST", "/v1/environments", data=io.BytesIO(bytes(2**20 + 1)), headers={"Content-Type": "application/json"}
    )
    assert (status, answer["kind"]) == (413, "too_large")


async def test_a_body_that_never_ends_is_given_up(store: Store) -> None:
    async with served(store, ApiSettings(body_seconds=0.2)) as url:
        environment = (await store.register_environment("e")).id
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        head = f"POST /v1/environments/{environment}/groups HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\nabc"
        writer.write(head.encode())
        async with asyncio.timeout(5):
            assert b" 408 " in await reader.readline()
        writer.close()


async def test_bodies_share_one_memory(store: Store) -> None:
    """One that announces all of it and sends nothing holds up the others, and only until it is given up."""
    data = make_group()
    settings = ApiSettings(max_body=len(data), max_bodies=len(data), body_seconds=0.5)
    async with calling(store, settings) as api:
        environment = await api.register()
        began = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", api.port)
        head = f"POST /v1/environments/{environment}/groups HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n"
        writer.write(f"{head}Expect: 100-continue\r\n\r\n".encode())
        with closing(writer):
            # Answered when the body is about to be read: it has the memory.
            assert b" 100 " in await reader.readline()
            assert (await api.post(environment, data))[0] == 201
            assert time.monotonic() - began >= settings.body_seconds - 0.01


async def test_one_who_hangs_up_in_the_middle_of_a_body_harms_nobody(api: Caller) -> None:
    environment = await api.register()
    head = f"POST /v1/environments/{environment}/groups HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\nab"
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", api.port)) as cut:
            cut.sendall(head.encode())
    assert (await api.post(environment, make_group()))[0] == 201


@pytest.mark.parametrize(
    "text",
    ["{", '{"name": NaN}', "[" * 100_000, '{"name": "e", "weight": NaN}', '{"name": "e", "weight": 1e999}', "\x00"],
)
async def test_json_that_is_none_is_refused(api: Caller, text: str) -> None:
    status, _ = await api("POST", "/v1/environments", data=text.encode(), headers={"Content-Type": "application/json"})
    assert 400 <= status < 500
