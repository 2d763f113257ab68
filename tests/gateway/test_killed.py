"""`kill -9` of `hermes-rl gateway` in the middle of a rollout: nobody is answered by half, nothing half is on disk."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from hermes_rl.store.records import read_groups
from tests.gateway.test_standalone import TOKEN, chat, closed, opened
from tests.support.gateway import heard
from tests.support.inference import CHATML, ids
from tests.support.scripted_model import Hang
from tests.support.token_servers import Tokens, VLLMServer


def answers(asked: Any) -> Any:
    return Hang() if "wait" in heard(asked) else Tokens(ids("Four."))


async def started(folder: Path, engine: VLLMServer) -> tuple[asyncio.subprocess.Process, str]:
    """The command's process, and where it listens."""
    tokenizer = CHATML.save(folder / "tokenizer")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "hermes_rl", "gateway", "--json", "--token", "env:OPERATOR"),
        *("--openai.base_url", engine.base_url, "--openai.model_name", "scripted", "--openai.server_type", "vllm"),
        *("--tokenizer", str(tokenizer), "--groups", str(folder / "groups.jsonl")),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "OPERATOR": TOKEN, "HERMES_HOME": str(folder / "home"), "TMPDIR": str(folder)},
    )
    assert process.stdout
    async with asyncio.timeout(100):
        return process, json.loads(await process.stdout.readline())["url"]


async def ended(process: asyncio.subprocess.Process, how: signal.Signals) -> int:
    process.send_signal(how)
    async with asyncio.timeout(60):
        return await process.wait()


@pytest.mark.slow
async def test_a_killed_gateway_leaves_whole_lines_and_keys_that_open_nothing(tmp_path: Path) -> None:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    groups = tmp_path / "groups.jsonl"
    async with VLLMServer(answers) as engine:
        process, url = await started(tmp_path, engine)
        async with aiohttp.ClientSession(url, headers=headers) as operator:
            before = await opened(operator, item_id="before")
            assert await chat(before, "Add 2 and 2.") == "Four."
            await closed(operator, before["id"], score=1.0)
            during = await opened(operator, item_id="during")
            assert await chat(during, "Add 2 and 2.") == "Four."
            calling = asyncio.create_task(chat(during, "wait"))
            async with asyncio.timeout(60):
                while engine.requests < 3:
                    await asyncio.sleep(0.01)
            assert await ended(process, signal.SIGKILL) == -signal.SIGKILL
            with pytest.raises(openai.APIConnectionError):
                await calling
            with pytest.raises(aiohttp.ClientConnectionError):
                await closed(operator, during["id"], score=1.0)
        # As a kill in the middle of a write would leave it.
        with groups.open("ab") as file:
            file.write(b'{"item_id": "half')
        process, url = await started(tmp_path, engine)
        async with aiohttp.ClientSession(url, headers=headers) as operator:
            with pytest.raises(openai.AuthenticationError):
                await chat({**during, "base_url": f"{url}/v1"}, "Add 2 and 2.")
            assert (await closed(operator, during["id"], score=1.0))[0] == 404
            after = await opened(operator, item_id="after")
            assert await chat(after, "Add 2 and 2.") == "Four."
            await closed(operator, after["id"], score=0.5)
        assert await ended(process, signal.SIGTERM) == 0
    assert [(group.item_id, group.scores) for group in read_groups(groups)] == [("before", [1.0]), ("after", [0.5])]
    assert all(line.endswith(b"}\n") for line in groups.read_bytes().splitlines(keepends=True))
    assert list(tmp_path.glob("hermes-rl-*")) == []
