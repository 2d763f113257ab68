"""The gateway as a command of its own, driven as somebody else's trainer would: by HTTP, with a real agent's SDK."""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
from openai import AsyncOpenAI

from hermes_rl.store.records import group_from_record
from tests.support.gateway import says
from tests.support.inference import CHATML, ids
from tests.support.token_servers import VLLMServer

TOKEN = "operator-token"


@asynccontextmanager
async def command(folder: Path, engine: VLLMServer, *flags: str) -> AsyncIterator[aiohttp.ClientSession]:
    """The command's process, called by its operator."""
    tokenizer = CHATML.save(folder / "tokenizer")
    environment = {**os.environ, "OPERATOR": TOKEN, "HERMES_HOME": str(folder / "home")}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hermes_rl", "gateway", "--json", "--token", "env:OPERATOR"),
        *("--openai.base_url", engine.base_url, "--openai.model_name", "scripted", "--openai.server_type", "vllm"),
        *("--tokenizer", str(tokenizer), "--groups", str(folder / "groups.jsonl"), *flags),
        stdout=asyncio.subprocess.PIPE,
        env=environment,
    )
    assert process.stdout
    try:
        async with asyncio.timeout(100):
            ready = json.loads(await process.stdout.readline())
        headers = {"Authorization": f"Bearer {TOKEN}"}
        async with aiohttp.ClientSession(ready["url"], headers=headers) as session:
            yield session
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(60):
            assert await process.wait() == 0


async def opened(session: aiohttp.ClientSession, **fields: Any) -> dict[str, Any]:
    async with session.post("/rollouts", json=fields) as response:
        assert response.status == 201, await response.text()
        answer: dict[str, Any] = await response.json()
        return answer


async def closed(session: aiohttp.ClientSession, rollout: str, **fields: Any) -> tuple[int, Any]:
    async with session.delete(f"/rollouts/{rollout}", json=fields) as response:
        return response.status, await response.json()


async def chat(rollout: dict[str, Any], text: str) -> str | None:
    async with AsyncOpenAI(base_url=rollout["base_url"], api_key=rollout["key"], max_retries=0) as client:
        answer = await client.chat.completions.create(
            model=rollout["model"], messages=[{"role": "user", "content": text}]
        )
        return answer.choices[0].message.content


async def test_a_rollout_is_opened_played_and_closed_with_its_tokens(tmp_path: Path) -> None:
    async with VLLMServer(says("Four.")) as engine, command(tmp_path, engine) as session:
        rollout = await opened(session, item_id="sum-1", item={"a": 2}, seed=7)
        assert await chat(rollout, "Add 2 and 2.") == "Four."
        status, record = await closed(session, rollout["id"], score=1.0)
        assert status == 200
        group = group_from_record(record)
        [played] = group.rollouts
        [sequence] = played.sequences
        assert (group.item_id, group.item, played.score, played.seed) == ("sum-1", {"a": 2}, 1.0, 7)
        assert [one for one, kept in zip(sequence.tokens, sequence.mask, strict=True) if kept] == list(ids("Four."))
        assert played.messages[-1]["content"] == "Four."
        with pytest.raises(openai.AuthenticationError):
            await chat(rollout, "And now?")
        again = await closed(session, rollout["id"])
        assert again == (200, record)
        unscored = await opened(session)
        _, record = await closed(session, unscored["id"])
        assert record["rollouts"][0]["failure"]["cause"] == "no_score"
        assert (await closed(session, "nobody"))[0] == 404
        # Neither a rollout's key nor nobody's opens or closes.
        for key in (rollout["key"], "", "wrong"):
            async with session.post("/rollouts", headers={"Authorization": f"Bearer {key}"}) as refused:
                assert refused.status == 401
    lines = (tmp_path / "groups.jsonl").read_text().splitlines()
    assert [json.loads(line)["item_id"] for line in lines] == ["sum-1", unscored["id"]]


async def test_what_the_operator_sends_wrong_is_refused_and_keeps_the_rollout(tmp_path: Path) -> None:
    async with VLLMServer(says("Four.")) as engine, command(tmp_path, engine, "--max-calls", "1") as session:
        rollout = await opened(session)
        for wrong in ({"score": "high"}, {"score": float("nan")}, {"score": 1.0, "components": {"a": "b"}}):
            status, answer = await closed(session, rollout["id"], **wrong)
            assert status == 400, answer
        async with session.post("/rollouts", data=b"[]") as refused:
            assert refused.status == 400
        assert await chat(rollout, "hello") == "Four."
        with pytest.raises(openai.RateLimitError):
            await chat(rollout, "hello")
        status, record = await closed(session, rollout["id"], score=0)
        assert (status, record["rollouts"][0]["stop_reason"]) == (200, "max_turns")
