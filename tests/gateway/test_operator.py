"""Operators of the standalone gateway that break off, ask twice, or have no room: nothing is done by half or twice."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from hermes_rl.core.trajectory import Usage
from hermes_rl.gateway.api_keys import ApiKeys
from hermes_rl.gateway.limits import GatewayLimits
from hermes_rl.gateway.run_sampling import RunSampling
from hermes_rl.gateway.server import GatewayServer
from hermes_rl.gateway.standalone import RolloutTemplate, StandaloneApp
from hermes_rl.inference.completion import ChatCompletion, ChatMessage, Choice

TOKEN = "operator-token"
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
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


async def played(session: aiohttp.ClientSession, **fields: Any) -> str:
    """A rollout with one answer."""
    async with session.post("/rollouts", json=fields) as answer:
        rollout = await answer.json()
    ask = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "tools": [TOOL]}
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


async def test_a_line_has_the_tools_that_the_agent_offered() -> None:
    async with operated() as (session, _):
        _, record = await scored(session, await played(session))
    assert (record["tools"], record["tool_schemas"]) == (["look"], [TOOL])


async def test_the_rollouts_of_a_group_are_one_line_when_the_last_is_closed() -> None:
    kept: list[dict[str, Any]] = []
    fields = {"group": "g1", "group_size": 2, "item_id": "sum-1", "item": {"a": 2}, "split": "eval"}
    async with operated(kept.append) as (session, _):
        first, second = await played(session, **fields), await played(session, **fields)
        _, early = await scored(session, second)
        assert ([one["index"] for one in early["rollouts"]], early["withheld"]) == ([1], "too_few_scored")
        assert kept == []
        _, record = await scored(session, first)
    assert kept == [record]
    assert (record["id"], record["split"], record["item_id"], record["item"]) == (
        early["id"],
        "eval",
        "sum-1",
        {"a": 2},
    )
    assert ([one["index"] for one in record["rollouts"]], record["scores"]) == ([0, 1], [1.0, 1.0])
    assert record["rollouts"][0]["seed"] != record["rollouts"][1]["seed"]
    assert record["withheld"] is None


async def test_a_group_that_is_complete_may_be_opened_again_under_its_name() -> None:
    kept: list[dict[str, Any]] = []
    async with operated(kept.append) as (session, _):
        for _ in range(2):
            await scored(session, await played(session, group="g1", group_size=1))
    assert len({record["id"] for record in kept}) == 2


async def test_a_group_that_the_end_of_the_gateway_cuts_off_is_stored_and_withheld() -> None:
    kept: list[dict[str, Any]] = []
    async with operated(kept.append) as (session, _):
        await scored(session, await played(session, group="g1", group_size=3))
        await played(session, group="g1", group_size=3)
    assert [(len(record["rollouts"]), record["withheld"]) for record in kept] == [(1, "too_few_scored")]


@pytest.mark.parametrize(
    ("fields", "status", "part"),
    [
        ({"split": "test"}, 400, "split must be train or eval"),
        ({"group": "g1"}, 400, "a group has a name and a group_size"),
        ({"group": "", "group_size": 2}, 400, "a group has a name and a group_size"),
        ({"group": "full", "group_size": 1}, 409, "all of them were opened"),
        ({"group": "open", "group_size": 3}, 409, "was opened with size 2, not 3"),
        ({"group": "open", "group_size": 2, "item": 5}, 409, "was opened with item None, not 5"),
    ],
)
async def test_what_does_not_fit_a_group_is_refused_and_opens_nothing(
    fields: dict[str, Any], status: int, part: str
) -> None:
    async with operated() as (session, keys):
        await played(session, group="full", group_size=1)
        await played(session, group="open", group_size=2)
        async with session.post("/rollouts", json=fields) as answer:
            assert (answer.status, part in (await answer.json())["error"]["message"]) == (status, True)
        assert len(keys) == 2
