"""Operators of the standalone gateway that break off, ask twice, or have no room: nothing is done by half or twice."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from hermes_rl.core.trajectory import Usage
from hermes_rl.gateway.api_keys import ApiKeys
from hermes_rl.gateway.limits import GatewayLimits
from hermes_rl.gateway.run_sampling import RunSampling
from hermes_rl.gateway.server import GatewayServer
from hermes_rl.gateway.standalone import RolloutTemplate, StandaloneApp
from hermes_rl.inference.completion import ChatCompletion, ChatMessage, Choice

TOKEN = "operator-token"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


class Polite:
    async def chat_completion(self, messages: Any, **parameters: Any) -> ChatCompletion:
        return ChatCompletion("chatcmpl-1", "m", (Choice(0, ChatMessage("assistant", "Yes."), "stop"),), Usage(1, 1))


@asynccontextmanager
async def operated(
    keep: Callable[[dict[str, Any]], None] = lambda _: None,
) -> AsyncIterator[tuple[aiohttp.ClientSession, ApiKeys]]:
    @asynccontextmanager
    async def policy() -> AsyncIterator[Polite]:
        yield Polite()

    keys = ApiKeys()
    app = StandaloneApp(keys, RolloutTemplate(policy, "m", RunSampling(), GatewayLimits(), lambda: None, keep), TOKEN)
    async with (
        GatewayServer(keys=keys, app=app) as server,
        aiohttp.ClientSession(server.url, headers=HEADERS) as session,
    ):
        app.url = server.url
        yield session, keys
        await app.close()


async def half_of(session: aiohttp.ClientSession, request: str) -> None:
    """Send a request whose body stops in the middle, and hang up."""
    base = session._base_url
    assert base is not None and base.host and base.port
    _, writer = await asyncio.open_connection(base.host, base.port)
    writer.write(f"{request} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\nContent-Length: 100\r\n\r\n".encode() + b"{")
    await writer.drain()
    await asyncio.sleep(0.2)
    writer.close()
    await asyncio.sleep(0.2)


async def played(session: aiohttp.ClientSession) -> str:
    """A rollout with one answer."""
    async with session.post("/rollouts", json={}) as answer:
        rollout = await answer.json()
    ask = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
    key = {"Authorization": f"Bearer {rollout['key']}"}
    async with session.post(f"/rollouts/{rollout['id']}/v1/chat/completions", json=ask, headers=key) as answer:
        assert answer.status == 200
    return str(rollout["id"])


async def scored(session: aiohttp.ClientSession, rollout: str) -> tuple[int, Any]:
    async with session.delete(f"/rollouts/{rollout}", data=json.dumps({"score": 1.0})) as answer:
        return answer.status, await answer.json(content_type=None)


async def test_a_score_that_comes_by_half_does_not_close_its_rollout() -> None:
    async with operated() as (session, _):
        rollout = await played(session)
        await half_of(session, f"DELETE /rollouts/{rollout}")
        _, record = await scored(session, rollout)
    assert record["rollouts"][0]["score"] == 1.0


async def test_half_a_request_opens_no_rollout() -> None:
    async with operated() as (session, keys):
        await half_of(session, "POST /rollouts")
        assert len(keys) == 0


async def test_a_rollout_that_could_not_be_written_is_kept_for_another_try() -> None:
    kept: list[dict[str, Any]] = []
    full = [True]

    def keep(record: dict[str, Any]) -> None:
        if full.pop():
            full.append(False)
            raise OSError(28, "No space left on device")
        kept.append(record)

    async with operated(keep) as (session, _):
        rollout = await played(session)
        status, answer = await scored(session, rollout)
        assert (status, "free some disk space" in answer["error"]["message"]) == (507, True)
        status, record = await scored(session, rollout)
    assert (status, record["rollouts"][0]["score"]) == (200, 1.0)
    assert len(kept) == 1


async def test_a_rollout_that_is_closed_twice_at_once_is_written_once() -> None:
    kept: list[dict[str, Any]] = []
    async with operated(kept.append) as (session, _):
        rollout = await played(session)
        answers = await asyncio.gather(*(scored(session, rollout) for _ in range(8)))
    assert [status for status, _ in answers] == [200] * 8
    assert len(kept) == 1
