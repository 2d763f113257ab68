"""The gateway's port and doors: who is answered there, what heads may be sent, and how they end."""

import asyncio
import json
import socket
from contextlib import suppress
from typing import Any

import aiohttp
import pytest

from hermes_rl.core.trajectory import Usage
from hermes_rl.gateway.api_keys import ApiKey
from hermes_rl.gateway.limits import GatewayLimits
from hermes_rl.gateway.rollout import GatewayRollout
from hermes_rl.gateway.server import GatewayServer
from hermes_rl.inference.completion import ChatCompletion, ChatMessage, Choice
from tests.support.gateway import gateway, says
from tests.support.inference import ids
from tests.support.scripted_model import Delayed
from tests.support.token_servers import Tokens

CHAT = "/v1/chat/completions"
# More than the buffers of a connection hold.
LARGE = 16 * 2**20
BODY: Any = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}


def _bearer(opened: ApiKey) -> dict[str, str]:
    return {"Authorization": f"Bearer {opened.key}"}


async def raw(end: socket.socket, opened: ApiKey | None = None, head: bytes = b"") -> tuple[int, bytes]:
    """Status and body of a request written by hand: what is said on one connection, to its end."""
    key = b"Authorization: Bearer %s\r\n" % opened.key.encode() if opened else b""
    body = json.dumps(BODY).encode()
    reader, writer = await asyncio.open_connection(sock=end)
    first = b"POST %s HTTP/1.1\r\nConnection: close\r\nContent-Length: %d\r\n" % (CHAT.encode(), len(body))
    writer.write(first + key + head + b"\r\n" + body)
    try:
        async with asyncio.timeout(60):
            said = await reader.read()
    finally:
        writer.close()
    return int(said.split(maxsplit=2)[1]) if said else 0, said.partition(b"\r\n\r\n")[2]


async def test_a_door_answers_its_own_rollout_and_no_other() -> None:
    async with gateway(says("Yes.")) as at, at.visit() as one, at.visit() as other:
        async with at.server.listener(one.opened) as door:
            assert (await raw(await door.connect(), one.opened))[0] == 200
            assert (await raw(await door.connect(), other.opened))[0] == 401
        assert not other.rollout.calls


async def test_a_door_is_closed_with_its_rollout() -> None:
    async with gateway(says("Yes.")) as at, at.visit() as agent:
        async with at.server.listener(agent.opened) as door:
            pass
        with pytest.raises(ConnectionRefusedError):
            await door.connect()


async def test_a_door_needs_no_port() -> None:
    async with gateway(says("Yes.")) as at, at.visit() as agent:
        portless = GatewayServer(keys=at.server.keys)
        async with portless.listener(agent.opened) as door:
            assert (await raw(await door.connect(), agent.opened))[0] == 200
        assert portless.url == ""


async def test_closing_a_door_drops_connections_that_never_finished_a_request() -> None:
    async with gateway(says("Yes.")) as at, at.visit() as agent:
        async with at.server.listener(agent.opened) as door:
            reader, writer = await asyncio.open_connection(sock=await door.connect())
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
            await asyncio.sleep(0.1)
        async with asyncio.timeout(30):
            await reader.read()
        writer.close()


async def test_a_long_head_is_read() -> None:
    async with gateway(says("Yes.")) as at, at.visit() as agent, at.server.listener(agent.opened) as door:
        assert (await raw(await door.connect(), agent.opened, b"X: %s\r\n" % (b"x" * 32_000)))[0] == 200


@pytest.mark.parametrize(
    "begun",
    [
        pytest.param(b"POST / HTTP/1.1\r\nX: ", id="a head"),
        pytest.param(b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ", id="a trailer"),
        pytest.param(b"POST /", id="a path"),
    ],
)
async def test_what_has_no_end_is_cut_off_before_it_fills_our_memory(begun: bytes) -> None:
    piece, sent = b"x" * 2**16, 0
    async with gateway(says("Yes.")) as at, at.visit() as agent, at.server.listener(agent.opened) as door:
        _, writer = await asyncio.open_connection(sock=await door.connect())
        writer.write(begun)
        with suppress(OSError):
            while sent < 2**25:
                writer.write(piece)
                await writer.drain()
                sent += len(piece)
        writer.close()
        assert sent < 2**22
        assert await agent.chat("hello") == "Yes."


async def test_requests_under_way_are_answered_when_the_server_closes() -> None:
    async with gateway(lambda _: Delayed(0.5, Tokens(ids("Yes.")))) as at, at.visit() as agent:  # type: ignore[arg-type]
        calling = asyncio.create_task(agent.post(CHAT, BODY))
        async with asyncio.timeout(30):
            while not at.engine.requests:
                await asyncio.sleep(0.01)
        await at.server.__aexit__(None, None, None)
        status, _ = await calling
        assert status == 200
        with pytest.raises(aiohttp.ClientError):
            await agent.post(CHAT, BODY)


def sends_all_first(url: str, head: str, size: int) -> tuple[str, bool]:
    """The first line that a caller is told who sends all of its body before it reads, and whether the server hung up.

    It asks for the connection to be closed, as programs do that make one request.
    """
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=60) as caller:
        caller.sendall(f"{head}\r\nConnection: close\r\nContent-Length: {size}\r\n\r\n".encode())
        caller.sendall(b"x" * size)
        told = caller.makefile("rb").read()
        return told.partition(b"\r\n")[0].decode(), told.endswith(b"}")


@pytest.mark.parametrize("path", [CHAT, "/v1/responses", "/v1/messages"])
async def test_a_refusal_reaches_a_caller_that_sends_a_large_body_before_it_reads(path: str) -> None:
    async with gateway(says("Yes.")) as at:
        head = f"POST {path} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer sk-wrong"
        told = await asyncio.to_thread(sends_all_first, at.server.url, head, LARGE)
        assert told == ("HTTP/1.1 401 Unauthorized", True)


async def test_that_a_body_is_too_large_reaches_a_caller_that_is_still_sending_it() -> None:
    async with gateway(says("Yes.")) as at, at.visit(bounds=GatewayLimits(call_bytes=200_000)) as agent:
        head = f"POST {CHAT} HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {agent.opened.key}"
        line, whole = await asyncio.to_thread(sends_all_first, at.server.url, head, LARGE)
        assert line.startswith("HTTP/1.1 413 ")
        assert whole
        assert agent.rollout.used.bytes == 0


async def test_whoever_never_ends_a_refused_body_is_hung_up_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hermes_rl.gateway.asgi_responses.DRAIN_SECONDS", 0.2)
    async with gateway(says("Yes.")) as at:
        host, port = at.server.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(f"POST {CHAT} HTTP/1.1\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{{".encode())
        async with asyncio.timeout(30):
            assert (await reader.read()).startswith(b"HTTP/1.1 401 ")
        writer.close()


class AllAtOnce:
    """A policy that answers nobody before so many have asked."""

    def __init__(self, calls: int) -> None:
        self.missing = calls
        self.here = asyncio.Event()

    async def chat_completion(self, messages: Any, **parameters: Any) -> ChatCompletion:
        self.missing -= 1
        if not self.missing:
            self.here.set()
        await self.here.wait()
        said = Choice(0, ChatMessage("assistant", f"{messages[0]['content']}!"), "stop")
        return ChatCompletion("chatcmpl-1", "m", (said,), Usage(1, 1))


async def test_a_thousand_and_twenty_four_calls_in_flight_all_succeed() -> None:
    rollouts, calls = 32, 32
    policy = AllAtOnce(rollouts * calls)
    async with (
        GatewayServer() as server,
        aiohttp.ClientSession(server.url, connector=aiohttp.TCPConnector(limit=0)) as session,
    ):
        keys = [server.keys.open(GatewayRollout(policy)) for _ in range(rollouts)]

        async def ask(opened: ApiKey) -> str:
            body = {"model": "m", "messages": [{"role": "user", "content": opened.id}]}
            async with session.post(CHAT, json=body, headers=_bearer(opened)) as response:
                return str((await response.json())["choices"][0]["message"]["content"])

        everyone = keys * calls
        said = await asyncio.gather(*map(ask, everyone))
        assert said == [f"{opened.id}!" for opened in everyone]
        assert [len(opened.rollout.answered) for opened in keys] == [calls] * rollouts


async def test_two_servers_in_one_process_know_nothing_of_each_other() -> None:
    async with gateway(says("Yes.")) as at, at.visit() as agent, GatewayServer() as other:
        headers = _bearer(agent.opened)
        async with aiohttp.ClientSession(other.url, headers=headers) as session, session.post(CHAT, json=BODY) as said:
            assert said.status == 401
