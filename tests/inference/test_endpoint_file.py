"""Engines that join and leave while there are requests, by a file that names them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hermes_rl.core.errors import ConfigError, EndpointError
from hermes_rl.core.messages import Message
from hermes_rl.inference.concurrency_limiter import LimiterConfig
from hermes_rl.inference.config import APIServerConfig
from hermes_rl.inference.endpoint_file import follow_endpoint_file, read_addresses
from hermes_rl.inference.server_manager import ServerManager
from tests.support.scripted_model import Reply, Script, ScriptedModel, Text, always

ASK: list[Message] = [{"role": "user", "content": "one two three"}]
AWAY = "http://127.0.0.1:9/v1"


class Holding(ScriptedModel):
    """Answers when it may."""

    def __init__(self, script: Script) -> None:
        super().__init__(script)
        self.may_answer = asyncio.Event()

    async def _send(self, request: Any, body: dict[str, Any], reply: Reply) -> Any:
        await self.may_answer.wait()
        return await super()._send(request, body, reply)


def write(path: Path, *urls: str) -> None:
    path.write_text("\n".join(urls))


@asynccontextmanager
async def followed(path: Path, **fields: Any) -> AsyncIterator[ServerManager]:
    config = APIServerConfig(base_url=AWAY, model_name="scripted", **fields)
    async with (
        ServerManager([config], limiter_config=LimiterConfig()) as server,
        follow_endpoint_file(server, path, every=0.02),
    ):
        yield server


async def until_there_are(server: ServerManager, count: int) -> None:
    async with asyncio.timeout(20):
        while len(server.servers) != count:
            await asyncio.sleep(0.01)


async def test_an_engine_joins_when_it_is_named_and_answers(tmp_path: Path) -> None:
    file = tmp_path / "engines"
    async with ScriptedModel(always(Text("a"))) as one, ScriptedModel(always(Text("b"))) as other:
        write(file, one.base_url)
        async with followed(file) as server:
            before = server.servers[0]
            write(file, one.base_url, AWAY, other.base_url)
            await until_there_are(server, 2)
            await asyncio.gather(*(server.chat_completion(ASK) for _ in range(20)))
            assert server.servers[0] is before
            assert [config.base_url for config in server.configs] == [one.base_url, other.base_url]
    assert one.requests and other.requests


async def test_an_engine_that_is_no_longer_named_ends_what_it_has_and_gets_no_more(tmp_path: Path) -> None:
    file = tmp_path / "engines"
    async with (
        Holding(always(Text("a"))) as leaving,
        ScriptedModel(always(Text("b"))) as staying,
    ):
        write(file, leaving.base_url)
        async with followed(file) as server:
            # More than it is given at once, so that some of them wait for it.
            asked = [asyncio.create_task(server.chat_completion(ASK)) for _ in range(12)]
            async with asyncio.timeout(20):
                while leaving.open < 8:
                    await asyncio.sleep(0.01)
            write(file, staying.base_url)
            await until_there_are(server, 1)
            async with asyncio.timeout(20):
                while server.servers[0].base_url != staying.base_url:
                    await asyncio.sleep(0.01)
            leaving.may_answer.set()
            said = [(await one).choices[0].message.content for one in asked]
    assert (said.count("a"), said.count("b"), leaving.requests) == (8, 4, 8)


async def test_a_file_that_cannot_be_read_any_more_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "engines"
    async with ScriptedModel(always(Text("a"))) as model:
        write(file, model.base_url)
        async with followed(file) as server:
            file.unlink()
            await asyncio.sleep(0.1)
            assert len(server.servers) == 1


async def test_a_file_that_names_none_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "engines", "# none yet")
    with pytest.raises(ConfigError, match="lists no engine"):
        async with followed(tmp_path / "engines"):
            pass


async def test_engines_that_do_not_come_are_told_with_what_to_do(tmp_path: Path) -> None:
    write(tmp_path / "engines", "http://127.0.0.1:10/v1")
    with pytest.raises(EndpointError, match="start one, or list others"):
        async with followed(tmp_path / "engines", ready_timeout=0.2):
            pass


def test_comments_blanks_and_repetitions_are_passed_over(tmp_path: Path) -> None:
    broken = ("not one", "ftp://c/v1", "http://d:port/v1", "http:///v1", "http://[::1/v1")
    write(tmp_path / "engines", "# two", "http://a/v1 # first", "", "http://b/v1", "http://a/v1", *broken)
    assert read_addresses(tmp_path / "engines") == ["http://a/v1", "http://b/v1"]
